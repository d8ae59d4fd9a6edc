package config

// Prints the commands and files that set up a backend with an agent.

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/agents"
)

func configBackendCommand() *cobra.Command {
	var device string
	var keysAlone, isPlain bool
	command := &cobra.Command{
		Use:   "backend NAME FILE...",
		Short: "Print the script that sets up a backend",
		Long: "Reads files, or directories of *.yaml, *.yml and *.json, as one configuration and\n" +
			"prints the script that sets up its backend NAME: VIPs, sysctls, and the agent with its\n" +
			"configuration. `guideway-agent setup` on the backend runs it now and at each boot; `sh`\n" +
			"runs it once. The output has keys if the configuration has `agents` or `quic_lb`: pipe\n" +
			"it to the backend, and store it nowhere else. The keys are derived from\n" +
			"cluster.secret_file. With --plain the script sets up the kernel's own tunnel devices\n" +
			"(GRE, IP in IP, GUE) instead of the agent, if no service of the backend requires one.\n" +
			"A backend all of whose services have `encap: l2` gets neither.",
		Example:           "  guideway config backend web-1 /etc/guideway/guideway.yaml | ssh root@web-1 guideway-agent setup --from -",
		ValidArgsFunction: completeBackends,
		RunE: func(command *cobra.Command, arguments []string) error {
			if len(arguments) < 2 {
				return errors.New("NAME or FILE is missing: give a backend's name and a config, like `guideway config backend web-1 /etc/guideway/guideway.yaml`")
			}
			c, err := loadConfig(command.ErrOrStderr(), config.LoadAny, arguments[1:])
			if err != nil {
				return err
			}
			setup, err := newBackendSetup(c, arguments[0], device)
			if err != nil {
				return err
			}
			if isPlain || addressedAlone(c, setup.backend) {
				if setup.plain, err = newPlainTunnels(c, setup.backend, setup.vips); err != nil {
					return err
				}
			}
			if keysAlone {
				return setup.printKeys(command.OutOrStdout())
			}
			return setup.print(command.OutOrStdout())
		},
	}
	command.Flags().StringVar(&device, "interface", "eth0", "the backend's `NAME` of the interface that tunnelled packets arrive on")
	command.Flags().BoolVar(&keysAlone, "keys", false, "print the agent's key file alone")
	command.Flags().BoolVar(&isPlain, "plain", false, "for a backend without an agent, whose kernel opens the tunnels")
	command.MarkFlagsMutuallyExclusive("keys", "plain")
	return command
}

// completeBackends of the config that is installed, before a FILE is given.
func completeBackends(_ *cobra.Command, arguments []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	if len(arguments) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	if c, err := config.LoadAny(machine.ConfigDefault); err == nil {
		for _, backend := range c.Backends {
			names = append(names, backend.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// backendSetup is what a config says of one backend.
type backendSetup struct {
	backend *config.Backend
	// nil: it has an agent.
	plain  *plainTunnels
	device string
	// Where tunnels come from, and where agents send to.
	sources, controllers []string
	// What the network between load balancers and backends carries; 0: the config does not say.
	mtu int
	// Single addresses, and prefixes whose addresses are all VIPs or may be.
	vips []netip.Prefix
	// nil: the config has no agents.
	keys    *agents.Keys
	keyFile string
	port    uint16
	// What the QUIC servers of its services make connection ids by.
	quic []config.QUICSettings
	// By which clients join connections of Multipath TCP, each once, in order.
	joins []netip.AddrPort
	// Where clients reach its services whose connections of Multipath TCP get their keys
	// from load balancers, each once, in order.
	multipath []netip.AddrPort
	// Backends with an address of the same family, itself included.
	reachable []config.Backend
}

func newBackendSetup(c *config.Config, name, device string) (*backendSetup, error) {
	i := slices.IndexFunc(c.Backends, func(b config.Backend) bool { return b.Name == name })
	if i < 0 {
		var names []string
		for _, b := range c.Backends {
			names = append(names, b.Name)
		}
		return nil, fmt.Errorf("the config has no backend %q: %s", name, config.DidYouMean(name, names))
	}
	s := &backendSetup{backend: &c.Backends[i], device: device, vips: vipsOf(c, name), mtu: c.Tunnel.MTU}
	if len(s.vips) == 0 {
		return nil, fmt.Errorf("no service has the backend %s: add its pool to one", name)
	}
	addresses := slices.Clone(c.Machine.Addresses)
	for _, peer := range c.Peers {
		addresses = append(addresses, peer.Addresses...)
	}
	for _, address := range addresses {
		s.sources = append(s.sources, address.String())
		if address.Is4() == s.backend.Address.Is4() {
			s.controllers = append(s.controllers, address.String())
		}
	}
	if prefix := c.Tunnel.SourcePrefix; prefix.IsValid() {
		s.sources = append(s.sources, prefix.String())
	}
	var content []byte
	if c.Cluster.SecretFile != "" {
		var err error
		if content, err = os.ReadFile(c.Cluster.SecretFile); err != nil {
			return nil, fmt.Errorf("read the secret that the backend's keys come from: %w", err)
		}
	}
	s.quic = config.QUICSettingsOf(c, name, content)
	s.joins = joinsOf(c, name)
	var err error
	if s.multipath, err = multipathOf(c, name); err != nil {
		return nil, err
	}
	if c.Agents == nil {
		return s, nil
	}
	secret, err := agents.NewSecret(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Cluster.SecretFile, err)
	}
	var peers []string
	for _, b := range c.Backends {
		if b.Address.Is4() != s.backend.Address.Is4() {
			continue
		}
		s.reachable = append(s.reachable, b)
		if b.Name != name && len(s.multipath) > 0 {
			peers = append(peers, b.Name)
		}
	}
	keys := secret.Keys(name)
	s.keys, s.keyFile, s.port = &keys, keys.File(secret.PeerKeys(name, peers)), c.Agents.Port
	return s, nil
}

// vipsOf the services that have the backend, each once, in order.
func vipsOf(c *config.Config, backend string) []netip.Prefix {
	var vips []netip.Prefix
	for _, service := range c.Services {
		if !slices.ContainsFunc(service.Members, func(m config.Member) bool { return m.Backend.Name == backend }) {
			continue
		}
		for _, vip := range service.VIPs {
			vips = append(vips, prefixesOf(c, vip)...)
		}
	}
	slices.SortFunc(vips, netip.Prefix.Compare)
	return slices.Compact(vips)
}

// joinsOf the services that have the backend: its own ports on their VIPs.
func joinsOf(c *config.Config, backend string) []netip.AddrPort {
	var joins []netip.AddrPort
	for i := range c.Services {
		port := config.JoinPortOf(&c.Services[i], backend)
		if port == 0 {
			continue
		}
		for _, vip := range c.Services[i].VIPs {
			if vip.Protocol != config.ProtocolUDP {
				joins = append(joins, netip.AddrPortFrom(vip.Address, port))
			}
		}
	}
	slices.SortFunc(joins, netip.AddrPort.Compare)
	return slices.Compact(joins)
}

// multipathServicesMax is how many an agent's config may list.
const multipathServicesMax = 4096

// multipathOf the services that have the backend and choose connections' keys: their
// addresses and ports for TCP, which the agent has to know one by one.
func multipathOf(c *config.Config, backend string) ([]netip.AddrPort, error) {
	var services []netip.AddrPort
	for _, service := range c.Services {
		isMember := slices.ContainsFunc(service.Members, func(m config.Member) bool { return m.Backend.Name == backend })
		if !service.MultipathTCP || !isMember {
			continue
		}
		for _, vip := range service.VIPs {
			if vip.Protocol == config.ProtocolUDP {
				continue
			}
			endpoints, err := endpointsOf(c, vip)
			if err != nil {
				return nil, fmt.Errorf("the service %s has mptcp: {}, and %w", service.Name, err)
			}
			services = append(services, endpoints...)
		}
	}
	slices.SortFunc(services, netip.AddrPort.Compare)
	services = slices.Compact(services)
	if n := len(services); n > multipathServicesMax {
		return nil, fmt.Errorf("the services of %s with mptcp: {} have %d addresses and ports, and an agent knows %d: list fewer `ports`", backend, n, multipathServicesMax)
	}
	return services, nil
}

// endpointsOf a VIP that has single addresses and lists its ports.
func endpointsOf(c *config.Config, vip config.VIP) ([]netip.AddrPort, error) {
	if len(vip.Ports) == 0 {
		return nil, errors.New("a VIP without `ports`: agents know such services by address and port, so list them, like [443]")
	}
	var endpoints []netip.AddrPort
	for _, prefix := range prefixesOf(c, vip) {
		if !prefix.IsSingleIP() {
			return nil, fmt.Errorf("a VIP of all addresses in %s: agents know such services by address and port, so give its VIPs an `address`", prefix)
		}
		for _, ports := range vip.Ports {
			for port := int(ports.First); port <= int(ports.Last); port++ {
				endpoints = append(endpoints, netip.AddrPortFrom(prefix.Addr(), uint16(port)))
			}
		}
	}
	return endpoints, nil
}

// prefixesOf a VIP: its address, or the prefixes that have its suffix.
func prefixesOf(c *config.Config, vip config.VIP) (prefixes []netip.Prefix) {
	if vip.Address.IsValid() {
		return []netip.Prefix{netip.PrefixFrom(vip.Address, vip.Address.BitLen())}
	}
	for _, group := range c.PrefixGroups {
		if group.Name != vip.PrefixGroup {
			continue
		}
		for _, prefix := range group.Prefixes {
			if prefix.Addr().Is4() != vip.Suffix.Is4() {
				continue
			}
			free := prefix.Addr().BitLen() - prefix.Bits()
			if vip.SuffixBits == 0 || vip.SuffixBits == free {
				prefix = netip.PrefixFrom(withSuffix(prefix.Addr(), vip.Suffix), prefix.Addr().BitLen())
			}
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes
}

// withSuffix sets the bits of an address that a suffix has.
func withSuffix(address, suffix netip.Addr) netip.Addr {
	bytes, low := address.AsSlice(), suffix.AsSlice()
	for i := range bytes {
		bytes[i] |= low[i]
	}
	combined, _ := netip.AddrFromSlice(bytes) // of the length of an address
	return combined
}

func (s *backendSetup) printKeys(w io.Writer) error {
	if s.keys == nil {
		return errors.New("the config has no `agents`, so the agent needs no keys: write `agents: {}` to receive its messages")
	}
	_, err := io.WriteString(w, s.keyFile)
	return err
}

func (s *backendSetup) print(w io.Writer) error {
	script := &setupScript{}
	script.line("# The VIPs, for no ARP to answer and no other packet to leave from.")
	script.line("sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2")
	for _, vip := range s.vips {
		if vip.IsSingleIP() {
			script.line("ip address replace %s dev lo", vip)
			script.undo("ip address del %s dev lo", vip)
		} else {
			script.line("ip route replace local %s dev lo", vip)
			script.undo("ip route del local %s dev lo", vip)
		}
	}
	script.line("")
	if s.plain != nil {
		s.plain.print(s.sources, script)
		s.printJoins(script)
	} else {
		s.printAgent(script)
	}
	_, err := io.WriteString(w, script.text(s.backend))
	return err
}

// setupScript is what `config backend` prints: the commands that set a backend up, and behind
// `undo` those that take that back, the last first, one by one. `guideway-agent setup` reads it
// (agent/src/setup/script.rs).
type setupScript struct {
	commands  strings.Builder
	takenBack []string
}

func (s *setupScript) line(format string, values ...any) {
	fmt.Fprintf(&s.commands, format+"\n", values...)
}

func (s *setupScript) undo(format string, values ...any) {
	s.takenBack = append(s.takenBack, fmt.Sprintf(format, values...))
}

// file as a command that writes it.
func (s *setupScript) file(path, mode, content string) {
	s.line("install -m %s /dev/stdin %s <<'END'\n%sEND", mode, path, content)
}

// rules of nftables, in a table of our own. The shell fills nothing in if `end` is quoted.
func (s *setupScript) rules(end string, printChains func()) {
	s.undo("nft delete table inet guideway")
	s.line("nft -f - <<%s", end)
	s.line("table inet guideway")
	s.line("delete table inet guideway")
	s.line("table inet guideway {")
	printChains()
	s.line("}")
	s.line("END")
}

func (s *setupScript) text(backend *config.Backend) string {
	var text strings.Builder
	fmt.Fprintf(&text, "# Sets up the backend %s (%s) of Guideway; as root, on it. It may run again.\n", backend.Name, backend.Address)
	text.WriteString("# `guideway-agent setup --from FILE` runs it now and at each boot.\n")
	text.WriteString("if [ \"${1-}\" = undo ]; then\n")
	for _, command := range slices.Backward(s.takenBack) {
		fmt.Fprintf(&text, "    %s\n", command)
	}
	text.WriteString("    exit 0\nfi\nset -e\n\n")
	text.WriteString(s.commands.String())
	text.WriteString("# End.\n")
	return text.String()
}

func (s *backendSetup) printAgent(script *setupScript) {
	s.printQUIC(script)
	s.printJoins(script)
	if len(s.multipath) > 0 {
		script.line("# What the agent's handshakes of Multipath TCP need (docs/mptcp.md).")
		script.line("sysctl -w net.mptcp.enabled=1 net.ipv4.tcp_syncookies=1 net.ipv4.conf.all.rp_filter=0")
		script.line("# New connections come by another interface: a firewall that accepts by interface has to")
		script.line("# accept that one, too.")
		script.line("# nft add rule inet filter input iifname gw-mptcp accept")
	}
	s.printAgentMSS(script)
	script.line("# At boot systemd starts the agent, whose files are there.")
	script.line("[ \"${1-}\" != boot ] || exit 0")
	script.line("")
	script.line("# The agent: takes packets out of the load balancers' tunnels.")
	script.line("mkdir -p /etc/guideway")
	if s.keys != nil {
		script.file("/etc/guideway/agent.key", "600", s.keyFile)
		script.undo("rm -f /etc/guideway/agent.key")
	}
	script.file("/etc/guideway/agent.yaml", "644", s.agentConfig())
	script.line("guideway-agent --check")
	script.line("systemctl enable guideway-agent")
	script.line("systemctl restart guideway-agent")
	script.undo("guideway-agent --detach")
	script.undo("systemctl disable --now guideway-agent")
	script.line("# What else is wrong here, if anything; services have to listen by now.")
	script.line("[ \"${1-}\" = setup ] || guideway-agent doctor")
}

// printAgentMSS: what comes out of the longest tunnel is so much shorter than what the interface takes.
func (s *backendSetup) printAgentMSS(script *setupScript) {
	overhead := ip4Bytes + udpBytes + geneveBytesMax
	if s.backend.Address.Is6() {
		overhead = ip6Bytes + udpBytes + geneveBytesMax
	}
	mtu := fmt.Sprintf(`$(ip -o link show %s | sed -n 's/.* mtu \([0-9]*\) .*/\1/p')`, s.device)
	if s.mtu != 0 {
		mtu = strconv.Itoa(s.mtu)
	}
	script.line("# Answers to SYNs ask clients for segments that fit into a tunnel (docs/start.md).")
	script.line("mtu=%s", mtu)
	script.line("mtu=${mtu:-%d} # at boot the interface may come later", clientsMTU)
	script.rules("END", func() {
		printMSS(script, s.vips, func(headers int) string { return fmt.Sprintf("$((mtu - %d))", overhead+headers) })
	})
	script.line("")
}

// printQUIC says what the QUIC servers need, which have no config in common that
// could be written here.
func (s *backendSetup) printQUIC(script *setupScript) {
	for i, one := range s.quic {
		if i == 0 {
			script.line("")
			script.line("# Connection ids that QUIC servers make here (docs/quic.md): configure these.")
		}
		use := "made"
		if i > 0 && s.quic[i-1].Service == one.Service {
			use = "still followed"
		}
		key := "none"
		if one.Encrypted {
			key = hex.EncodeToString(one.Key[:])
		}
		script.line("# service=%s use=%q config_id=%d server_id=%s nonce_bytes=%d connection_id_bytes=%d key=%s",
			one.Service, use, one.ID, one.ServerID, one.NonceBytes, one.ConnectionIDBytes(), key)
	}
	if len(s.quic) > 0 {
		script.line("")
	}
}

// printJoins says by which ports clients join connections of Multipath TCP.
func (s *backendSetup) printJoins(script *setupScript) {
	if len(s.joins) == 0 {
		return
	}
	script.line("")
	script.line("# Multipath TCP: clients join connections by ports of this backend (docs/mptcp.md).")
	script.line("sysctl -w net.mptcp.enabled=1 net.mptcp.allow_join_initial_addr_port=0")
	script.line("ip mptcp limits set subflows 8")
	for _, join := range s.joins {
		endpoint := fmt.Sprintf("%s port %d", join.Addr(), join.Port())
		script.line("ip mptcp endpoint show | grep -qF '%s id ' || ip mptcp endpoint add %s signal", endpoint, endpoint)
		script.undo("ip mptcp endpoint show | sed -n 's/^%s id \\([0-9]*\\).*/\\1/p' | xargs -r -n 1 ip mptcp endpoint delete id", endpoint)
	}
	script.line("")
}

func (s *backendSetup) agentConfig() string {
	var text strings.Builder
	vips := make([]string, len(s.vips))
	for i, vip := range s.vips {
		vips[i] = vip.String()
	}
	fmt.Fprintf(&text, "# Of the backend %s; all fields: docs/agent.md.\ninterface: %s\n", s.backend.Name, s.device)
	list := func(field string, values []string) {
		fmt.Fprintf(&text, "%s:\n", field)
		for _, value := range values {
			fmt.Fprintf(&text, "- %q\n", value)
		}
	}
	list("load_balancers", s.sources)
	list("vips", vips)
	if s.keys != nil {
		fmt.Fprintf(&text, "name: %q\nkey_file: /etc/guideway/agent.key\n", s.backend.Name)
		controllers := make([]string, len(s.controllers))
		for i, address := range s.controllers {
			controllers[i] = netip.AddrPortFrom(netip.MustParseAddr(address), s.port).String()
		}
		list("controllers", controllers)
		text.WriteString("agents:\n")
		for _, other := range s.reachable {
			fmt.Fprintf(&text, "  %q: %q\n", other.Name, other.Address.String())
		}
	}
	if len(s.multipath) > 0 {
		text.WriteString("# Connections of Multipath TCP get their keys from the load balancers.\nmptcp:\n")
		for _, service := range s.multipath {
			fmt.Fprintf(&text, "- {address: %q, port: %d}\n", service.Addr().String(), service.Port())
		}
	}
	text.WriteString("# The program outlives the agent: a restart loses no packet.\npin: /sys/fs/bpf/guideway-agent\n")
	return text.String()
}
