package scenarios_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

// vipResets counts the RSTs that backends' kernels send from VIPs since it began. The
// kernels' own counter has others, too: a health check of a server that greets ends with
// an RST from the load balancer, and the ACK behind it is answered by another.
type vipResets struct {
	t   *testing.T
	lab *hosts.Lab
}

const resetsTable = "inet guideway_vip_resets"

func countVIPResets(t *testing.T, running *hosts.Lab) vipResets {
	t.Helper()
	script := fmt.Sprintf(`table %[1]s
delete table %[1]s
table %[1]s {
	counter sent {
	}
	chain output {
		type filter hook output priority 0
		ip saddr %[2]s tcp flags & rst == rst counter name sent
		ip6 saddr %[3]s tcp flags & rst == rst counter name sent
	}
}
`, resetsTable, topology.VIPPrefix4, topology.VIPPrefix6)
	for _, n := range running.Network.Backends {
		command := exec.CommandContext(t.Context(), "ip", "netns", "exec", n.Namespace, "nft", "-f", "-")
		command.Stdin = strings.NewReader(script)
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("nft on %s: %v: %s", n.Name, err, out)
		}
	}
	return vipResets{t, running}
}

// of one backend.
func (r vipResets) of(backend string) (sent uint64, err error) {
	n, err := r.lab.Network.Node(backend)
	if err != nil {
		return 0, err
	}
	out, err := exec.CommandContext(cleanUp(r.t), "ip", "netns", "exec", n.Namespace, "nft", "list counter "+resetsTable+" sent").Output()
	if err != nil {
		return 0, fmt.Errorf("read RSTs of %s: %w", backend, err)
	}
	_, count, found := strings.Cut(string(out), "packets ")
	if _, err := fmt.Sscan(count, &sent); !found || err != nil {
		return 0, fmt.Errorf("no RSTs of %s in %q", backend, out)
	}
	return sent, nil
}

// check that there was none but for those that are excused, by backend; true: so it is.
func (r vipResets) check(excused map[string]uint64) bool {
	r.t.Helper()
	none := true
	for _, backend := range r.lab.Backends() {
		if sent, err := r.of(backend); err != nil {
			r.t.Error(err)
			none = false
		} else if sent != excused[backend] {
			r.t.Errorf("the kernel of %s sent %d RSTs from VIPs, of which %d are excused", backend, sent, excused[backend])
			none = false
		}
	}
	return none
}
