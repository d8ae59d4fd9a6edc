package hosts

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/guideway/guideway/lab/topology"
)

// Where Debian's package has the daemons: not in PATH.
const frrPrograms = "/usr/lib/frr"

// zebra first: it knows the interfaces and writes the kernel's routes for bgpd.
var frrDaemons = []string{"zebra", "bfdd", "bgpd"}

// How long a daemon of FRR may take until it answers.
const frrLimit = 20 * time.Second

// frr is FRR's daemons in the router's namespace. Their configs, sockets and pid
// files are in the lab's run directory, and none of FRR's own places is used.
type frr struct{ lab *Lab }

func (f frr) daemons() []string { return frrDaemons }

func (f frr) path(name string) string { return f.lab.path(f.lab.router(), name) }

// directory of the sockets, as vtysh is told it.
func (f frr) directory() string { return filepath.Clean(f.path("")) }

func (f frr) show() [][2]string {
	return routerRoutes(f.lab, "bgp", fmt.Sprintf("vtysh --vty_socket %s -c 'show bgp ipv4 unicast' -c 'show bgp ipv6 unicast'", f.directory()))
}

// start one daemon after the other: one that does not find zebra's socket waits
// for ten seconds before it tries again.
func (f frr) start() error {
	if err := f.giveDirectory(); err != nil {
		return err
	}
	for _, daemon := range frrDaemons {
		file := f.path(daemon + ".conf")
		if err := writeWhole(file, []byte(frrConfigOf(daemon, f.lab.Network)), 0o644); err != nil {
			return err
		}
		args := []string{"-f", file, "-i", f.path(daemon + ".pid"), "-z", f.path("zserv.api"), "--vty_socket", f.directory(), "-P", "0", "--log", "stdout"}
		if daemon == "bfdd" {
			args = append(args, "--bfdctl", f.path("bfdd.sock"))
		}
		if err := f.lab.start(f.lab.router(), daemon, filepath.Join(frrPrograms, daemon), args...); err != nil {
			return err
		}
		err := waitFor(context.Background(), frrLimit, daemon+" of the router", func() error {
			_, err := f.vtysh(daemon, "show version")
			return err
		})
		if err != nil {
			return fmt.Errorf("%w: see %s", err, f.path(daemon+".log"))
		}
	}
	return nil
}

// giveDirectory to FRR's user: the daemons run as that one, and make sockets there.
func (f frr) giveDirectory() error {
	owner, err := user.Lookup("frr")
	if err != nil {
		return fmt.Errorf("run FRR: %w", err)
	}
	uid, err := strconv.Atoi(owner.Uid)
	if err != nil {
		return fmt.Errorf("run FRR as user frr: %w", err)
	}
	gid, err := strconv.Atoi(owner.Gid)
	if err != nil {
		return fmt.Errorf("run FRR as user frr: %w", err)
	}
	if err := os.Chown(f.directory(), uid, gid); err != nil {
		return fmt.Errorf("give FRR its directory: %w", err)
	}
	for at := filepath.Dir(f.directory()); at != "/"; at = filepath.Dir(at) {
		if info, err := os.Stat(at); err != nil || info.Mode().Perm()&1 == 0 {
			return fmt.Errorf("run FRR: its user frr may not enter %s: chmod o+x it, or give another --run-dir", at)
		}
	}
	return nil
}

func (f frr) reset(_ context.Context, n topology.Node) error {
	_, err := f.vtysh("bgpd", fmt.Sprintf("clear bgp %s", n.Address(0)))
	return err
}

func (f frr) vtysh(daemon, command string) (string, error) {
	return topology.Output(context.Background(), "", "vtysh", "--vty_socket", f.directory(), "-d", daemon, "-c", command)
}

func frrConfigOf(daemon string, network topology.Network) string {
	switch daemon {
	case "zebra":
		return zebraConfig
	case "bgpd":
		return frrConfig(network)
	}
	return ""
}

// zebraConfig: each route has its own next hops in the kernel. With nexthop groups,
// the default, the kernel takes a machine out of the group when its link goes down,
// and FRR 8.4 does not put it back when the link is up again, though it shows both.
const zebraConfig = "! Written by guideway-lab.\nno zebra nexthop kernel enable\n"

// frrConfig of bgpd.
func frrConfig(network topology.Network) string {
	var b strings.Builder
	fmt.Fprintf(&b, `! Written by guideway-lab.
%[2]sroute-map from-machine permit 10
 match ip address prefix-list vips
route-map from-machine permit 20
 match ipv6 address prefix-list vips
route-map nothing deny 10
router bgp %[1]d
 bgp router-id 10.10.255.254
 no bgp default ipv4-unicast
 ! Equal routes become one multipath route of the kernel (ECMP), also of machines
 ! in different ASes.
 bgp bestpath as-path multipath-relax
 neighbor machines peer-group
 neighbor machines remote-as %[3]d
 neighbor machines passive
 neighbor machines timers 3 9
 ! Finds a machine that hangs; as slow as BIRD's, since two cores play all machines.
 neighbor machines bfd 5 200 200
`, topology.ASNRouter, frrPrefixLists(network), topology.ASNMachines)
	for _, n := range network.LoadBalancers {
		fmt.Fprintf(&b, " neighbor %[1]s peer-group machines\n neighbor %[1]s update-source %[2]s\n", n.Address(0), n.Gateway(0))
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		fmt.Fprintf(&b, ` address-family %s unicast
  neighbor machines activate
  neighbor machines route-map from-machine in
  neighbor machines route-map nothing out
  maximum-paths %d
 exit-address-family
`, family, frrPathsMax)
	}
	return b.String()
}

// What Debian's FRR was built for; the default is the same.
const frrPathsMax = 256

// frrPrefixLists named vips, one per family: the VIP prefixes and the addresses in
// them.
func frrPrefixLists(network topology.Network) string {
	var b strings.Builder
	for i, prefix := range network.VIPPrefixes() {
		words := "ip"
		if prefix.Addr().Is6() {
			words = "ipv6"
		}
		fmt.Fprintf(&b, "%[1]s prefix-list vips seq %[2]d permit %[3]s\n%[1]s prefix-list vips seq %[4]d permit %[3]s ge %[5]d\n",
			words, 10*i+5, prefix, 10*i+6, prefix.Addr().BitLen())
	}
	return b.String()
}
