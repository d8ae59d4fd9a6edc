package keepalived

// keepalived's VRRP settings. They are not converted, but an equivalent `vrrp` is printed:
// a machine that had it would take the VIPs from keepalived as soon as it starts.

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// vrrp is also the fate of what belongs to an instance.
var vrrp = known{LeftOut, "VRRP is not converted, so that nothing takes VIPs from keepalived by surprise: give `vrrp` (docs/vrrp.md)"}

// vrrpInstance has the facts of one.
type vrrpInstance struct {
	item *item
	// As they are written; empty: not given.
	device, state, routerID, priority, interval string
	// What it owns, each at its item, and the other machines.
	addresses []*item
	peers     []string
	// Keywords that are none of these.
	others []string
}

func (c *conversion) vrrpInstance(i *item) {
	instance := readVRRPInstance(i)
	if c.Interface == "" {
		c.Interface = instance.device
	}
	c.instances = append(c.instances, instance)
	c.note(nil, LeftOut, i, "%s. %s", vrrp.why, instance.facts())
}

func readVRRPInstance(i *item) vrrpInstance {
	instance := vrrpInstance{item: i}
	facts := map[string]*string{
		"interface": &instance.device, "state": &instance.state, "virtual_router_id": &instance.routerID,
		"priority": &instance.priority, "advert_int": &instance.interval,
	}
	for _, inner := range i.items {
		switch keyword := inner.keyword(); keyword {
		case "virtual_ipaddress", "virtual_ipaddress_excluded":
			instance.addresses = append(instance.addresses, inner.items...)
		case "unicast_peer":
			for _, peer := range inner.items {
				instance.peers = append(instance.peers, quote(peer.keyword()))
			}
		default:
			if fact := facts[keyword]; fact != nil {
				*fact = quote(inner.value(1))
			} else if other := quote(keyword); keyword != "" && !slices.Contains(instance.others, other) {
				instance.others = append(instance.others, other)
			}
		}
	}
	return instance
}

// facts in one line.
func (v vrrpInstance) facts() string {
	var addresses []string
	for _, i := range v.addresses {
		addresses = append(addresses, quote(i.keyword()))
	}
	var facts []string
	for _, fact := range []struct{ name, value string }{
		{"interface", v.device}, {"virtual_router_id", v.routerID}, {"priority", v.priority}, {"state", v.state}, {"advert_int", v.interval},
		{"addresses", strings.Join(addresses, ", ")}, {"peers", strings.Join(v.peers, ", ")}, {"also given", strings.Join(v.others, ", ")},
	} {
		if fact.value != "" {
			facts = append(facts, fmt.Sprintf("%s: %s", fact.name, fact.value))
		}
	}
	return strings.Join(facts, "; ")
}

// addressesWithoutService are VIPs that keepalived alone keeps.
func (c *conversion) addressesWithoutService() {
	served := map[string]bool{}
	for _, service := range c.Config.Services {
		for _, vip := range service.Vips {
			served[vip.GetAddress()] = true
		}
	}
	for _, instance := range c.instances {
		for _, i := range instance.addresses {
			text, _, _ := strings.Cut(i.keyword(), "/")
			if address, err := netip.ParseAddr(text); err == nil && !served[address.String()] && !served[text] {
				c.note(nil, LeftOut, i, "a VIP without a service: no virtual_server of this address was converted")
			}
		}
	}
}
