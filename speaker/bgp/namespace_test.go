package bgp

// Real routers run in a network namespace of their own, joined to the test's
// namespace by a veth pair. Both namespaces live as long as their processes, so
// nothing is left behind.

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/guideway/guideway/looptest"
)

func TestMain(m *testing.M) {
	if whyNoBird() == "" {
		looptest.AllInNamespace()
	}
	// GoBGP 4.8 leaves one behind for each session that ended.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/eapache/channels.(*InfiniteChannel).infiniteBuffer"))
}

func whyNoBird() string {
	if os.Getuid() != 0 {
		return "needs root, to make network namespaces"
	}
	for _, tool := range []string{"bird", "birdc", "ip", "unshare", "nsenter", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "needs " + tool + " (Debian packages bird2, iproute2, util-linux, nftables)"
		}
	}
	return ""
}

// namespace of a router, 192.0.2.254 and 2001:db8:0:1::fe; we are 192.0.2.1 and
// 2001:db8:0:1::1 on the link between.
type namespace struct {
	t   *testing.T
	pid string
}

func newNamespace(t *testing.T) *namespace {
	t.Helper()
	if why := whyNoBird(); why != "" {
		t.Skip("BIRD test: " + why)
	}
	holder := exec.Command("unshare", "--net", "sleep", "600")
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { holder.Process.Kill(); holder.Wait() })
	n := &namespace{t: t, pid: strconv.Itoa(holder.Process.Pid)}
	n.waitUntilItsOwn()
	run(t, "ip", "link", "set", "lo", "up")
	run(t, "ip", "link", "add", "gw-lb", "type", "veth", "peer", "name", "gw-router", "netns", n.pid)
	t.Cleanup(func() { exec.Command("ip", "link", "del", "gw-lb").Run() })
	for _, address := range []string{"192.0.2.1/24", "2001:db8:0:1::1/64"} {
		run(t, "ip", "addr", "add", address, "dev", "gw-lb", "nodad")
	}
	run(t, "ip", "link", "set", "gw-lb", "up")
	n.inside("ip", "link", "set", "lo", "up")
	for _, address := range []string{"192.0.2.254/24", "2001:db8:0:1::fe/64"} {
		n.inside("ip", "addr", "add", address, "dev", "gw-router", "nodad")
	}
	// Trap: FRR refuses every session over IPv6 where the interface has no link-local address,
	// and never learns of one that comes while its bgpd starts. So it is there at once.
	n.inside("sysctl", "-qw", "net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.gw-router.accept_dad=0")
	n.inside("ip", "link", "set", "gw-router", "up")
	return n
}

// Between fork and unshare the process is still in our namespace.
func (n *namespace) waitUntilItsOwn() {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		n.t.Fatal(err)
	}
	eventually(n.t, 5*time.Second, "the router has its own namespace", func() bool {
		theirs, err := os.Readlink("/proc/" + n.pid + "/ns/net")
		return err == nil && theirs != own
	})
}

func (n *namespace) inside(args ...string) {
	n.t.Helper()
	run(n.t, "nsenter", append([]string{"-t", n.pid, "-n"}, args...)...)
}

// start a daemon in the foreground, which ends with the test.
func (n *namespace) start(args ...string) {
	n.t.Helper()
	daemon := exec.Command("nsenter", append([]string{"-t", n.pid, "-n"}, args...)...)
	daemon.Stderr = os.Stderr
	if err := daemon.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { daemon.Process.Kill(); daemon.Wait() })
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// eventually waits for another process, which no fake clock reaches.
func eventually(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (n *namespace) output(args ...string) string {
	out, _ := exec.Command("nsenter", append([]string{"-t", n.pid, "-n"}, args...)...).CombinedOutput()
	return string(out)
}
