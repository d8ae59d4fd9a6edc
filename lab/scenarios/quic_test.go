package scenarios_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/looptest"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

const (
	quicPort = 443
	// Of the same servers, by a service that knows nothing of connection ids.
	byFlowPort = 444
)

// quicConfigs are how connection ids are laid out: one for each way to read them.
var quicConfigs = []string{
	"{id: 0, encrypted: false}",
	"{id: 1}", // 16 bytes: one block
	"{id: 2, server_id_bytes: 8, nonce_bytes: 5}", // four passes, an odd number of bytes
}

// QUIC clients whose address changes in mid-transfer stay with their server where a
// service follows connection ids, and lose it where not. Real clients and servers, which
// make their connection ids by what the CLI prints.
func TestQUIC(t *testing.T) {
	o := options(t, "quic")
	o.LoadBalancers, o.Encap, o.Stateless = 1, "geneve", true
	running := up(t, o)
	addQUICServices(t, running)
	authority := looptest.NewAuthority(t)
	sources, err := running.Network.AddClientAddresses(t.Context(), 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	for family, vip := range topology.EchoVIPs {
		// Blocks have an address of each family in turn.
		q := quicLab{Lab: running, authority: authority, from: sources[family], to: sources[2+family]}
		for id, layout := range quicConfigs {
			if id%2 != family {
				continue // each layout once: how ids are read is the same over both
			}
			at := netip.AddrPortFrom(vip, quicPort)
			t.Run(fmt.Sprintf("%s to %s, migrating", layout, at), func(t *testing.T) { q.staysWithItsServer(t, at, id, migrates) })
			t.Run(fmt.Sprintf("%s to %s, behind a NAT", layout, at), func(t *testing.T) { q.staysWithItsServer(t, at, id, isRebound) })
		}
		at := netip.AddrPortFrom(vip, byFlowPort)
		t.Run(fmt.Sprintf("by flow to %s, migrating", at), func(t *testing.T) { q.losesItsServer(t, at, migrates) })
		t.Run(fmt.Sprintf("by flow to %s, behind a NAT", at), func(t *testing.T) { q.losesItsServer(t, at, isRebound) })
	}
	checkAtRest(t, running)
}

// The socket of a client behind a NAT has no receive buffer that could be set.
var _ = os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true")

type quicLab struct {
	*hosts.Lab
	authority *looptest.Authority
	// The client's addresses, before and afterwards.
	from, to netip.Addr
}

// addressChange of a client, to that of another socket.
type addressChange func(t *testing.T, c quicClient, former *rebindingSocket, next *net.UDPConn) error

// migrates: the client's kernel has a new address, and it knows.
func migrates(t *testing.T, c quicClient, _ *rebindingSocket, next *net.UDPConn) error {
	return c.migrate(t, next)
}

// isRebound: a NAT gives the client's flow another address.
func isRebound(_ *testing.T, _ quicClient, former *rebindingSocket, next *net.UDPConn) error {
	former.rebind(next)
	return nil
}

func addQUICServices(t *testing.T, running *hosts.Lab) {
	t.Helper()
	service := func(name string, port int, tail string) string {
		var vips []string
		for _, vip := range topology.EchoVIPs {
			vips = append(vips, fmt.Sprintf("{address: %q, ports: [%d], protocol: udp}", vip, port))
		}
		return fmt.Sprintf("- {name: %s, vips: [%s], pools: [echo], encap: geneve, mode: stateless%s}\n", name, strings.Join(vips, ", "), tail)
	}
	machine := running.LoadBalancers()[0]
	editConfig(t, running, machine, func(text string) string {
		services := service("quic", quicPort, fmt.Sprintf(", quic_lb: {configs: [%s]}", strings.Join(quicConfigs, ", "))) +
			service("quic-by-flow", byFlowPort, "")
		return replaceOnce(t, text, "\nservices:\n", "\nservices:\n"+services)
	})
	eventually(t, 10*time.Second, "the forwarder has the services", func() error {
		plan, err := running.Plan(t.Context(), machine)
		if err != nil {
			return err
		}
		for _, service := range plan.GetServices() {
			if service.GetName() == "quic-by-flow" {
				return nil
			}
		}
		return fmt.Errorf("the plan has %d services", len(plan.GetServices()))
	})
}

// staysWithItsServer, by connection ids of that config, though the flow that the client
// has afterwards is another backend's.
func (q quicLab) staysWithItsServer(t *testing.T, vip netip.AddrPort, id int, change addressChange) {
	servers := q.serve(t, vip, id)
	const named = `guideway_quic_packets_total{by="connection_id"}`
	before, others := metrics(t, q.Lab), q.takenByOthers(t, "")
	var next *net.UDPConn
	c, err := q.transfer(t, vip, func(c quicClient, former *rebindingSocket) error {
		others = q.takenByOthers(t, c.backend)
		next = q.otherFlow(t, vip, c.backend)
		return change(t, c, former, next)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := servers[c.backend].sees(next.LocalAddr()); err != nil {
		t.Error(err)
	}
	if more := q.takenByOthers(t, c.backend) - others; more != 0 {
		t.Errorf("other backends than %s took %v packets", c.backend, more)
	}
	if more := grew(t, before, metrics(t, q.Lab), named); more < 1000 {
		t.Errorf("connection ids named the backend of %v packets", more)
	}
}

// losesItsServer where nothing but the flow counts: what makes staysWithItsServer a test.
func (q quicLab) losesItsServer(t *testing.T, vip netip.AddrPort, change addressChange) {
	q.serve(t, vip, 0)
	var others float64
	c, err := q.transfer(t, vip, func(c quicClient, former *rebindingSocket) error {
		others = q.takenByOthers(t, c.backend)
		return change(t, c, former, q.otherFlow(t, vip, c.backend))
	})
	if err == nil {
		t.Errorf("%s had the transfer to its end", c.backend)
	}
	if more := q.takenByOthers(t, c.backend) - others; more == 0 {
		t.Errorf("no other backend than %s took a packet", c.backend)
	}
}

// serve on all backends, with connection ids of that config.
func (q quicLab) serve(t *testing.T, vip netip.AddrPort, id int) map[string]*quicServer {
	t.Helper()
	servers := map[string]*quicServer{}
	for _, n := range q.Network.Backends[:q.Options().Backends] {
		ids, known := idMakers(t, q.Lab, "quic", n.Name)[id]
		if !known {
			t.Fatalf("the CLI prints no config %d for %s", id, n.Name)
		}
		servers[n.Name] = startQUICServer(t, n, vip, ids, q.authority)
	}
	return servers
}

// transfer there and back, with a change in the midst of it.
func (q quicLab) transfer(t *testing.T, vip netip.AddrPort, change func(quicClient, *rebindingSocket) error) (quicClient, error) {
	t.Helper()
	socket := &rebindingSocket{sockets: []*net.UDPConn{listenInside(t, q.Network.Client.Namespace, netip.AddrPortFrom(q.from, 0))}}
	c := dialQUIC(t, socket, vip, q.authority)
	if err := c.stream.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	file := randomBytes(2_000_000)
	wrote := make(chan error, 1)
	go func() {
		_, err := c.stream.Write(file)
		wrote <- err
	}()
	back := sha256.New()
	half := int64(len(file) / 2)
	if _, err := io.CopyN(back, c.stream, half); err != nil {
		t.Fatalf("before the client moved: %v", err)
	}
	if err := change(c, socket); err != nil {
		_ = c.CloseWithError(0, "the client could not move")
		<-wrote
		return c, err
	}
	n, err := io.CopyN(back, c.stream, half)
	if err != nil {
		_ = c.CloseWithError(0, "nothing comes back")
		<-wrote
		return c, fmt.Errorf("after the client moved, %d of %d bytes came back: %w", n, half, err)
	}
	if sum := sha256.Sum256(file); !bytes.Equal(sum[:], back.Sum(nil)) {
		return c, fmt.Errorf("%d bytes came back changed", len(file))
	}
	return c, <-wrote
}

// otherFlow is a socket with the client's other address, whose flow's bucket another
// backend than that has.
func (q quicLab) otherFlow(t *testing.T, vip netip.AddrPort, backend string) *net.UDPConn {
	t.Helper()
	client, connection, err := q.Forwarder(q.LoadBalancers()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	for range 50 {
		socket := listenInside(t, q.Network.Client.Namespace, netip.AddrPortFrom(q.to, 0))
		flow := hosts.FlowKey(udp, netip.MustParseAddrPort(socket.LocalAddr().String()), vip)
		told, err := client.Explain(t.Context(), &forwarderv1.ExplainRequest{Flow: flow})
		if err != nil {
			t.Fatal(err)
		}
		if told.Backend != "" && told.Backend != backend {
			return socket
		}
		_ = socket.Close()
	}
	t.Fatalf("50 flows of %s are all %s's", q.to, backend)
	return nil
}

// takenByOthers counts the tunnelled packets of all backends but one.
func (q quicLab) takenByOthers(t *testing.T, backend string) (sum float64) {
	t.Helper()
	for i, n := range q.Network.Backends {
		if n.Name != backend {
			sum += agentMetricsOf(t, q.Lab, i)[`guideway_agent_decapsulated_packets_total{encap="geneve"}`]
		}
	}
	return sum
}
