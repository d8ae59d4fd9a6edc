package scenarios_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/lab/traffic/flood"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// What people ask when something goes nowhere, of machines that forward: the
// answers are held against what was seen to happen.
func TestDiagnostics(t *testing.T) {
	running := up(t, options(t, "questions"))
	host, err := running.Network.AddHost(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, vip := range topology.EchoVIPs {
		t.Run("explain says where a connection to "+vip.String()+" is, and would be", func(t *testing.T) {
			explainTellsTheTruth(t, running, vip)
		})
	}
	t.Run("capture and show drops have what was dropped", func(t *testing.T) {
		dropsAreShown(t, running, host)
	})
	t.Run("doctor finds what is wrong on a sick machine, and nothing on a sound one", func(t *testing.T) {
		doctorKnows(t, running)
	})
	t.Run("events say what became of that machine, and who drained what on the other", func(t *testing.T) {
		eventsAreTold(t, running)
	})
}

// on asks something of a load balancer, in its namespace.
func on(t *testing.T, running *hosts.Lab, machine string, args ...string) (string, error) {
	t.Helper()
	namespace := ""
	for _, node := range running.Status() {
		if node.Node == machine {
			namespace = node.Namespace
		}
	}
	return guideway(t, running, namespace, append(args, "--run-dir", filepath.Join(running.Options().RunDir, machine, "run"))...)
}

func explain(t *testing.T, running *hosts.Lab, machine string, c conversation) *forwarderv1.ExplainResponse {
	t.Helper()
	told := explainFlow(t, running, machine, c.client(), c.server())
	if told.Verdict != "sent" || told.Service != "echo" || told.NextHop == nil || told.NextHop.Mac == "" {
		t.Errorf("%s says %+v", machine, told)
	}
	return told
}

// shownState is what a command prints by -o json, which is one field of a state.
func shownState(out, field string) (*controllerv1.GetStateResponse, error) {
	state := &controllerv1.GetStateResponse{}
	return state, protojson.Unmarshal([]byte(`{"`+field+`": `+out+"}"), state)
}

func explainFlow(t *testing.T, running *hosts.Lab, machine string, client, server netip.AddrPort) *forwarderv1.ExplainResponse {
	t.Helper()
	out, err := on(t, running, machine, "explain", "tcp", client.String(), server.String(), "-o", "json")
	told := &forwarderv1.ExplainResponse{}
	if err == nil {
		err = protojson.Unmarshal([]byte(out), told)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return told
}

// explainTellsTheTruth before the connection's backend drains, and after: then
// only the machine whose table has it still sends it there.
func explainTellsTheTruth(t *testing.T, running *hosts.Lab, vip netip.Addr) {
	t.Helper()
	t.Cleanup(func() { restore(t, running) })
	c := converse(t, running, vip)
	right, wrong := machinesOf(t, running, c)
	for _, machine := range []string{right, wrong} {
		told := explain(t, running, machine, c)
		if told.Backend != c.backend || told.BackendByHash != c.backend || (told.Tracked != nil) != (machine == right) {
			t.Errorf("%s has the connection, at %s; %s says %+v", right, c.backend, machine, told)
		}
	}
	weights := running.Weights()
	weights[c.backend] = 0
	if err := running.SetWeights(t.Context(), weights); err != nil {
		t.Fatal(err)
	}
	for _, machine := range []string{right, wrong} {
		waitState(t, running, machine, "echo", c.backend, planv1.BackendState_BACKEND_STATE_DRAINING)
		told := explain(t, running, machine, c)
		stays := told.Tracked != nil && told.Tracked.Decides && told.Tracked.Backend == c.backend && told.Backend == c.backend
		if told.BackendByHash == c.backend || stays != (machine == right) || stays == (told.Backend == told.BackendByHash) {
			t.Errorf("%s drains, and %s has a connection there; %s says %+v", c.backend, right, machine, told)
		}
	}
	if err := c.transfer(10_000, fileLimit); err != nil {
		t.Errorf("on the draining %s: %v", c.backend, err)
	}
}

// dropsAreShown: packets to a port of a VIP that no service has.
func dropsAreShown(t *testing.T, running *hosts.Lab, host *topology.Host) {
	t.Helper()
	const closedPort, captured, each = 4711, 10, 200
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("reading captures needs tshark: tools/install-deps.sh lab installs it")
	}
	file := filepath.Join(t.TempDir(), "drops.pcapng")
	done := startCapture(t, running, "lb-1", file, "--reason", "no_service", "--count", fmt.Sprint(captured))
	// Sent again and again: nothing reports when the capture has begun.
	eventually(t, 20*time.Second, "the capture is full", func() error {
		sendAs(t, host, each, func(i int) []byte {
			family := i % 2
			return flood.Packet(flood.SYN, netip.AddrPortFrom(host.Addresses()[family], uint16(10_000+i)), netip.AddrPortFrom(topology.WebVIPs[family], closedPort))
		})
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return nil
		case <-time.After(100 * time.Millisecond):
			return errors.New("it is not")
		}
	})
	packets := tshark(t, file)
	if len(packets) != captured {
		t.Errorf("the capture has %d packets, not %d", len(packets), captured)
	}
	for _, packet := range packets {
		if !strings.Contains(packet.complaint, "dropped: no_service") {
			t.Errorf("its frame %s says %q", packet.number, packet.complaint)
		}
	}
	counted := func() float64 {
		return metricsOf(t, running, "lb-1")[`guideway_drop_packets_total{reason="no_service"}`]
	}
	var dropped float64
	var out string
	var err error
	eventually(t, 10*time.Second, "the last packets that were sent are dropped", func() error {
		dropped = counted()
		out, err = on(t, running, "lb-1", "show", "drops", "-o", "json")
		if after := counted(); after != dropped {
			return fmt.Errorf("%v before and %v after", dropped, after)
		}
		return nil
	})
	var shown struct {
		Dropped []struct {
			Reason  string
			Packets float64
			Latest  []struct{ Packet string }
		}
	}
	if err == nil {
		err = json.Unmarshal([]byte(out), &shown)
	}
	if err != nil || len(shown.Dropped) == 0 || shown.Dropped[0].Reason != "no_service" || shown.Dropped[0].Packets != dropped ||
		len(shown.Dropped[0].Latest) == 0 || !strings.Contains(shown.Dropped[0].Latest[0].Packet, fmt.Sprint(closedPort)) {
		t.Errorf("of %v drops: %s, %v", dropped, out, err)
	}
}

// startCapture on a machine; how it ended comes by the channel.
func startCapture(t *testing.T, running *hosts.Lab, machine, file string, args ...string) <-chan error {
	t.Helper()
	program := filepath.Join(running.Options().BinDir, "guideway")
	args = append([]string{"capture", "-w", file, "--run-dir", filepath.Join(running.Options().RunDir, machine, "run")}, args...)
	capture := exec.CommandContext(t.Context(), program, args...)
	var said strings.Builder
	capture.Stderr = &said
	if err := capture.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		err := capture.Wait()
		if err != nil {
			err = fmt.Errorf("capture: %w: %s", err, said.String())
		}
		done <- err
	}()
	return done
}

func doctorKnows(t *testing.T, running *hosts.Lab) {
	t.Helper()
	t.Cleanup(func() { restore(t, running) })
	if out, err := on(t, running, "lb-1", "doctor"); err != nil || strings.Contains(out, "fail") || !strings.Contains(out, "ok") {
		t.Errorf("a sound machine: %v\n%s", err, out)
	}
	if err := syscall.Kill(pidOf(t, running, "lb-2", "forwarder"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "doctor finds that the forwarder is dead", func() error {
		out, err := on(t, running, "lb-2", "doctor")
		if err == nil || !strings.Contains(out, "fail  forwarder") {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// eventsAreTold of the forwarder that doctorKnows has killed, and of a command.
func eventsAreTold(t *testing.T, running *hosts.Lab) {
	t.Helper()
	for _, drain := range []string{"drain", "undrain"} {
		if out, err := on(t, running, "lb-1", drain, "backend", running.Backends()[0]); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	// Each list in this order.
	for machine, lists := range map[string][][]string{
		"lb-1": {{"drain backend be-1: undrained to drained: by command (by root)", "drain backend be-1: drained to undrained: by command (by root)"}},
		"lb-2": {
			{"controller controller: started", "config config: 1 in use", "forwarder forwarder: healthy to unhealthy", "forwarder forwarder: unhealthy to healthy"},
			{"route 203.0.113.10/32: withdrawn to announced", "route 203.0.113.10/32: announced to withdrawn", "speaker routes: withheld to announced"},
		},
	} {
		eventually(t, 20*time.Second, machine+" has the events", func() error {
			out, err := on(t, running, machine, "events")
			for _, sentences := range lists {
				rest := out
				for _, sentence := range sentences {
					_, after, found := strings.Cut(rest, sentence)
					if !found {
						return fmt.Errorf("%q is missing in %q: %w\n%s", sentence, sentences, err, out)
					}
					rest = after
				}
			}
			return err
		})
	}
}
