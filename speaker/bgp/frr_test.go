package bgp

// FRR as Debian has it, in a namespace, with files of its own: whatever FRR runs
// on this machine besides is left alone.

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const frrPrograms = "/usr/lib/frr"

func whyNoFRR() string {
	for _, daemon := range []string{"zebra", "bgpd", "bfdd"} {
		if _, err := os.Stat(filepath.Join(frrPrograms, daemon)); err != nil {
			return "needs " + daemon + " (Debian package frr)"
		}
	}
	return ""
}

type frr struct {
	*namespace
	dir string
}

func startFRR(t *testing.T, n *namespace, s side) *frr {
	t.Helper()
	f := &frr{n, frrDirectory(t)}
	// zebra knows the interfaces, which BFD and next hops need.
	for _, daemon := range []string{"zebra", "bfdd", "bgpd"} {
		file := filepath.Join(f.dir, daemon+".conf")
		config := ""
		if daemon == "bgpd" {
			config = frrConfig(s)
		}
		if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
		args := []string{
			filepath.Join(frrPrograms, daemon), "-f", file, "-i", filepath.Join(f.dir, daemon+".pid"), "-z", filepath.Join(f.dir, "zserv.api"),
			"--vty_socket", f.dir, "-P", "0",
		}
		if daemon == "bfdd" {
			args = append(args, "--bfdctl", filepath.Join(f.dir, "bfdd.sock"))
		}
		n.start(args...)
		eventually(t, 10*time.Second, daemon+" answers", func() bool {
			_, err := f.vtysh(daemon, "show version")
			return err == nil
		})
	}
	return f
}

// FRR's daemons drop to their own user, who cannot look into t.TempDir.
func frrDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "guideway-frr-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	run(t, "chown", "frr:frr", dir)
	return dir
}

func frrConfig(s side) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	neighbor := func(format string, args ...any) { line(" neighbor "+s.neighbor+" "+format, args...) }
	line("router bgp %d", s.asn)
	line(" bgp router-id 192.0.2.254")
	line(" no bgp ebgp-requires-policy")
	line(" no bgp default ipv4-unicast")
	neighbor("remote-as 64512")
	neighbor("update-source %s", s.local)
	neighbor("timers connect 1")
	if s.password != "" {
		neighbor("password %s", s.password)
	}
	if s.ttlSecurity {
		neighbor("ttl-security hops 1")
	}
	if s.bfd {
		neighbor("bfd 3 100 100")
	}
	if s.waits {
		neighbor("passive")
	}
	if s.multihop > 0 {
		neighbor("ebgp-multihop %d", s.multihop)
	}
	if s.withExtendedNextHop {
		neighbor("capability extended-nexthop")
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		line(" address-family %s unicast", family)
		neighbor("activate")
		line(" exit-address-family")
	}
	return b.String()
}

func (f *frr) vtysh(daemon, command string) (string, error) {
	out, err := exec.Command("vtysh", "--vty_socket", f.dir, "-d", daemon, "-c", command).Output()
	return string(out), err
}

func (f *frr) bfdIsUp() bool {
	out, _ := f.vtysh("bfdd", "show bfd peers json")
	return strings.Contains(out, `"status":"up"`)
}

func showRoute(prefix string) string {
	family := "ipv4"
	if netip.MustParsePrefix(prefix).Addr().Is6() {
		family = "ipv6"
	}
	return "show bgp " + family + " unicast " + prefix
}

func (f *frr) explain(prefix string) string {
	var shown strings.Builder
	for _, command := range []string{"show bgp neighbors", "show bgp nexthop", showRoute(prefix)} {
		out, err := f.vtysh("bgpd", command)
		fmt.Fprintf(&shown, "%s: %v\n%s\n", command, err, out)
	}
	return shown.String()
}

// learned also demands that FRR takes the route for usable.
func (f *frr) learned(prefix string) learned {
	out, err := f.vtysh("bgpd", showRoute(prefix)+" json")
	if err != nil {
		f.t.Fatal(err)
	}
	type text struct{ String string }
	var entry struct {
		Paths []struct {
			Valid          bool
			ASPath         text
			Metric         *uint32
			LocPrf         *uint32
			Community      text
			LargeCommunity text
			NextHops       []struct{ IP, Scope string }
		}
	}
	if err := json.Unmarshal([]byte(out), &entry); err != nil {
		f.t.Fatalf("%v in %s", err, out)
	}
	if len(entry.Paths) != 1 || !entry.Paths[0].Valid {
		return learned{}
	}
	path := entry.Paths[0]
	found := learned{path: path.ASPath.String, communities: path.Community.String, large: path.LargeCommunity.String}
	found.communities = strings.ReplaceAll(found.communities, "graceful-shutdown", "65535:0")
	if found.path == "Local" {
		found.path = ""
	}
	for _, hop := range path.NextHops {
		if hop.Scope != "link-local" {
			found.nextHop = hop.IP
		}
	}
	if path.Metric != nil {
		found.med = fmt.Sprint(*path.Metric)
	}
	found.localPref = "100" // FRR names it for routes of its own AS only
	if path.LocPrf != nil {
		found.localPref = fmt.Sprint(*path.LocPrf)
	}
	return found
}
