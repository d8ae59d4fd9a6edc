package keepalived

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// conversion of blocks, one after the other.
type conversion struct {
	*Result
	groups map[string]*item
	// Those that a virtual_server names.
	groupsUsed map[string]bool
	instances  []vrrpInstance
	// Of global_defs; nil: ours by default.
	idleTimeouts *configv1.IdleTimeouts
	// By their content without the name.
	pools  map[string]*configv1.Pool
	checks map[string]*configv1.HealthCheck
	// How often a name was wanted, by kind.
	names map[string]int
	vips  int
}

func newConversion(outermost *item) *conversion {
	c := &conversion{
		Result: &Result{Config: &configv1.Config{}, origins: map[proto.Message]*item{}},
		groups: map[string]*item{}, groupsUsed: map[string]bool{}, names: map[string]int{},
		pools: map[string]*configv1.Pool{}, checks: map[string]*configv1.HealthCheck{},
	}
	for _, i := range outermost.items {
		switch i.keyword() {
		case "virtual_server_group":
			if c.groups[i.value(1)] == nil {
				c.groups[i.value(1)] = i
			}
		case "global_defs":
			for _, inner := range i.items {
				if inner.keyword() == "lvs_timeouts" {
					c.idleTimeouts = c.timeouts(inner)
				}
			}
		}
	}
	return c
}

func (c *conversion) outermost(i *item) {
	switch i.keyword() {
	case "virtual_server":
		c.virtualServer(i)
	case "virtual_server_group":
		if c.groups[i.value(1)] != i {
			c.note(nil, LeftOut, i, "the name is taken by an earlier group: rename one")
		}
	case "global_defs":
		for _, inner := range i.items {
			if inner.keyword() != "lvs_timeouts" {
				c.other(nil, inner)
			}
		}
	case "vrrp_instance":
		c.vrrpInstance(i)
	default:
		c.other(nil, i)
	}
}

// timeouts of connections, which IPVS has for all virtual servers.
func (c *conversion) timeouts(i *item) *configv1.IdleTimeouts {
	timeouts := &configv1.IdleTimeouts{}
	for at := 1; at < len(i.words); at += 2 {
		seconds, ok := number(i.value(at+1), 1, 1<<31)
		if !ok {
			c.note(nil, LeftOut, i, "%s is not a number of seconds", quote(i.value(at+1)))
			continue
		}
		most := 2 * time.Hour
		if i.value(at) == "tcpfin" {
			most = 10 * time.Minute
		}
		given := time.Duration(seconds) * time.Second
		if given > most {
			c.note(nil, Differs, i, "%s is at most %s", quote(i.value(at)), most)
		}
		timeout := durationpb.New(min(given, most))
		switch i.value(at) {
		case "tcp":
			timeouts.Tcp = timeout
		case "tcpfin":
			timeouts.TcpClosing = timeout
		case "udp":
			timeouts.Udp = timeout
		default:
			c.note(nil, LeftOut, i, "%s is none of tcp, tcpfin and udp", quote(i.value(at)))
		}
	}
	return timeouts
}

// virtualServer while it is converted.
type virtualServer struct {
	*conversion
	item    *item
	service *configv1.Service
	// What checks of its real servers have by default.
	settings settings
	method   method
	algo     string
	// The hash takes ports, too.
	hashesPorts bool
	protocol    string
	// Ports of its VIPs; empty: all.
	ports       []string
	realServers []*item
	// Used while others are down.
	backupServers []*item
	threshold     *item
	sorry         *item
	sorryMethod   *method
	quorum        *item
	// A script withdraws it when the quorum is lost.
	hasQuorumScript bool
	// Place of its first note.
	firstNote int
}

// virtualServer becomes a service, or a note on why not: its own notes are then of no use.
func (c *conversion) virtualServer(i *item) {
	v := &virtualServer{
		conversion: c, item: i, algo: "wlc", protocol: "tcp", method: method{kind: "NAT", item: i},
		service: &configv1.Service{IdleTimeouts: proto.CloneOf(c.idleTimeouts)}, firstNote: len(c.notes),
	}
	for _, inner := range i.items {
		v.setting(inner)
	}
	if why := v.convert(); why != "" {
		c.notes = c.notes[:v.firstNote]
		c.note(nil, LeftOut, i, "%s", why)
		return
	}
	c.origins[v.service] = i
	c.Config.Services = append(c.Config.Services, v.service)
}

func (v *virtualServer) setting(i *item) {
	if v.settings.take(v.conversion, v.service, i) {
		return
	}
	switch i.keyword() {
	case "lb_kind", "lvs_method":
		v.method = methodOf(i)
	case "lb_algo", "lvs_sched":
		v.algo = strings.ToLower(i.value(1))
		v.note(v.service, Differs, i, "connections are spread by Maglev hashing, by weight, the same on every load balancer%s", affinityNotes[v.algo])
	case "sh-port", "mh-port":
		v.hashesPorts = true
	case "sh-fallback", "mh-fallback", "flag-1", "flag-2", "flag-3":
		v.note(v.service, Differs, i, "connections of a server that is down go to the other servers")
	case "persistence_timeout":
		v.service.Affinity = proto.String("client")
		v.note(v.service, Differs, i, "`affinity: client`: all connections of a client's address go to the same server, without a timeout")
	case "persistence_granularity":
		v.note(v.service, LeftOut, i, "affinity is by a client's address, not by its network")
	case "protocol":
		v.protocol = strings.ToLower(i.value(1))
	case "real_server":
		v.realServers = append(v.realServers, i)
	case "backup_real_server":
		v.backupServers = append(v.backupServers, i)
	case "failover_threshold":
		v.threshold = i
	case "sorry_server":
		v.sorry = i
	case "sorry_server_lvs_method":
		method := methodOf(i)
		v.sorryMethod = &method
	case "quorum":
		v.quorum = i
	case "quorum_down":
		v.hasQuorumScript = true
		v.other(v.service, i)
	case "inhibit_on_failure":
		if isOn(i) {
			v.keepOnDown(i)
		}
	default:
		v.other(v.service, i)
	}
}

// affinityNotes of schedulers that do something else than to spread.
var affinityNotes = map[string]string{
	"fo":  "; as with fo the server of the highest weight gets all, and the next one is in `backup_pools`",
	"ovf": "; ovf fills one server after the other",
	"dh":  "; dh goes by the destination",
	"sh":  "; `affinity: client` unless with sh-port",
	"mh":  "; `affinity: client` unless with mh-port",
}

// keepOnDown: weight 0 leaves a server's connections where they are.
func (v *virtualServer) keepOnDown(i *item) {
	v.service.OnDown = proto.String("keep")
	if i.keyword() == "inhibit_on_failure" && !slices.Contains(v.item.items, i) {
		v.note(v.service, Differs, i, "`on_down: keep` is the service's, so it counts for all of its servers")
	}
}

// convert what was read. It says why nothing can be, if so.
func (v *virtualServer) convert() (why string) {
	if v.protocol != "tcp" && v.protocol != "udp" {
		return fmt.Sprintf("protocol %s: only TCP and UDP are balanced", quote(strings.ToUpper(v.protocol)))
	}
	name, why := v.addresses()
	if why != "" {
		return why
	}
	v.service.Name = v.unique("service", name)
	if (v.algo == "sh" || v.algo == "mh") && !v.hashesPorts {
		v.service.Affinity = proto.String("client")
	}
	own, why := v.backends(v.realServers)
	if why != "" {
		return why
	}
	backup, _ := v.backends(v.backupServers)
	if v.algo == "fo" {
		for _, b := range backup {
			v.note(v.service, LeftOut, b.item, "with fo the backup server is one of the real_servers")
		}
		own, backup = v.failover(own)
	}
	v.service.Pools = v.poolsOf(own, v.service.Name)
	v.service.BackupPools = v.poolsOf(backup, v.service.Name+"-backup")
	v.sorryServer()
	v.quorumOf(own)
	v.thresholdOf(own)
	return ""
}

// sorryServer is a backup pool of its own. keepalived does not check it either.
func (v *virtualServer) sorryServer() {
	if v.sorry == nil {
		return
	}
	used := v.method
	if v.sorryMethod != nil {
		used = *v.sorryMethod
	}
	if why := used.refusal(); why != "" {
		v.note(v.service, LeftOut, v.sorry, "%s", why)
		return
	}
	if len(v.service.BackupPools) > 0 {
		v.note(v.service, LeftOut, v.sorry, "all `backup_pools` are used at the same time, so it would have a share beside the other backup servers")
		return
	}
	message := &configv1.Backend{Address: v.sorry.value(1)}
	v.origins[message] = v.sorry
	v.portOf(v.service, v.sorry)
	v.service.BackupPools = v.poolsOf([]*backend{{message: message}}, v.service.Name+"-sorry")
}

// quorumOf servers by weight is a number of servers in ours. Without a sorry server and a script
// it does nothing.
func (v *virtualServer) quorumOf(own []*backend) {
	if v.quorum == nil {
		return
	}
	quorum, ok := number(v.quorum.value(1), 1, 1<<20)
	total := 0
	for _, b := range own {
		total += b.weight
	}
	if !ok || total == 0 || v.sorry == nil && !v.hasQuorumScript {
		v.note(v.service, Ignored, v.quorum, "no effect without a sorry_server or a quorum_down script")
		return
	}
	least := max(1, min((quorum*len(own)+total-1)/total, 65000))
	v.service.BackendsMin = proto.Uint32(uint32(least))
	v.note(v.service, Differs, v.quorum, "`backends_min` counts servers, not weights; below it the servers that are left are used beside the sorry server, and without one the VIP is withdrawn")
}

// thresholdOf servers that are down, in per cent, from which on the backup servers are used.
func (v *virtualServer) thresholdOf(own []*backend) {
	if v.threshold == nil {
		return
	}
	percent, ok := number(v.threshold.value(1), 1, 100)
	if !ok || len(v.service.BackupPools) == 0 {
		v.note(v.service, Ignored, v.threshold, "no effect without a number from 1 to 100 and a backup_real_server")
		return
	}
	v.service.BackendsMin = proto.Uint32(uint32(len(own) - (len(own)*percent+99)/100 + 1))
	v.note(v.service, Differs, v.threshold, "`backends_min`: below it the servers that are left are used beside the backup servers")
}

// unique name of a kind, of characters that names may have.
func (c *conversion) unique(kind, name string) string {
	const bytesMax = 100
	name = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '-'
		}
		return r
	}, name)
	name = name[:min(len(name), bytesMax)]
	if name == "" {
		name = kind
	}
	c.names[kind+" "+name]++
	if n := c.names[kind+" "+name]; n > 1 {
		return c.unique(kind, fmt.Sprintf("%s-%d", name, n)) // which may be another's name
	}
	return name
}

// number in decimal, within bounds.
func number(text string, least, most int) (n int, ok bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= least && n <= most
}
