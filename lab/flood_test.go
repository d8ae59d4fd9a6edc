package lab_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/guideway/guideway/lab"
	"github.com/guideway/guideway/lab/flood"
	"github.com/guideway/guideway/lab/load"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

const (
	// floodTable is small, so that ten times as much is soon sent.
	floodTable = 1024
	// floodRate leaves two cores, which play everybody, time for the others.
	floodRate = 8_000
)

// Load balancers whose tables are half full of established connections, and
// attackers who send ten times as many flows as a table has room for.
func TestFloods(t *testing.T) {
	o := options(t, "floods")
	o.Backends, o.ConnectionsMax = 3, floodTable
	running := up(t, o)
	host, err := running.AddHost(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("no established connection changes its backend while backends change", func(t *testing.T) {
		t.Cleanup(func() { restore(t, running) })
		connectionsOutlastFloods(t, running, host)
	})
	checkAtRest(t, running)
}

func connectionsOutlastFloods(t *testing.T, running *lab.Lab, host *lab.Host) {
	t.Helper()
	connections := len(running.LoadBalancers())*floodTable/2 - datagramFlows
	remote := startLoad(t, running, 1, connections)
	datagrams := startDatagrams(t, running)
	checkHalfFull(t, running, connections+datagramFlows)
	backends := backendsOf(t, remote)

	before := metrics(t, running)
	flooding := startFlood(t, host)
	weights := running.Weights()
	for _, change := range []struct {
		what string
		do   func() error
	}{
		{"added", func() error { weights["be-4"] = 1; return running.SetWeights(t.Context(), weights) }},
		{"drained", func() error { weights["be-1"] = 0; return running.SetWeights(t.Context(), weights) }},
		{"killed", func() error { return running.KillBackend(t.Context(), 1) }},
	} {
		flooding.wait(t, floodTable*10)
		if err := change.do(); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range running.LoadBalancers() {
		waitState(t, running, name, "echo", "be-2", planv1.BackendState_BACKEND_STATE_DOWN)
	}
	flooding.wait(t, floodTable*10)
	sent := flooding.stop(t)
	datagrams.stop(t, "be-2")

	checkUntracked(t, running, before, sent)
	report, err := remote.Stop()
	if err != nil {
		t.Fatal(err)
	}
	checkOnlyTheDeadBroke(t, report, backends, "be-2")
}

// checkHalfFull: every connection is established (what is not yet may be
// displaced), and the tables are half full, give or take the router's dice.
func checkHalfFull(t *testing.T, running *lab.Lab, connections int) {
	t.Helper()
	const established = `guideway_connections{class="established"}`
	eventually(t, 20*time.Second, "all connections are established", func() error {
		if sum := metrics(t, running)[established]; sum != float64(connections) {
			return fmt.Errorf("%v of %d are", sum, connections)
		}
		return nil
	})
	for _, name := range running.LoadBalancers() {
		if own := metricsOf(t, running, name)[established]; own < floodTable*0.42 || own > floodTable*0.58 {
			t.Errorf("%s has %v connections, not half of %d", name, own, floodTable)
		}
	}
}

// backendsOf the load's connections.
func backendsOf(t *testing.T, remote *load.Remote) map[load.Flow]string {
	t.Helper()
	live, err := remote.Live()
	if err != nil {
		t.Fatal(err)
	}
	backends := map[load.Flow]string{}
	for _, l := range live {
		backends[l.Flow] = l.Backend
	}
	return backends
}

// checkUntracked: what found no place, or lost it, is counted, and nothing
// else is missing.
func checkUntracked(t *testing.T, running *lab.Lab, before map[string]float64, sent int) {
	t.Helper()
	after := metrics(t, running)
	growth := func(sample string) float64 { return grew(t, before, after, sample) }
	inserts, displaced := growth("guideway_connections_inserts_total"), growth("guideway_connections_displaced_total")
	refused := growth(`guideway_connections_refused_total{cause="table_full"}`)
	misses, expired := growth("guideway_connections_misses_total"), growth("guideway_connections_expired_total")
	t.Logf("flood of %d: %v misses, %v inserted, %v displaced, %v refused, %v expired", sent, misses, inserts, displaced, refused, expired)
	// Two machines with room for two entries per connection.
	room := float64(len(running.LoadBalancers()) * 2 * floodTable)
	if misses < float64(sent)*0.9 || displaced < float64(sent)*0.5 {
		t.Errorf("the flood of %d did not get there: %v misses, %v displaced", sent, misses, displaced)
	}
	if misses != inserts+refused {
		t.Errorf("of %v packets without a connection %v were tracked and %v counted as not", misses, inserts, refused)
	}
	if inserts-displaced-expired > room {
		t.Errorf("%v entries are in no table, and not counted", inserts-displaced-expired-room)
	}
	classes := 0.0
	for _, class := range []string{"unconfirmed", "established", "closing"} {
		classes += after[fmt.Sprintf("guideway_connections{class=%q}", class)]
	}
	if classes > room {
		t.Errorf("%v connections in %v entries", classes, room)
	}
}

func checkOnlyTheDeadBroke(t *testing.T, report load.Report, backends map[load.Flow]string, dead string) {
	t.Helper()
	lost := 0
	for _, backend := range backends {
		if backend == dead {
			lost++
		}
	}
	if lost == 0 || report.Broken != lost || report.Messages < len(backends) {
		t.Errorf("%d connections were with %s; %d broke, %d messages came back", lost, dead, report.Broken, report.Messages)
	}
	for _, failure := range report.Failures {
		if failure.Backend != dead {
			t.Errorf("broke without reason: %+v", failure)
		}
	}
}

// datagramFlows are UDP flows that last, beside the TCP connections.
const datagramFlows = 40

// datagrams go to and fro on each flow all the time.
type datagrams struct {
	cancel context.CancelFunc
	work   sync.WaitGroup

	mutex    sync.Mutex
	answered int
	// moved flows: from which backend to which.
	moved [][2]string
}

func startDatagrams(t *testing.T, running *lab.Lab) *datagrams {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	d := &datagrams{cancel: cancel}
	for i := range datagramFlows {
		connection, err := dial(t, running, "udp", netip.Addr{}, lab.EchoVIPs[i%2])
		if err != nil {
			t.Fatal(err)
		}
		d.work.Go(func() { d.converse(ctx, connection) })
	}
	return d
}

// converse on one flow. A datagram may be lost in a flood, or wait in a queue
// behind it; what comes back tells who has the flow.
func (d *datagrams) converse(ctx context.Context, connection net.Conn) {
	defer connection.Close()
	has, answer := "", make([]byte, 100)
	for ; ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		_ = connection.SetDeadline(time.Now().Add(time.Second)) // fails only on what is closed
		if _, err := connection.Write([]byte("hello")); err != nil {
			continue
		}
		n, err := connection.Read(answer)
		if err != nil {
			continue
		}
		backend, _ := backendOf(answer[:n])
		d.mutex.Lock()
		d.answered++
		if has != "" && has != backend {
			d.moved = append(d.moved, [2]string{has, backend})
		}
		d.mutex.Unlock()
		has = backend
	}
}

// stop, and check that flows moved only from the dead backend.
func (d *datagrams) stop(t *testing.T, dead string) {
	t.Helper()
	d.cancel()
	d.work.Wait()
	fromDead := 0
	for _, move := range d.moved {
		if move[0] == dead {
			fromDead++
		} else {
			t.Errorf("a UDP flow moved from %s to %s", move[0], move[1])
		}
	}
	t.Logf("%d datagrams came back, %d of %d flows moved from %s", d.answered, fromDead, datagramFlows, dead)
	// Some third of the flows were there.
	if d.answered < 20*datagramFlows || fromDead == 0 {
		t.Errorf("%d datagrams came back, %d flows moved from %s", d.answered, fromDead, dead)
	}
}

// attack is a flood under way.
type attack struct {
	cancel context.CancelFunc
	// sent tells how many packets, after each batch.
	sent chan int
	end  chan error
	last int
}

// startFlood of all kinds, both families and both protocols, each packet a
// flow of its own, from the host's networks.
func startFlood(t *testing.T, host *lab.Host) *attack {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	a := &attack{cancel: cancel, sent: make(chan int), end: make(chan error, 1)}
	var socket *flood.Socket
	if err := lab.Inside(host.Namespace(), func() (err error) {
		socket, err = flood.Open()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer socket.Close()
		a.end <- a.run(ctx, socket, host.Networks())
	}()
	t.Cleanup(cancel)
	return a
}

// run at the rate, in batches of a hundredth of a second.
func (a *attack) run(ctx context.Context, socket *flood.Socket, networks []netip.Prefix) error {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	random := rand.New(rand.NewPCG(1, 2))
	begun := time.Now()
	for sent := 0; ; {
		for due := int(time.Since(begun).Seconds() * floodRate); sent < due; sent++ {
			if err := socket.Send(floodPacket(random, sent, networks)); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			a.last = sent
			return nil
		case a.sent <- sent:
		case <-ticker.C:
		}
	}
}

// floodPacket by number: kinds take turns, families every three.
func floodPacket(random *rand.Rand, number int, networks []netip.Prefix) []byte {
	kind, family := flood.Kinds[number%len(flood.Kinds)], number/len(flood.Kinds)%2
	source := networks[family].Addr().AsSlice()
	source[len(source)-1] = byte(1 + random.IntN(254))
	address, _ := netip.AddrFromSlice(source) // of the same length: it is one
	vip, port := lab.EchoVIPs[family], uint16(lab.EchoPort)
	if kind != flood.Datagram && random.IntN(2) == 0 {
		vip, port = lab.WebVIPs[family], lab.HTTPPort
	}
	return flood.Packet(kind, netip.AddrPortFrom(address, uint16(1024+random.IntN(60_000))), netip.AddrPortFrom(vip, port))
}

// wait until so many more packets of each kind are sent.
func (a *attack) wait(t *testing.T, each int) {
	t.Helper()
	first := -1
	for limit := time.After(time.Minute); ; {
		select {
		case sent := <-a.sent:
			if first < 0 {
				first = sent
			}
			if sent >= first+each*len(flood.Kinds) {
				return
			}
			time.Sleep(10 * time.Millisecond)
		case err := <-a.end:
			t.Fatalf("the flood ended: %v", err)
		case <-limit:
			t.Fatal("the flood is too slow")
		}
	}
}

// stop, and tell how many packets were sent.
func (a *attack) stop(t *testing.T) int {
	t.Helper()
	a.cancel()
	if err := <-a.end; err != nil {
		t.Fatal(err)
	}
	return a.last
}
