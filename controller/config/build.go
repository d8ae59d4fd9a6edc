package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
	"google.golang.org/protobuf/types/known/durationpb"
)

// builder turns the schema's messages into a Config, section by section. It
// goes on after a mistake: the values it then makes are incomplete, and are
// thrown away, but indices stay those of the file.
type builder struct {
	*reporter
	schema   *configv1.Config
	readFile ReadFile
	config   *Config
	// Members by the names of pools that reach them.
	flattened map[string][]Member
	// Of pools with a source, by name.
	members map[string][]PoolMember
}

// build the config of what was decoded, or refuse it.
func build(b *builder) (*Config, error) {
	b.build()
	if len(b.errors) > 0 {
		return nil, b.refusal()
	}
	b.config.Warnings = b.sorted(b.warnings).gathered()
	return b.config, nil
}

func (b *builder) build() {
	b.machine()
	b.cluster()
	b.peers()
	b.tunnel()
	b.prefixGroups()
	b.healthChecks()
	b.pools()
	b.services()
	b.warnAgentsNotProbed()
	b.tunnelViews()
	b.bgp()
	b.vrrp()
	b.hooks()
	b.speaker()
	b.config.MoveAgeMax = duration(b.schema.GetMoveAgeMax(), moveAgeMaxDefault)
	b.forwarder()
	b.metrics()
	b.api()
	b.etcd()
	b.agents()
	b.check()
}

func (b *builder) machine() {
	given := b.schema.GetMachine()
	b.config.Machine = Machine{
		Name:      or(given.GetName(), "lb"),
		Shard:     or(given.GetShard(), "default"),
		Addresses: b.hostAddresses("machine.addresses", given.GetAddresses()),
	}
	ports, problem := parsePorts(or(given.GetProbePorts(), probePortsDefault))
	if problem != "" {
		b.errorf("machine.probe_ports", "%s", problem)
	}
	b.config.Machine.ProbePorts = ports
}

func (b *builder) cluster() {
	given := b.schema.GetCluster()
	cluster := Cluster{Name: or(given.GetName(), "default"), KeyID: KeyDerived}
	if file := given.GetSecretFile(); file != "" {
		cluster.SecretFile, cluster.KeyID = b.secretFile("cluster.secret_file", file)
	} else {
		b.warnf("cluster.secret_file", "is not given: the flow hash's key is made of the cluster's name, so who knows the name can aim connections at one backend; write `cluster: {secret_file: %s}` (`make install` made it, the forwarder's unit reads it too), copy that file to all machines of the cluster, then `systemctl restart guideway-forwarder guideway-controller`",
			DefaultSecretFile)
	}
	cluster.Prefixes = b.prefixes("cluster.prefixes", given.GetPrefixes())
	b.config.Cluster = cluster
}

func (b *builder) peers() {
	names := map[string]string{}
	for i, given := range b.schema.GetPeers() {
		path := fmt.Sprintf("peers[%d]", i)
		b.uniqueName(names, path, given.GetName())
		peer := Peer{Name: given.GetName(), Addresses: b.hostAddresses(path+".addresses", given.GetAddresses())}
		switch {
		case b.isThisMachine(peer.Name, peer.Addresses):
			continue
		case peer.Name == b.config.Machine.Name && peer.Name != "":
			b.errorf(path+".name", "is %q, this machine's own name, and its addresses are others: give this one another `machine.name`, or the peer `machine.addresses`", peer.Name)
		}
		b.config.Peers = append(b.config.Peers, peer)
	}
	b.config.Encapsulators = b.prefixes("encapsulators", b.schema.GetEncapsulators())
}

func (b *builder) tunnel() {
	given := b.schema.GetTunnel()
	b.config.Tunnel.UDP6Checksum = given.GetUdp6Checksum()
	b.config.Tunnel.MTU = int(given.GetMtu())
	if text := given.GetSourcePrefix(); text != "" {
		prefix, problem := parsePrefix(text)
		if problem == "" && !prefix.Addr().Is4() {
			problem = fmt.Sprintf("is %s: give an IPv4 prefix; over IPv6 the flow label spreads packets", text)
		}
		if problem != "" {
			b.errorf("tunnel.source_prefix", "%s", problem)
		}
		b.config.Tunnel.SourcePrefix = prefix
	}
}

func (b *builder) prefixGroups() {
	names := map[string]string{}
	groupOf := map[netip.Prefix]string{}
	for i, given := range b.schema.GetPrefixGroups() {
		path := fmt.Sprintf("prefix_groups[%d]", i)
		b.uniqueName(names, path, given.GetName())
		group := PrefixGroup{Name: given.GetName(), Prefixes: b.prefixes(path+".prefixes", given.GetPrefixes())}
		for j, text := range given.GetPrefixes() {
			prefix, problem := parsePrefix(text)
			if earlier, ok := groupOf[prefix]; ok && problem == "" && earlier != path {
				b.errorf(fmt.Sprintf("%s.prefixes[%d]", path, j), "%s is also in %s: a prefix belongs to one group only", prefix, earlier)
			}
			groupOf[prefix] = path
		}
		b.config.PrefixGroups = append(b.config.PrefixGroups, group)
	}
}

func (b *builder) hooks() {
	for i, given := range b.schema.GetHooks() {
		if slices.ContainsFunc(b.config.Hooks, func(h Hook) bool { return h.Program == given.GetProgram() }) {
			b.errorf(fmt.Sprintf("hooks[%d].program", i), "%s is given twice: once is enough", given.GetProgram())
		}
		b.config.Hooks = append(b.config.Hooks, Hook{Program: given.GetProgram(), Timeout: duration(given.GetTimeout(), 10*time.Second)})
	}
}

func (b *builder) forwarder() {
	given := b.schema.GetForwarder()
	if given == nil {
		return
	}
	forwarder := &Forwarder{
		Steering:       Steering(or(given.GetSteering(), string(SteeringRSS))),
		ConnectionsMax: given.GetConnectionsMax(),
		KernelCache:    KernelCache(or(given.GetKernelCache(), string(KernelCacheAuto))),
	}
	names := map[string]string{}
	for i, interface_ := range given.GetInterfaces() {
		b.uniqueName(names, fmt.Sprintf("forwarder.interfaces[%d]", i), interface_.GetName())
		forwarder.Interfaces = append(forwarder.Interfaces, Interface{
			Name:   interface_.GetName(),
			Driver: Driver(or(interface_.GetDriver(), string(DriverAuto))),
			Queues: interface_.GetQueues(),
		})
	}
	b.config.Forwarder = forwarder
}

func (b *builder) metrics() {
	listen := or(b.schema.GetMetrics().GetListen(), "127.0.0.1:9470")
	b.listenAddress("metrics.listen", listen)
	b.config.Metrics.Listen = listen
	b.config.Metrics.ByService = b.schema.GetMetrics().GetDetail() == "backend"
}

func (b *builder) listenAddress(field, listen string) {
	host, port, err := net.SplitHostPort(listen)
	if _, ok := parsePort(port); err != nil || !ok {
		b.errorf(field, "is %q: give address and port, like 127.0.0.1:9470 or [::]:9470", listen)
	} else if _, err := netip.ParseAddr(host); err != nil && host != "" && host != "localhost" {
		b.errorf(field, "is %q: give an address before the port, not a name", listen)
	}
}

// hostAddresses takes at most one address of each family: outer headers have
// one source.
func (b *builder) hostAddresses(path string, given []string) []netip.Addr {
	var addresses []netip.Addr
	for i, text := range given {
		field := fmt.Sprintf("%s[%d]", path, i)
		address := b.address(field, text)
		if !address.IsValid() {
			continue
		}
		for _, earlier := range addresses {
			if earlier.Is4() == address.Is4() {
				b.errorf(field, "%s is the second %s address after %s: give at most one of each family, it is the tunnels' source", address, family(address), earlier)
			}
		}
		addresses = append(addresses, address)
	}
	return addresses
}

func (b *builder) address(path, text string) netip.Addr {
	if text == "" {
		b.errorf(path, "is empty: give an IPv4 or IPv6 address")
		return netip.Addr{}
	}
	address, problem := parseAddress(text)
	if problem != "" {
		b.errorf(path, "%s", problem)
	}
	return address
}

func (b *builder) prefixes(path string, given []string) []netip.Prefix {
	var prefixes []netip.Prefix
	for i, text := range given {
		field := fmt.Sprintf("%s[%d]", path, i)
		prefix, problem := parsePrefix(text)
		switch {
		case problem != "":
			b.errorf(field, "%s", problem)
		case slices.Contains(prefixes, prefix):
			b.errorf(field, "%s is listed twice: remove one", prefix)
		default:
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes
}

// uniqueName refuses a name that an earlier item of the list has. Items
// without a name were told already.
func (b *builder) uniqueName(seen map[string]string, path, name string) {
	if earlier, ok := seen[name]; ok && name != "" {
		b.errorf(path+".name", "%q is already the name of %s (line %d): names are unique", name, earlier, b.document.position(earlier+".name").line)
		return
	}
	seen[name] = path
}

// or is the default of what is not given.
func or[T comparable](given, otherwise T) T {
	var zero T
	if given == zero {
		return otherwise
	}
	return given
}

func duration(given *durationpb.Duration, otherwise time.Duration) time.Duration {
	if given == nil {
		return otherwise
	}
	return given.AsDuration()
}
