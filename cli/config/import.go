package config

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/config/keepalived"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/outside"
)

// importing is what keepalived's configuration does not say.
type importing struct {
	machine, addresses, device, id, file string
}

func configImportCommand() *cobra.Command {
	var given importing
	command := &cobra.Command{
		Use:   "import FILE",
		Short: "Convert keepalived's configuration",
		Long: "Reads keepalived.conf and the files that it includes, and prints a configuration with\n" +
			"its virtual servers, real servers, weights and checks. A comment stands at each thing\n" +
			"that differs or was left out, and standard error has a line for it, by file and line.\n" +
			"Virtual servers with lb_kind NAT, and VRRP, are left out. No script is run.\n" +
			"Interface and address of this machine come from flags, else from a vrrp_instance and\n" +
			"this machine's routes.\n" +
			"Exit status: 0 if nothing was left out, 3 if something was, 1 if nothing is written.",
		Example: "  guideway config import /etc/keepalived/keepalived.conf -o guideway.yaml\n" +
			"  guideway config check guideway.yaml",
		Args: commandline.Arguments("FILE"),
		RunE: func(command *cobra.Command, args []string) error { return given.run(command, args[0]) },
	}
	flags := command.Flags()
	flags.StringVarP(&given.file, "output", "o", "-", "the `FILE` to write, which must not exist; -: standard output")
	flags.StringVar(&given.machine, "machine", "", "this machine's `NAME` (default: its host name)")
	flags.StringVar(&given.addresses, "address", "", "this machine's `ADDRESSES`, from which tunnels begin: one IPv4, one IPv6 or both (default: by the routes)")
	flags.StringVar(&given.device, "interface", "", "`NAME` of the interface that clients' packets arrive on (default: that of the first vrrp_instance, else by the routes)")
	flags.StringVar(&given.id, "config-id", "", "take the lines @ID of this `ID` (default: --machine up to the first dot)")
	return command
}

func (i importing) run(command *cobra.Command, path string) error {
	if i.file != "-" {
		if err := isFree(i.file, "--output"); err != nil {
			return err
		}
	}
	if i.machine == "" {
		i.machine, _ = os.Hostname()
	}
	if i.id == "" {
		i.id, _, _ = strings.Cut(i.machine, ".")
	}
	result, err := keepalived.Import(path, i.id, keepalived.Files{Read: readConf, Glob: filepath.Glob})
	if err != nil {
		return err
	}
	i.addMachine(result)
	if err := result.Settle(config.ReadFromDisk); err != nil {
		return err
	}
	stderr := command.ErrOrStderr()
	for _, line := range result.Report() {
		fmt.Fprintln(stderr, line)
	}
	if len(result.Config.Services) == 0 {
		return fmt.Errorf("%s has no virtual_server that could be converted: nothing is written", path)
	}
	text := importedText(path, result)
	c, err := loadConfig(stderr, func(...string) (*config.Config, error) {
		return config.Parse([]config.Source{{Name: i.name(), Data: []byte(text)}}, config.ReadFromDisk)
	}, nil)
	if err != nil {
		return err
	}
	if i.file == "-" {
		fmt.Fprint(command.OutOrStdout(), text)
	} else if err := writeFirst(i.file, "--output", text); err != nil {
		return err
	}
	leftOut := result.Count(keepalived.LeftOut)
	fmt.Fprintf(stderr, "%s; left out: %d, differs: %d, ignored: %d\n", summary(c), leftOut, result.Count(keepalived.Differs), result.Count(keepalived.Ignored))
	if leftOut > 0 {
		return commandline.ErrLeftOut
	}
	return nil
}

// name of what is written, in warnings.
func (i importing) name() string {
	if i.file == "-" {
		return "standard output"
	}
	return i.file
}

func readConf(path string) ([]byte, error) {
	data, _, err := config.ReadFromDisk(path)
	return data, err
}

var interfaceName = regexp.MustCompile(`^[!-~]{1,15}$`)

// addMachine to what was converted. What nobody says has a placeholder, and is told.
func (i importing) addMachine(r *keepalived.Result) {
	var vips, backends []string
	for _, service := range r.Config.Services {
		for _, vip := range service.Vips {
			vips = append(vips, vip.GetAddress())
		}
	}
	for _, pool := range r.Config.Pools {
		for _, backend := range pool.Backends {
			backends = append(backends, backend.Address)
		}
	}
	device := i.device
	if device == "" && interfaceName.MatchString(r.Interface) {
		device = r.Interface
	}
	if device == "" {
		device = interfaceTo(append([]string{elsewhere}, backends...)...)
	}
	addresses, missing := machineAddresses(list(i.addresses), backends, vips)
	own := firstConfig(i.machine, addresses, device)
	r.Config.Cluster, r.Config.Machine, r.Config.Forwarder = own.Cluster, own.Machine, own.Forwarder
	for _, address := range missing {
		r.Note(own.Machine, "machine.addresses", address+" stands for this machine's own address, which no route says: put it in its place, or import again with --address")
	}
	if device == "" {
		r.Note(own.Machine, "forwarder", "no route says on which interface clients' packets arrive: import again with --interface")
	}
}

// machineAddresses has one for each family of the backends: those given, else by the routes, else
// one of those that documents have, which is then among the missing.
func machineAddresses(given, backends, vips []string) (addresses, missing []string) {
	taken := map[string]bool{"": true}
	for _, address := range slices.Concat(backends, vips) {
		taken[address] = true
	}
	addresses = slices.Clone(given)
	for _, placeholder := range []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")} {
		isOfFamily := func(text string) bool {
			address, err := netip.ParseAddr(text)
			return err == nil && address.Is4() == placeholder.Is4()
		}
		at := slices.IndexFunc(backends, isOfFamily)
		if at < 0 || slices.ContainsFunc(given, isOfFamily) {
			continue
		}
		address := sourceTo(backends[at])
		if taken[address] {
			for taken[placeholder.String()] {
				placeholder = placeholder.Next()
			}
			address = placeholder.String()
			missing = append(missing, address)
		}
		addresses = append(addresses, address)
	}
	return addresses, missing
}

// importedText with comments where something differs, and what belongs nowhere at the end.
func importedText(path string, r *keepalived.Result) string {
	above, end := r.Comments()
	var text strings.Builder
	fmt.Fprintf(&text, "# Made by `guideway config import` from %s. All fields: docs/config.md\n", outside.Text(path))
	text.WriteString("# Comments name what differs, what was left out and what was ignored.\n" +
		"# Nothing is announced yet: give `bgp`, or route the VIPs to this machine (docs/start.md).\n")
	text.WriteString(yamlOf(r.Config, above))
	for _, line := range end {
		comment(&text, "", line)
	}
	return text.String()
}
