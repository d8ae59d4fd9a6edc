package vrrp

// keepalived as Debian has it, beside our machine, as the owner and as the backup.
//
// keepalived 2.2 takes the pseudo-header into the checksums of IPv4, and so do we here.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/speaker/vrrp/election"
)

type keepalived struct {
	*host
	process *exec.Cmd
}

func (n *network) keepalived(number, priority byte) *keepalived {
	n.t.Helper()
	program, err := exec.LookPath("keepalived")
	if err != nil {
		n.t.Skip("keepalived test: needs keepalived (Debian package keepalived)")
	}
	k := &keepalived{host: n.host(number, "second")}
	// A virtual router of IPv6 has a link-local address first (RFC 9568, section 5.2.9).
	config := fmt.Sprintf(`global_defs { vrrp_version 3 }
vrrp_instance v4 {
	state BACKUP
	interface eth0
	virtual_router_id %[1]d
	priority %[2]d
	advert_int 0.1
	virtual_ipaddress { %[3]s/32 dev eth0 }
}
vrrp_instance v6 {
	state BACKUP
	interface eth0
	virtual_router_id %[1]d
	priority %[2]d
	advert_int 0.1
	virtual_ipaddress {
		fe80::200:5eff:fe00:2%02[1]x/128 dev eth0
		%[4]s/128 dev eth0
	}
}
`, vrid, priority, vip4, vip6)
	dir := n.t.TempDir()
	file := filepath.Join(dir, "keepalived.conf")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		n.t.Fatal(err)
	}
	k.process = exec.Command(program, "--vrrp", "--dont-fork", "--log-console", "--use-file", file,
		"--pid", filepath.Join(dir, "pid"), "--vrrp_pid", filepath.Join(dir, "vrrp.pid"))
	k.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it has a child
	k.process.Stdout, k.process.Stderr = n.t.Output(), n.t.Output()
	if err := topology.Inside(k.namespace, k.process.Start); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(k.kill)
	return k
}

// kill it and its child at once: nothing is resigned.
func (k *keepalived) kill() {
	_ = unix.Kill(-k.process.Process.Pid, unix.SIGKILL)
	_ = k.process.Wait()
}

// await that it owns both VIPs, or neither: it has on its interface what it owns.
func (k *keepalived) await(isOwner bool) {
	k.t.Helper()
	has := func(vip fmt.Stringer) bool {
		out, err := exec.Command("ip", "-n", k.namespace, "-o", "address", "show", "dev", "eth0", "to", vip.String()).Output()
		return err == nil && len(out) > 0
	}
	if !eventually(10*time.Second, func() bool { return has(vip4) == isOwner && has(vip6) == isOwner }) {
		k.t.Fatalf("keepalived owns IPv4's VIP: %t, IPv6's: %t, want %t", has(vip4), has(vip6), isOwner)
	}
}

func TestKeepalivedIsABackupOfOursAndTakesOver(t *testing.T) {
	n := newNetwork(t)
	ours := n.machine(1, 250, "second", pseudoHeader)
	ours.await(election.Active)
	theirs := n.keepalived(2, 100)
	time.Sleep(2 * time.Second) // several of its waits
	theirs.await(false)
	n.expectReaches(ours)
	if c := ours.now().Counts; c.SecondOwners > 0 || c.OtherChecksums > 0 {
		t.Errorf("%+v", c)
	}
	ours.signal(unix.SIGTERM)
	theirs.await(true)
	ours.start()
	ours.await(election.Active)
	theirs.await(false)
	n.expectReaches(ours)
	ours.kill()
	theirs.await(true)
}

func TestKeepalivedIsTheOwnerAndOursTakesOver(t *testing.T) {
	n := newNetwork(t)
	theirs := n.keepalived(2, 254)
	theirs.await(true)
	ours := n.machine(1, 200, "second", pseudoHeader)
	ours.awaitBackupOf(254)
	theirs.kill()
	ours.await(election.Active)
	n.expectReaches(ours)
}
