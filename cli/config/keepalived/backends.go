package keepalived

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// method by which packets go to servers.
type method struct {
	// DR, TUN or NAT.
	kind string
	// Of TUN: the type, and the UDP port of gue.
	tunnel, port string
	// Where it is said.
	item *item
}

func methodOf(i *item) method {
	m := method{kind: strings.ToUpper(i.value(1)), tunnel: "ipip", item: i}
	for at := 2; at < len(i.words); at++ {
		switch i.words[at] {
		case "type":
			m.tunnel = i.value(at + 1)
		case "port":
			m.port = i.value(at + 1)
		}
	}
	return m
}

// refusal says why there is nothing like it, if so.
func (m method) refusal() string {
	switch m.kind {
	case "NAT":
		return "lb_kind NAT, keepalived's default, rewrites addresses and ports, which Guideway never does: where servers can have the VIP, the end of a tunnel (docs/start.md) and the VIP's port, say lb_kind TUN and import again"
	case "DR":
		return ""
	case "TUN":
		if m.tunnel == "ipip" || m.tunnel == "gre" || m.tunnel == "gue" {
			return ""
		}
		return fmt.Sprintf("there is no tunnel of type %s: say ipip, gre or gue", quote(m.tunnel))
	}
	return fmt.Sprintf("there is no lb_kind %s: say DR or TUN", quote(m.kind))
}

// encap of ours.
func (m method) encap() string {
	if m.kind == "DR" {
		return "l2"
	}
	return m.tunnel
}

// backend is a real server.
type backend struct {
	message *configv1.Backend
	item    *item
	weight  int
	// Names of its checks.
	checks []string
}

// backends of servers that can be converted, with their weights; why, if there are none.
func (v *virtualServer) backends(servers []*item) (backends []*backend, why string) {
	why = "it has no real_server"
	seen := map[string]bool{}
	for _, i := range servers {
		b := &backend{message: &configv1.Backend{Address: i.value(1)}, item: i, weight: 1}
		v.origins[b.message] = i
		used, refusal := v.realServer(b)
		switch {
		case refusal != "":
			v.note(v.service, LeftOut, i, "%s", refusal)
			why = refusal
		case seen[b.message.Address]:
			v.note(v.service, LeftOut, i, "this server is a backend of the service already: tunnels keep ports, so an address is one backend")
		default:
			seen[b.message.Address] = true
			v.encapOf(used)
			backends = append(backends, b)
		}
	}
	if len(backends) == 0 {
		return nil, why
	}
	v.weigh(backends)
	return backends, ""
}

// realServer reads one. It says by which method it is reached, and why that cannot be.
func (v *virtualServer) realServer(b *backend) (used method, refusal string) {
	used = v.method
	settings := v.settings
	var checkers []*item
	for _, i := range b.item.items {
		if settings.take(v.conversion, b.message, i) {
			continue
		}
		switch i.keyword() {
		case "weight":
			weight, ok := number(i.value(1), 0, 65535)
			if !ok {
				v.note(b.message, LeftOut, i, "not a weight: 1 is used")
				weight = 1
			}
			b.weight = weight
		case "lb_kind", "lvs_method":
			used = methodOf(i)
		case "inhibit_on_failure":
			if isOn(i) {
				v.keepOnDown(i)
			}
		case "HTTP_GET", "SSL_GET", "TCP_CHECK", "SMTP_CHECK", "DNS_CHECK", "UDP_CHECK", "PING_CHECK":
			checkers = append(checkers, i)
		default:
			v.other(b.message, i)
		}
	}
	if refusal = used.refusal(); refusal != "" {
		return used, refusal
	}
	port := v.portOf(b.message, b.item)
	for _, i := range checkers {
		for _, name := range v.checksOf(b, i, settings, port) {
			if !slices.Contains(b.checks, name) {
				b.checks = append(b.checks, name)
			}
		}
	}
	return used, ""
}

// portOf a server; tunnels keep the VIP's.
func (v *virtualServer) portOf(target proto.Message, server *item) string {
	port := server.value(2)
	switch {
	case port == "" || port == "0":
		port = ""
		if len(v.ports) > 0 {
			port = v.ports[0]
		}
	case len(v.ports) > 0 && !slices.Contains(v.ports, port):
		v.note(target, Differs, server, "tunnels keep ports, as DR and TUN do: it must listen on port %s", quote(v.ports[0]))
	}
	return port
}

// encapOf the service is that of its first server.
func (v *virtualServer) encapOf(used method) {
	if v.service.Encap == nil {
		v.service.Encap = proto.String(used.encap())
	} else if v.service.GetEncap() != used.encap() {
		v.note(v.service, Differs, used.item, "the service's tunnel is %s, for this server too", v.service.GetEncap())
	}
	if used.tunnel == "gue" && used.port != "6080" {
		v.note(v.service, Differs, used.item, "GUE goes to UDP port 6080")
	}
	if slices.Contains(used.item.words, "remcsum") {
		v.note(v.service, Differs, used.item, "there is no remote checksum offload")
	}
}

// weightMax of ours.
const weightMax = 1000

// weigh as the scheduler did: some look only at whether a weight is 0.
func (v *virtualServer) weigh(backends []*backend) {
	isEven := v.algo == "rr" || v.algo == "lc" || v.algo == "dh"
	most, isMixed := 0, false
	for _, b := range backends {
		isMixed = isMixed || b.weight > 0 && most > 0 && b.weight != most
		most = max(most, b.weight)
	}
	for _, b := range backends {
		weight := b.weight
		switch {
		case isEven && weight > 0:
			weight = 1
			if isMixed {
				v.note(b.message, Differs, b.item, "weight %d is not taken, because %s ignores weights: give `weight` if it should count", b.weight, v.algo)
			}
		case most > weightMax && weight > 0:
			weight = max(1, weight*weightMax/most)
			v.note(b.message, Differs, b.item, "weight %d (of at most %d) becomes %d (of at most %d)", b.weight, most, weight, weightMax)
		}
		if weight != 1 {
			b.message.Weight = proto.Uint32(uint32(weight))
		}
	}
}

// failover of the scheduler fo: all goes to the server of the highest weight. Two that share what
// was meant for one at a time could do harm, so those behind the second are left out.
func (v *virtualServer) failover(backends []*backend) (own, backup []*backend) {
	byWeight := slices.Clone(backends)
	slices.SortStableFunc(byWeight, func(a, b *backend) int { return cmp.Compare(b.weight, a.weight) })
	for _, b := range byWeight {
		b.message.Weight = nil
		switch {
		case b.weight == 0 || len(own) > 0 && len(backup) > 0:
			v.note(v.service, LeftOut, b.item, "fo uses one server at a time: only the two of the highest weights are converted")
		case len(own) == 0:
			own = append(own, b)
		default:
			backup = append(backup, b)
		}
	}
	if len(own) == 0 {
		byWeight[0].message.Weight = proto.Uint32(0)
		return byWeight[:1], nil
	}
	return own, backup
}

// poolsOf servers, one for each set of checks. A pool that another virtual server has, too, is
// the same; what is said of its servers then stands above the service.
func (v *virtualServer) poolsOf(backends []*backend, name string) (names []string) {
	bySet := map[string]*configv1.Pool{}
	var pools []*configv1.Pool
	for _, b := range backends {
		set := strings.Join(b.checks, " ")
		pool := bySet[set]
		if pool == nil {
			pool = &configv1.Pool{HealthChecks: b.checks}
			bySet[set] = pool
			pools = append(pools, pool)
		}
		pool.Backends = append(pool.Backends, b.message)
	}
	for _, pool := range pools {
		content := contentOf(pool)
		if known := v.pools[content]; known != nil {
			v.retarget(pool)
			names = append(names, known.Name)
			continue
		}
		pool.Name = v.unique("pool", name)
		v.pools[content] = pool
		v.origins[pool] = v.item
		v.Config.Pools = append(v.Config.Pools, pool)
		names = append(names, pool.Name)
	}
	return names
}

// retarget notes on servers of a pool that is not used.
func (v *virtualServer) retarget(pool *configv1.Pool) {
	unused := map[proto.Message]bool{}
	for _, b := range pool.Backends {
		unused[b] = true
	}
	for i := range v.notes[v.firstNote:] {
		if n := &v.notes[v.firstNote+i]; unused[n.target] {
			n.target = v.service
		}
	}
}

// contentOf a message that has no name yet, to find one that is the same.
func contentOf(m proto.Message) string {
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("keepalived: marshal %T: %v", m, err)) // all its text is UTF-8
	}
	return string(content)
}
