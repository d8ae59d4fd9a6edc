package config

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/statedir"
	"github.com/guideway/guideway/packaging"
	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// elsewhere is of another network than any machine's: the route to it is the default one.
const elsewhere = "192.0.2.1"

// InitCommand is `guideway init`.
func InitCommand() *cobra.Command {
	var a answers
	var file string
	command := &cobra.Command{
		Use:   "init",
		Short: "Write a first configuration, from flags or a few questions",
		Long: "Writes a configuration for one service. What the flags do not say is asked, on a\n" +
			"terminal. Interface and address come from this machine's routes. The configuration is\n" +
			"checked before it is written, and the command that sets up each server is printed.\n" +
			"An existing configuration is never changed, unless it is the installed example.",
		Example: "  guideway init\n" +
			"  guideway init --vip 203.0.113.10 --ports 80,443 --servers 10.1.0.11,10.1.0.12 \\\n" +
			"    --bgp-router 10.0.0.254 --bgp-router-asn 64513 --bgp-asn 64512",
		Args: commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := isFree(file, "--file"); err != nil {
				return err
			}
			person := command.InOrStdin()
			if !commandline.IsTerminal(person) {
				person = nil
			}
			if err := a.complete(person, command.OutOrStdout()); err != nil {
				return err
			}
			return a.write(file, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.StringVar(&a.vip, "vip", "", "`ADDRESS` that clients connect to")
	flags.StringVar(&a.ports, "ports", "", "the service's TCP `PORTS`, as in 80,443")
	flags.StringVar(&a.servers, "servers", "", "`ADDRESSES` of the servers, as in 10.1.0.11,10.1.0.12")
	flags.StringVar(&a.device, "interface", "", "`NAME` of the interface that clients' packets arrive on (default: by the routes)")
	flags.StringVar(&a.address, "address", "", "this machine's `ADDRESS`, from which tunnels begin (default: by the routes)")
	flags.StringVar(&a.router, "bgp-router", "", "`ADDRESS` of the router that speaks BGP, or none")
	flags.StringVar(&a.routerASN, "bgp-router-asn", "", "the router's AS `NUMBER`")
	flags.StringVar(&a.asn, "bgp-asn", "", "this cluster's AS `NUMBER`")
	flags.StringVar(&a.service, "service", "web", "`NAME` of the service")
	flags.StringVar(&file, "file", machine.ConfigDefault, "the `FILE` to write")
	return command
}

// answers of flags or of a person, as they were given.
type answers struct {
	service, vip, ports, servers, device, address string
	router, routerASN, asn                        string
}

// isFree says whether a config may be written there.
func isFree(file, flag string) error {
	text, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && string(text) == packaging.ExampleConfig:
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%s is there already, and stays as it is: give another %s, or change it and try `guideway config check %s`", file, flag, file)
}

// complete asks what is missing, if there is somebody to ask. An empty line takes what is
// in brackets.
func (a *answers) complete(person io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(strings.NewReader(""))
	if person != nil {
		lines = bufio.NewScanner(person)
	}
	nothing := func() string { return "" }
	fixed := func(text string) func() string { return func() string { return text } }
	for _, question := range []struct {
		flag, text string
		answer     *string
		assumed    func() string
	}{
		{"--vip", "Address that clients connect to (the VIP)", &a.vip, nothing},
		{"--ports", "Its TCP ports", &a.ports, fixed("80,443")},
		{"--servers", "Addresses of the servers", &a.servers, nothing},
		{"--bgp-router", "Address of the router that speaks BGP", &a.router, fixed("none")},
		{"--bgp-router-asn", "The router's AS number", &a.routerASN, nothing},
		{"--bgp-asn", "This cluster's AS number", &a.asn, fixed("64512")},
		{"--interface", "Interface that clients' packets arrive on", &a.device, func() string { return interfaceTo(elsewhere, a.servers) }},
		{"--address", "This machine's address", &a.address, func() string { return sourceTo(a.servers) }},
	} {
		if *question.answer != "" || a.router == "none" && strings.HasSuffix(question.flag, "-asn") {
			continue
		}
		assumed := question.assumed()
		if person != nil {
			fmt.Fprintf(out, "%s [%s]: ", question.text, assumed)
			if lines.Scan() {
				*question.answer = strings.TrimSpace(lines.Text())
			}
		}
		if *question.answer == "" {
			*question.answer = assumed
		}
		if *question.answer == "" {
			return commandline.Usagef("%s is missing: %s", question.flag, question.text)
		}
	}
	return lines.Err()
}

// interfaceTo gives the interface by which one of these is reached, the first that is.
func interfaceTo(destinations ...string) string {
	for _, destination := range destinations {
		if route := routeTo(destination); route != nil {
			if link, err := netlink.LinkByIndex(route.LinkIndex); err == nil {
				return link.Attrs().Name
			}
		}
	}
	return ""
}

func sourceTo(destinations string) string {
	if route := routeTo(destinations); route != nil && route.Src != nil {
		return route.Src.String()
	}
	return ""
}

// routeTo the first of these addresses; nil without one.
func routeTo(destinations string) *netlink.Route {
	addresses := list(destinations)
	if len(addresses) == 0 {
		return nil
	}
	address, err := netip.ParseAddr(addresses[0])
	if err != nil {
		return nil
	}
	routes, err := netlink.RouteGet(address.AsSlice())
	if err != nil || len(routes) == 0 {
		return nil
	}
	return &routes[0]
}

func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// write the config, if it is good.
func (a *answers) write(file string, stdout, stderr io.Writer) error {
	text, err := a.config()
	if err != nil {
		return err
	}
	c, err := loadConfig(stderr, func(...string) (*config.Config, error) {
		return config.Parse([]config.Source{{Name: file, Data: []byte(text)}}, config.ReadFromDisk)
	}, nil)
	if err != nil {
		return err
	}
	if err := writeFirst(file, "--file", text); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s\n%s is written: read it, then set up each server, which has the package guideway-agent, once:\n\n", summary(c), file)
	for _, server := range c.Services[0].Members {
		fmt.Fprintf(stdout, "  guideway config backend %s %s | ssh root@%s guideway-agent setup --from -\n", server.Backend.Name, file, server.Backend.Address)
	}
	fmt.Fprintf(stdout, "\n(without that package end with `--plain %s | ssh root@... sh`, which lasts until a server's next boot)\n", file)
	fmt.Fprintf(stdout, "\nand start it here:\n\n  systemctl enable --now guideway-forwarder guideway-speaker guideway-controller\n  guideway doctor\n")
	if a.router == "none" {
		fmt.Fprintf(stdout, "\nWithout BGP, your router needs a route to %s by %s.\n", a.vip, a.address)
	}
	return nil
}

// writeFirst writes a config where there is none, or the example. It may have tokens of health
// checks one day: it is for root and the controller.
func writeFirst(file, flag, text string) error {
	folder := filepath.Dir(file)
	err := os.MkdirAll(folder, 0o755)
	if err == nil {
		err = isFree(file, flag)
	}
	if err == nil {
		err = statedir.Write(folder, filepath.Base(file), []byte(text))
	}
	if err != nil {
		return err
	}
	if group, err := user.LookupGroup("guideway"); err == nil && os.Getuid() == 0 {
		id, _ := strconv.Atoi(group.Gid)
		if err := os.Chown(file, 0, id); err != nil {
			return err
		}
	}
	return os.Chmod(file, 0o640)
}

// config of the answers. What is wrong with them the parser says, but for what is no number.
func (a *answers) config() (string, error) {
	name, _ := os.Hostname()
	c := firstConfig(name, []string{a.address}, a.device)
	ports := list(a.ports)
	pool := &configv1.Pool{Name: a.service, HealthChecks: []string{a.service}, EjectionMax: proto.Uint32(50)}
	for i, server := range list(a.servers) {
		pool.Backends = append(pool.Backends, &configv1.Backend{Name: proto.String(fmt.Sprintf("%s-%d", a.service, i+1)), Address: server})
	}
	check := &configv1.HealthCheck{
		Name: a.service, Tcp: &configv1.TcpCheck{Port: firstPort(ports)}, Interval: durationpb.New(time.Second),
		Timeout: durationpb.New(500 * time.Millisecond), Rise: proto.Uint32(2), Fall: proto.Uint32(3),
	}
	c.Services = []*configv1.Service{{
		Name: a.service, Pools: []string{a.service},
		Vips: []*configv1.Vip{{Address: &a.vip, Ports: ports, Protocol: proto.String("tcp")}},
	}}
	c.Pools, c.HealthChecks = []*configv1.Pool{pool}, []*configv1.HealthCheck{check}
	if a.router != "none" {
		asn, err := asNumber("--bgp-asn", a.asn)
		if err != nil {
			return "", err
		}
		routerASN, err := asNumber("--bgp-router-asn", a.routerASN)
		if err != nil {
			return "", err
		}
		c.Bgp = &configv1.Bgp{Asn: asn, Neighbors: []*configv1.Neighbor{{Address: a.router, Asn: routerASN}}}
	}
	return "# Made by `guideway init`. All fields: docs/config.md\n" + yamlOf(c, comments{
		pool:  {"ejection_max: one wrong firewall rule does not take every server out at once."},
		check: {"They go through the tunnel to the VIP, as clients' packets do: a server without either is out."},
	}), nil
}

// firstPort that the check tries: 80 where no number is, which is told of the VIP's ports.
func firstPort(ports []string) uint32 {
	if len(ports) > 0 {
		first, _, _ := strings.Cut(ports[0], "-")
		if port, err := strconv.ParseUint(first, 10, 16); err == nil && port > 0 {
			return uint32(port)
		}
	}
	return 80
}

func asNumber(flag, text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, commandline.Usagef("%s is %q: give an AS number, like 64512", flag, text)
	}
	return uint32(n), nil
}
