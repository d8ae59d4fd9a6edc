package vrrp

// FRR's vrrpd as Debian has it, beside our machine, as the owner and as the backup. It
// wants an interface with the virtual router's MAC address and the VIPs for each family.
//
// FRR 8.4 takes the pseudo-header into the checksums of IPv4, and so do we here.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/speaker/vrrp/election"
)

const frrPrograms = "/usr/lib/frr"

func whyNoFRR() string {
	for _, daemon := range []string{"zebra", "vrrpd"} {
		if _, err := os.Stat(filepath.Join(frrPrograms, daemon)); err != nil {
			return "needs " + daemon + " (Debian package frr)"
		}
	}
	return ""
}

type frr struct {
	*host
	dir string
}

func (n *network) frr(number, priority byte) *frr {
	n.t.Helper()
	if why := whyNoFRR(); why != "" {
		n.t.Skip("FRR test: " + why)
	}
	f := &frr{host: n.host(number, "second")}
	for i, vip := range []string{vip4.String() + "/32", vip6.String() + "/128 nodad"} {
		name := fmt.Sprintf("vrrp%d", i)
		ip(n.t, f.namespace,
			fmt.Sprintf("link add %s link eth0 address 00:00:5e:00:%02d:%02x type macvlan mode bridge", name, i+1, vrid),
			fmt.Sprintf("addr add %s dev %s", vip, name), fmt.Sprintf("link set %s up", name))
	}
	f.dir = frrDirectory(n.t)
	config := fmt.Sprintf(`interface eth0
 vrrp %[1]d
 vrrp %[1]d priority %[2]d
 vrrp %[1]d advertisement-interval 100
 vrrp %[1]d ip %[3]s
 vrrp %[1]d ipv6 %[4]s
`, vrid, priority, vip4, vip6)
	f.start("zebra", "")
	f.start("vrrpd", config)
	return f
}

// FRR's daemons drop to their own user, who cannot look into t.TempDir.
func frrDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "guideway-frr-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	run(t, "chown", "frr:frr", dir)
	return dir
}

func (f *frr) start(daemon, config string) {
	f.t.Helper()
	file := filepath.Join(f.dir, daemon+".conf")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		f.t.Fatal(err)
	}
	process := exec.Command(filepath.Join(frrPrograms, daemon), "-f", file, "-i", filepath.Join(f.dir, daemon+".pid"),
		"-z", filepath.Join(f.dir, "zserv.api"), "--vty_socket", f.dir, "-P", "0")
	process.Stderr = f.t.Output()
	if err := topology.Inside(f.namespace, process.Start); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	if !eventually(10*time.Second, func() bool { return f.vtysh(daemon, "show version") != "" }) {
		f.t.Fatalf("FRR's %s does not answer", daemon)
	}
}

func (f *frr) vtysh(daemon, command string) string {
	out, _ := exec.Command("vtysh", "--vty_socket", f.dir, "-d", daemon, "-c", command).Output()
	return string(out)
}

// await both families in that state.
func (f *frr) await(state string) {
	f.t.Helper()
	if !eventually(10*time.Second, func() bool {
		return strings.Count(f.vtysh("vrrpd", "show vrrp"), "  "+state+" ") == 2
	}) {
		f.t.Fatalf("FRR is not %s in both families:\n%s", state, f.vtysh("vrrpd", "show vrrp"))
	}
}

func pseudoHeader(d *Desired) { d.PseudoHeader = true }

func TestFRRIsABackupOfOursAndTakesOver(t *testing.T) {
	n := newNetwork(t)
	ours := n.machine(1, 250, "second", pseudoHeader)
	ours.await(election.Active)
	n.expectReaches(ours)
	theirs := n.frr(2, 100)
	theirs.await("Backup")
	time.Sleep(time.Second) // three of its waits
	theirs.await("Backup")
	if c := ours.now().Counts; c.SecondOwners > 0 || c.OtherChecksums > 0 {
		t.Errorf("%+v", c)
	}
	c := n.client.capture()
	ours.signal(unix.SIGTERM)
	theirs.await("Master")
	ours.start()
	ours.await(election.Active)
	theirs.await("Backup")
	n.expectReaches(ours)
	ours.kill()
	theirs.await("Master")
	for _, s := range c.all() {
		if s.advertises && s.priority == 100 {
			return
		}
	}
	t.Error("no advertisement of FRR was seen")
}

func TestFRRIsTheOwnerAndOursTakesOver(t *testing.T) {
	n := newNetwork(t)
	theirs := n.frr(2, 254)
	theirs.await("Master")
	ours := n.machine(1, 200, "second", pseudoHeader)
	ours.awaitBackupOf(254)
	theirs.vtysh("vrrpd", "configure terminal\ninterface eth0\nvrrp 51 shutdown")
	ours.await(election.Active)
	n.expectReaches(ours)
}
