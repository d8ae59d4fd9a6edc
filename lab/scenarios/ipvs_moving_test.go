//go:build vms

package scenarios_test

import (
	"net/netip"
	"regexp"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

// One of two VIPs is moved from a machine with keepalived and IPVS to one with Guideway, and
// back, under load. Connections are not handed over: how many of them break is counted. The
// other VIP, which stays, loses nothing.
func TestMovingFromIPVS(t *testing.T) {
	o := optionsAlone(t, "moving")
	o.Router, o.Encap, o.OneOwner, o.Backends, o.Queues = topology.NoRouter, "l2", true, 3, 1
	m := &moving{running: up(t, o)}
	m.begin(t)
	c := &comparison{running: m.running, owner: m, cells: map[string]map[string]*effects{}, sides: []string{"connections broken / requests of the other VIP failed / longest wait"}}
	for range ipvsRounds(t) {
		c.event(t, "the VIP moves from keepalived to Guideway", "", func() { m.move(t, true) })
		c.event(t, "it moves back", "", func() { m.move(t, false) })
	}
	for _, event := range c.events {
		if e := c.cells[event][c.sides[0]]; e.failed > 0 || e.broken == 0 {
			t.Errorf("%s: %s: %v: of the VIP that stays nothing is lost, and of the other one connections are", event, e, e.reasons)
		}
	}
	c.write(t)
}

type moving struct {
	running *hosts.Lab
	// keepalived's machine, and Guideway's.
	from, to string
	config   hosts.Keepalived
	hasMoved bool
}

// begin with keepalived on one machine; the other one has Guideway, which probes the servers
// and owns nothing.
func (m *moving) begin(t *testing.T) {
	t.Helper()
	m.from = m.running.PreferredOwner()
	m.to = otherThan(m.running, m.from)
	stopGuideway(t, m.running, m.from)
	m.own(t, "")
	m.config = hosts.Keepalived{VIPs: []netip.Addr{topology.WebVIPs[0], topology.EchoVIPs[0]}, Weights: m.running.Weights()}
	if err := m.running.StartKeepalived(m.from, m.config); err != nil {
		t.Fatal(err)
	}
	m.await(t)
}

// notMoving are the lines of the lab's config for who owns VIPs, and for services that stay.
var notMoving = regexp.MustCompile(`(?m)^(vrrp:|- \{name: (web|echo-udp), vips:).*\n`)

// own by Guideway the VIPs of the service that moves, if this line of its config says so.
func (m *moving) own(t *testing.T, line string) {
	t.Helper()
	editConfig(t, m.running, m.to, func(text string) string { return line + notMoving.ReplaceAllString(text, "") })
}

func (m *moving) move(t *testing.T, there bool) {
	t.Helper()
	m.hasMoved = there
	if there {
		m.config.VIPs = m.config.VIPs[:1]
		m.reload(t)
		m.own(t, "vrrp: {interface: eth0, interval: 200ms}\n")
	} else {
		m.config.VIPs = []netip.Addr{topology.WebVIPs[0], topology.EchoVIPs[0]}
		m.own(t, "")
		m.reload(t)
	}
	time.Sleep(ipvsAfter) // until those connections that broke are known to be
	if there && m.tracked(t) == 0 {
		t.Fatal("Guideway tracks no connection of the VIP")
	}
}

func (m *moving) reload(t *testing.T) {
	t.Helper()
	if err := m.running.ReloadKeepalived(m.from, m.config); err != nil {
		t.Fatal(err)
	}
	m.await(t)
}

func (m *moving) await(t *testing.T) {
	t.Helper()
	if err := m.running.WaitKeepalived(t.Context(), m.from, m.config, true); err != nil {
		t.Fatal(err)
	}
}

// tracked where the connections' VIP is.
func (m *moving) tracked(t *testing.T) (sum int) {
	t.Helper()
	if !m.hasMoved {
		count, err := m.running.IPVSConnections(m.from)
		if err != nil {
			t.Fatal(err)
		}
		return count
	}
	return trackedBy(t, m.running, m.to)
}
