package members

// Against a real server: dnsmasq, which is started, changed and killed.

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/looptest"
)

// A busy machine may be this slow.
const patience = time.Minute

type dnsmasq struct {
	t       *testing.T
	hosts   string
	address netip.AddrPort
	process *exec.Cmd
}

func newDnsmasq(t *testing.T, lists int) *dnsmasq {
	t.Helper()
	if _, err := exec.LookPath("dnsmasq"); err != nil {
		t.Skip("needs dnsmasq: apt install dnsmasq-base")
	}
	d := &dnsmasq{t: t, hosts: filepath.Join(t.TempDir(), "hosts"), address: netip.MustParseAddrPort(looptest.FreeAddress(t))}
	d.lists(lists)
	d.start()
	t.Cleanup(d.kill)
	return d
}

func (d *dnsmasq) start() {
	d.t.Helper()
	d.process = exec.Command("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--local=/internal/", "--user=",
		"--listen-address=127.0.0.1", "--bind-interfaces", "--port="+fmt.Sprint(d.address.Port()), "--addn-hosts="+d.hosts, "--local-ttl=1", "--pid-file=",
		"--srv-host=_http._tcp.internal,a.internal,80,0,3")
	if err := d.process.Start(); err != nil {
		d.t.Fatal(err)
	}
}

func (d *dnsmasq) kill() {
	_ = d.process.Process.Kill()
	_ = d.process.Wait()
}

// lists so many addresses of web.internal, from 10.1.0.0 on. A process that was just
// started would die of the signal.
func (d *dnsmasq) lists(count int) {
	d.t.Helper()
	var b strings.Builder
	b.WriteString("10.1.255.1 a.internal\n")
	for n := range count {
		fmt.Fprintf(&b, "10.1.%d.%d web.internal\n", n>>8, n&255)
	}
	write(d.t, d.hosts, b.String())
	if d.process != nil {
		if err := d.process.Process.Signal(syscall.SIGHUP); err != nil {
			d.t.Fatal(err)
		}
	}
}

// follow a pool from this server.
func (d *dnsmasq) follow(name string) <-chan brain.MembersRead {
	d.t.Helper()
	events := make(chan brain.MembersRead)
	ended := make(chan struct{})
	m := New(func(event brain.Event) {
		select {
		case events <- event.(brain.MembersRead):
		case <-ended:
		}
	})
	m.servers = func() ([]netip.AddrPort, error) { return []netip.AddrPort{d.address}, nil }
	text := fmt.Sprintf(`
machine: {addresses: [10.0.0.1]}
services: [{name: web, vips: [{address: 203.0.113.10}], pools: [web]}]
pools: [{name: web, from: {dns: %s, ttl_min: 1s, ttl_max: 1s}}]
`, name)
	c, err := config.ParseToCompile([]config.Source{{Name: "test.yaml", Data: []byte(text)}}, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	m.Set(c)
	d.t.Cleanup(func() { close(ended); m.Stop() })
	return events
}

// await a read that is so.
func (d *dnsmasq) await(events <-chan brain.MembersRead, what string, is func(brain.MembersRead) bool) {
	d.t.Helper()
	var last brain.MembersRead
	for until := time.After(patience); ; {
		select {
		case last = <-events:
			if is(last) {
				return
			}
		case <-until:
			d.t.Fatalf("%s: not within %s; the last one had %d members, problem %q", what, patience, len(last.Members), last.Problem)
		}
	}
}

func has(count int) func(brain.MembersRead) bool {
	return func(r brain.MembersRead) bool { return r.Problem == "" && len(r.Members) == count }
}

func failed(r brain.MembersRead) bool { return r.Problem != "" }

func TestDnsmasqListsMembersDiesAndComesBack(t *testing.T) {
	d := newDnsmasq(t, 3)
	events := d.follow("web.internal")
	d.await(events, "three", has(3))
	for range 3 { // it flaps
		d.lists(0)
		d.await(events, "none", has(0))
		d.lists(3)
		d.await(events, "three again", has(3))
	}
	d.kill()
	d.await(events, "its death", failed)
	d.start()
	d.await(events, "its return", has(3))
}

func TestDnsmasqListsAThousandMembersByTCP(t *testing.T) {
	d := newDnsmasq(t, 1000)
	d.await(d.follow("web.internal"), "a thousand", has(1000))
}

func TestDnsmasqListsServices(t *testing.T) {
	d := newDnsmasq(t, 0)
	d.await(d.follow("_http._tcp.internal"), "a service", func(r brain.MembersRead) bool { return textOf(r.Members) == "10.1.255.1*3" })
}

func TestAServerThatIsStoppedIsNoEmptySet(t *testing.T) {
	d := newDnsmasq(t, 2)
	events := d.follow("web.internal")
	d.await(events, "two", has(2))
	if err := d.process.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	d.await(events, "silence", func(r brain.MembersRead) bool {
		if r.Problem == "" && len(r.Members) != 2 {
			t.Fatalf("a set of %d members", len(r.Members))
		}
		return failed(r)
	})
	if err := d.process.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	d.await(events, "two again", has(2))
}
