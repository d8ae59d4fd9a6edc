package vrrp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/speaker/vrrp/election"
	"github.com/guideway/guideway/speaker/vrrp/packet"
)

// detectionMax is three intervals and the skew of a priority of 130 or more, and what a
// busy machine adds.
const detectionMax = 360 * time.Millisecond

// within the limit, and what is due to machines that did not run meanwhile, by their own
// account: they are late by as much, and may begin to wait anew.
func within(limit time.Duration, machines ...*machine) time.Duration {
	for _, m := range machines {
		if late := m.now().Late; late > 20*time.Millisecond {
			m.t.Logf("machine %d did not run for %v", m.number, late)
			limit += late + detectionMax
		}
	}
	return limit
}

// pair of machines on one switch, the first the owner.
func pair(t *testing.T, change func(*Desired)) (*network, *machine, *machine) {
	t.Helper()
	n := newNetwork(t)
	owner := n.machine(1, 250, "second", change)
	owner.await(election.Active)
	other := n.machine(2, 242, "second", change)
	other.await(election.Backup)
	return n, owner, other
}

// A look at the same state may not find that it began at another time: it would be an event.
func TestAStateHasOneBegin(t *testing.T) {
	_, owner, _ := pair(t, nil)
	begins := map[time.Time]bool{}
	for range 50 {
		begins[owner.now().Routers[0].Since.UTC()] = true
		time.Sleep(20 * time.Millisecond)
	}
	if len(begins) != 1 {
		t.Errorf("it began at %v", begins)
	}
}

func (n *network) expectReaches(m *machine) {
	n.t.Helper()
	if !eventually(3*time.Second, func() bool { return n.client.reaches(m) }) {
		n.t.Fatalf("the client has %v, machine %d is %s", n.client.neighbors(), m.number, m.mac)
	}
}

// expectTold: the client has the new MAC address without asking.
func (n *network) expectTold(m *machine, since time.Time) {
	n.t.Helper()
	if !eventually(time.Second, func() bool {
		entries := n.client.neighbors()
		return strings.HasPrefix(entries[vip4], m.mac.String()) && strings.HasPrefix(entries[vip6], m.mac.String())
	}) {
		n.t.Fatalf("the client has %v, machine %d is %s", n.client.neighbors(), m.number, m.mac)
	}
	n.t.Logf("the client has the MAC address of machine %d, %v after", m.number, time.Since(since).Round(time.Millisecond))
}

func TestAClientReachesTheOwnerAndTheNextOneWithinItsTimeWhenThatIsKilled(t *testing.T) {
	n, owner, other := pair(t, nil)
	n.expectReaches(owner)
	c := n.client.capture()
	time.Sleep(250 * time.Millisecond)
	killed := time.Now()
	owner.kill()
	other.await(election.Active)
	n.expectTold(other, killed)
	for _, ipv6 := range []bool{false, true} {
		gap, ok := c.gap(owner, other, ipv6, false)
		if !ok || gap > within(detectionMax, owner, other) {
			t.Errorf("IPv6 %v: %v between the owner's last advertisement and the next one's first (%v)", ipv6, gap, ok)
		}
		t.Logf("IPv6 %v: detected after %v", ipv6, gap)
	}
	owner.start()
	owner.await(election.Active)
	other.await(election.Backup)
	n.expectTold(owner, time.Now())
}

func TestAnOwnerThatStopsIsFollowedAtOnce(t *testing.T) {
	n, owner, other := pair(t, nil)
	n.expectReaches(owner)
	c := n.client.capture()
	owner.signal(unix.SIGTERM)
	other.await(election.Active)
	n.expectTold(other, time.Now())
	for _, ipv6 := range []bool{false, true} {
		// The skew is 5.5 ms.
		gap, ok := c.gap(owner, other, ipv6, true)
		if !ok || gap > within(60*time.Millisecond, owner, other) {
			t.Errorf("IPv6 %v: %v between its resignation and the next one's advertisement (%v)", ipv6, gap, ok)
		}
		t.Logf("IPv6 %v: followed after %v", ipv6, gap)
	}
}

func TestAWithheldMachineResignsAndASlowOneGivesWay(t *testing.T) {
	n, owner, other := pair(t, nil)
	owner.set(func(d *Desired) { d.Standing.Slow = true })
	other.await(election.Active)
	owner.await(election.Backup)
	owner.set(func(d *Desired) { d.Standing.Slow = false })
	owner.await(election.Active)
	owner.set(func(d *Desired) { d.Standing.Withheld = "drained" })
	owner.await(election.Initialize)
	other.await(election.Active)
	n.expectReaches(other)
	if reason := owner.now().Routers[0].Reason; reason != "drained" {
		t.Errorf("reason %q", reason)
	}
}

func TestASplitHasTwoOwnersAndHealsToOne(t *testing.T) {
	n := newNetwork(t)
	owner, other := n.machine(1, 250, "first", nil), n.machine(2, 242, "second", nil)
	owner.await(election.Active)
	other.await(election.Backup)
	n.expectReaches(owner)
	ip(t, n.switches, "link set cable-1 down")
	other.await(election.Active)
	owner.await(election.Active)
	n.expectReaches(other)
	healed := time.Now()
	ip(t, n.switches, "link set cable-1 up")
	other.await(election.Backup)
	owner.await(election.Active)
	// Its rounds of announcements are long over: a lower owner was heard.
	n.expectTold(owner, healed)
}

func TestALinkThatGoesDownResignsNothingElseAndComesBack(t *testing.T) {
	n, owner, other := pair(t, nil)
	ip(t, n.switches, "link set port-1 down")
	other.await(election.Active)
	owner.await(election.Initialize)
	if reason := owner.now().Routers[0].Reason; reason != "the link is down" {
		t.Errorf("reason %q", reason)
	}
	ip(t, n.switches, "link set port-1 up")
	ip(t, owner.namespace, "addr replace fe80::1/64 dev eth0 nodad") // which went with the link
	owner.await(election.Active)
	other.await(election.Backup)
	n.expectReaches(owner)
}

// The switch sends to the former port until the owner says something, which it does in each
// interval.
func TestAnOwnerAtAnotherPortIsReachedAgainWithinAnInterval(t *testing.T) {
	n := newNetwork(t)
	owner := n.machine(1, 250, "first", nil)
	owner.await(election.Active)
	other := n.machine(2, 242, "second", nil)
	other.await(election.Backup)
	n.expectReaches(owner)
	count := owner.datagrams()
	send := n.client.sender()
	reached := func() bool {
		send()
		return count() > 0
	}
	if !eventually(time.Second, reached) {
		t.Fatal("no datagram to the VIP reached its owner")
	}
	count()
	ip(t, n.switches, "link set port-1 nomaster", "link set port-1 master second")
	moved := time.Now()
	if limit := within(100*time.Millisecond+detectionMax, owner); !eventually(limit, reached) {
		t.Errorf("not within %v", limit)
	}
	t.Logf("reached after %v", time.Since(moved).Round(time.Millisecond))
	if became := other.now().Counts.BecameActive; became > 0 {
		t.Errorf("the other one became the owner %d times", became)
	}
}

func TestAnInterfaceThatIsMadeAnewIsUsedAndAnAddressThatChangesIsFollowed(t *testing.T) {
	n, owner, other := pair(t, nil)
	ip(t, n.switches, "link del port-1")
	other.await(election.Active)
	if !eventually(time.Second, func() bool { return strings.Contains(owner.now().Problem, "interface eth0") }) {
		t.Errorf("problem %q", owner.now().Problem)
	}
	owner.plugIn("second")
	owner.await(election.Active)
	n.expectReaches(owner)
	ip(t, owner.namespace, "addr del 192.0.2.1/24 dev eth0", "addr add 192.0.2.11/24 dev eth0")
	want := netip.MustParseAddr("192.0.2.11")
	if !eventually(time.Second, func() bool { return owner.now().Link.IPv4 == want && owner.isIn(election.Active) }) {
		t.Errorf("%+v", owner.now())
	}
	if !eventually(time.Second, func() bool { return other.now().Routers[0].Owner == want }) {
		t.Errorf("the other hears %s", other.now().Routers[0].Owner)
	}
	if problem := owner.now().Problem; problem != "" {
		t.Errorf("problem %q", problem)
	}
}

func TestAProcessThatStoodStillComesBackAsBackup(t *testing.T) {
	n, owner, other := pair(t, nil)
	n.expectReaches(owner)
	c := n.client.capture()
	owner.signal(unix.SIGSTOP)
	other.await(election.Active)
	n.expectTold(other, time.Now())
	time.Sleep(300 * time.Millisecond)
	resumed := time.Now()
	owner.signal(unix.SIGCONT)
	owner.await(election.Active) // it preempts, in its time
	other.await(election.Backup)
	n.expectReaches(owner)
	for _, s := range c.all() {
		if s.advertises && s.sender == owner.mac && s.at.After(resumed) {
			if waited := s.at.Sub(resumed); waited < 290*time.Millisecond {
				t.Errorf("it advertised %v after it went on", waited)
			}
			break
		}
	}
	if owner.now().Counts.StoodStill == 0 {
		t.Errorf("%+v", owner.now().Counts)
	}
}

// The client's kernel asks for what it has by unicast, now and then; an entry that is not
// confirmed fails.
func TestAClientsEntriesAreConfirmed(t *testing.T) {
	n, owner, other := pair(t, nil)
	settings := []string{}
	for _, family := range []string{"ipv4", "ipv6"} {
		settings = append(settings, family+"/neigh/eth0/base_reachable_time_ms=500", family+"/neigh/eth0/delay_first_probe_time=1")
	}
	if err := topology.SetSysctls(n.client.namespace, settings); err != nil {
		t.Fatal(err)
	}
	n.expectReaches(owner)
	c := n.client.capture()
	lost := ""
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		n.client.ask()
		for vip, entry := range n.client.neighbors() {
			if (vip == vip4 || vip == vip6) && (!strings.HasPrefix(entry, owner.mac.String()) || strings.Contains(entry, "FAILED")) {
				lost = vip.String() + ": " + entry
			}
		}
	}
	var asked, answered [2]int
	all := eventually(time.Second, func() bool {
		asked, answered = confirmations(c)
		return answered[0] >= asked[0] && answered[1] >= asked[1]
	})
	// Of a machine that stood still those of its time as backup have no answer.
	if answered[0] == 0 || answered[1] == 0 || (!all || lost != "") && within(0, owner, other) == 0 {
		t.Errorf("by unicast, of each family: %v asked, %v answered; lost %q", asked, answered, lost)
	}
}

// confirmations that were asked for by unicast, and answered: of IPv4, of IPv6.
func confirmations(c *capture) (asked, answered [2]int) {
	for _, s := range c.all() {
		switch {
		case s.toAll:
		case s.arp != nil && s.arp.Operation == packet.ARPRequest && s.arp.Target == vip4:
			asked[0]++
		case s.arp != nil && s.arp.Sender == vip4:
			answered[0]++
		case s.neighbor != nil && s.neighbor.Solicitation && s.neighbor.Target == vip6:
			asked[1]++
		case s.neighbor != nil && s.neighbor.Target == vip6:
			answered[1]++
		}
	}
	return asked, answered
}

func TestAHostThatWantsTheVIPAsItsOwnIsToldThatItIsTaken(t *testing.T) {
	n, owner, _ := pair(t, nil)
	thief := n.host(66, "second")
	if err := topology.SetSysctls(thief.namespace, []string{"ipv6/conf/all/accept_dad=1", "ipv6/conf/eth0/accept_dad=1"}); err != nil {
		t.Fatal(err)
	}
	ip(t, thief.namespace, "addr add "+vip6.String()+"/64 dev eth0")
	if !eventually(3*time.Second, func() bool {
		return strings.Contains(run(t, "ip", "-n", thief.namespace, "addr", "show", "dev", "eth0"), "dadfailed")
	}) {
		t.Errorf("duplicate address detection found nothing:\n%s", run(t, "ip", "-n", thief.namespace, "addr", "show", "dev", "eth0"))
	}
	owner.await(election.Active)
}

func TestAClaimOfTheVIPIsSeenAndAnsweredByAnnouncements(t *testing.T) {
	n, owner, _ := pair(t, nil)
	n.expectReaches(owner)
	thief := n.host(66, "second")
	thief.send(packet.AnnounceARP(vip4, thief.mac, packet.ARPRequest), packet.AnnounceNeighbor(vip6, thief.mac))
	if !eventually(3*time.Second, func() bool { return owner.now().Counts.SecondOwners >= 2 }) {
		t.Errorf("%+v", owner.now().Counts)
	}
	n.expectTold(owner, time.Now())
}

// receivesNothing, while it sends, until the function that it gives is called.
func (m *machine) receivesNothing() (end func()) {
	m.t.Helper()
	nft := func(rule string) { run(m.t, "ip", "netns", "exec", m.namespace, "nft", rule) }
	nft("add table netdev deaf; add chain netdev deaf ingress { type filter hook ingress device eth0 priority 0; policy drop; }")
	return func() { nft("delete table netdev deaf") }
}

// awaitAnswers of all that it probes, which are so many.
func (m *machine) awaitAnswers(targets int) {
	m.t.Helper()
	if !eventually(5*time.Second, func() bool {
		answers := 0
		for _, probe := range m.now().Probes {
			if probe.Answers {
				answers++
			}
		}
		return answers == targets && len(m.now().Probes) == targets
	}) {
		m.t.Fatalf("machine %d, of %d: %+v", m.number, targets, m.now().Probes)
	}
}

func (m *machine) expectGivenUpAndTakenBack(other *machine) {
	m.t.Helper()
	receives := m.receivesNothing()
	m.await(election.Initialize)
	other.await(election.Active)
	if reason := m.now().Routers[0].Reason; reason != "nothing is received on the interface" {
		m.t.Errorf("reason %q", reason)
	}
	receives()
	m.await(election.Active)
	other.await(election.Backup)
}

func TestALinkThatReceivesNothingIsGivenUp(t *testing.T) {
	t.Run("probes of the config", func(t *testing.T) {
		_, owner, other := pair(t, func(d *Desired) { d.Probes = []netip.Addr{gateway} })
		owner.awaitAnswers(1)
		owner.expectGivenUpAndTakenBack(other)
	})
	t.Run("gateways", func(t *testing.T) {
		_, owner, other := pair(t, nil)
		owner.awaitAnswers(0)
		ip(t, owner.namespace, "route add default via "+gateway.String(), "route add 2001:db8:9::/64 nexthop via fe80::254 dev eth0 nexthop via fe80::253 dev eth0")
		if !eventually(5*time.Second, func() bool { return len(owner.now().Probes) == 3 }) {
			t.Fatalf("%+v", owner.now().Probes)
		}
		ip(t, owner.namespace, "route replace 2001:db8:9::/64 via fe80::254 dev eth0")
		owner.awaitAnswers(2)
		owner.expectGivenUpAndTakenBack(other)
		// As a router advertisement's routes do.
		receives := owner.receivesNothing()
		owner.await(election.Initialize)
		ip(t, owner.namespace, "route del default", "route del 2001:db8:9::/64")
		time.Sleep(2 * lookPause)
		owner.await(election.Initialize)
		receives()
		owner.await(election.Active)
	})
}

func TestGatewaysAreNextHopsOfTheMainTableOverTheInterface(t *testing.T) {
	if why := whyNoNamespaces(); why != "" {
		t.Skip(why)
	}
	at := namespace(t, "routes")
	ip(t, at,
		"link add other type veth peer name eth0", "link set other up", "addr add 198.51.100.1/24 dev other",
		"link set eth0 up", "addr add 192.0.2.1/24 dev eth0", "addr add fe80::1/64 dev eth0 nodad",
		"route add default via 198.51.100.254", "route add 10.1.0.0/16 via 192.0.2.9", "route add 10.2.0.0/16 via 192.0.2.9",
		"route add 10.3.0.0/16 nexthop via 198.51.100.253 nexthop via 192.0.2.8", "route add 10.4.0.0/16 dev eth0",
		"route add 10.5.0.0/16 via 192.0.2.7 table 7", "route add default via fe80::9 dev eth0",
	)
	for ipv6, want := range map[bool]string{false: "[192.0.2.8 192.0.2.9]", true: "[fe80::9]"} {
		err := topology.Inside(at, func() error {
			link, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			if got, err := gatewaysOn(link.Index, ipv6); err != nil || fmt.Sprint(got) != want {
				t.Errorf("IPv6 %v: %v, want %s: %v", ipv6, got, want, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// expectNobodyGivesUp in the time in which a link that receives nothing is given up. A machine
// that did not run becomes a backup, which is another matter; two that were late by a second
// together may miss both probes that one hears of the other in its doubts.
func expectNobodyGivesUp(t *testing.T, owner, other *machine) {
	t.Helper()
	for began := time.Now(); time.Since(began) < 6*time.Second; time.Sleep(5 * time.Millisecond) {
		for _, r := range slices.Concat(owner.now().Routers, other.now().Routers) {
			if late := owner.now().Late + other.now().Late; r.State == election.Initialize {
				t.Logf("after %v, late by %v: %+v", time.Since(began), late, r)
				if late < time.Second {
					t.FailNow()
				}
			}
		}
	}
	owner.await(election.Active)
	other.await(election.Backup)
}

func TestAGatewayThatIsSilentMovesNothing(t *testing.T) {
	for what, through := range map[string][3]string{ // the owner's, the other machine's, and what is silent
		"it never answered":           {"192.0.2.77", "192.0.2.77", ""},
		"it is silent for both":       {"192.0.2.99", "192.0.2.99", "port-99"},
		"the others have another one": {"192.0.2.99", "192.0.2.254", "port-99"},
	} {
		t.Run(what, func(t *testing.T) {
			n, owner, other := pair(t, nil)
			n.host(99, "second")
			for i, m := range []*machine{owner, other} {
				ip(t, m.namespace, "route add default via "+through[i])
			}
			if through[2] != "" {
				owner.awaitAnswers(1)
				other.awaitAnswers(1)
				ip(t, n.switches, "link set "+through[2]+" down")
			}
			expectNobodyGivesUp(t, owner, other)
			if probes := owner.now().Probes; len(probes) != 1 || probes[0].Answers {
				t.Errorf("%+v", probes)
			}
		})
	}
}

func TestOtherVirtualRoutersAndMalformedPacketsDisturbNobody(t *testing.T) {
	n, owner, other := pair(t, nil)
	n.expectReaches(owner)
	before := owner.now()
	stranger := n.host(66, "second")
	foreign := packet.Advertisement{VRID: 99, Priority: 255, Interval: 10 * time.Millisecond, Addresses: []netip.Addr{vip4}}
	forwarded := packet.Advertisement{VRID: vrid, Priority: 255, Interval: 10 * time.Millisecond, Addresses: []netip.Addr{vip4}}
	stranger.flood(255, foreign.Message(netip.MustParseAddr("192.0.2.66")), 20_000)
	stranger.flood(64, forwarded.Message(netip.MustParseAddr("192.0.2.66")), 10)
	stranger.flood(255, []byte{0x31, vrid, 255, 1, 0, 1, 0, 0, 1, 2, 3, 4}, 10)
	if !eventually(2*time.Second, func() bool {
		now := owner.now()
		return now.Malformed[packet.WrongHopLimit] == 10 && now.Malformed[packet.WrongChecksum] == 10
	}) {
		t.Errorf("malformed %v", owner.now().Malformed)
	}
	if now := owner.now(); now.Counts.AdvertisementsHeard != before.Counts.AdvertisementsHeard && within(0, owner, other) == 0 {
		t.Errorf("the owner heard others: %+v", now)
	}
}

func TestAFloodOfQuestionsForTheVIPMovesNothingAndKeepsNobodyFromAnAnswer(t *testing.T) {
	n, owner, other := pair(t, nil)
	stranger := n.host(66, "second")
	var flood [][]byte
	for range 100 {
		flood = append(flood, packet.RequestARP(vip4, netip.MustParseAddr("192.0.2.66"), stranger.mac))
	}
	before, began := owner.processorTime(), time.Now()
	for time.Since(began) < 2*time.Second {
		stranger.send(flood...)
	}
	n.expectReaches(owner)
	counts, lasted := owner.now().Counts, time.Since(began)
	t.Logf("in %v: %v of a processor, %d answered, %d not answered", lasted.Round(time.Millisecond), owner.processorTime()-before, counts.Answered, counts.NotAnswered)
	if most := 1000 + 500*uint64(lasted.Seconds()+1) + 20; counts.Answered > most || counts.NotAnswered == 0 {
		t.Errorf("%d answered in %v, %d not", counts.Answered, lasted, counts.NotAnswered)
	}
	if moved := owner.now().Counts.BecameActive > 2; moved && within(0, owner, other) == 0 {
		t.Errorf("the owner changed: %+v, %+v", owner.now(), other.now())
	}
}

// All candidates are members from the start; a kill leaves neither them nor an address.
func TestACandidateIsAMemberOfTheSolicitedNodeGroupsAndAKillLeavesNothing(t *testing.T) {
	_, owner, other := pair(t, nil)
	for _, m := range []*machine{owner, other} {
		groups := run(t, "ip", "-n", m.namespace, "maddr", "show", "dev", "eth0")
		for _, group := range []string{packet.SolicitedNode(vip6).String(), packet.SolicitedNode(packet.VirtualLinkLocal(vrid)).String(), "ff02::12", "224.0.0.18"} {
			if !strings.Contains(groups, group+"\n") && !strings.Contains(groups, group+" ") {
				t.Errorf("machine %d is no member of %s:\n%s", m.number, group, groups)
			}
		}
	}
	addresses := run(t, "ip", "-n", owner.namespace, "-o", "addr")
	owner.kill()
	if got := run(t, "ip", "-n", owner.namespace, "-o", "addr"); strings.Contains(addresses, vip4.String()) || got != addresses {
		t.Errorf("addresses while it was the owner:\n%s\nand after:\n%s", addresses, got)
	}
	if groups := run(t, "ip", "-n", owner.namespace, "maddr", "show", "dev", "eth0"); strings.Contains(groups, "224.0.0.18") {
		t.Errorf("left behind:\n%s", groups)
	}
}

// More VIPs than the kernel's filters hold, and than one socket has memberships.
func TestAThousandVIPsAreAnsweredAndAnnounced(t *testing.T) {
	n := newNetwork(t)
	c := n.client.capture()
	last := map[bool]netip.Addr{}
	m := n.machine(1, 250, "second", func(d *Desired) {
		for i := range 600 {
			last[false] = netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})
			if i > 255 {
				last[false] = netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
			}
			if last[false] != vip4 {
				d.Groups[0].VIPs = append(d.Groups[0].VIPs, last[false])
			}
			last[true] = netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 1, 0x13, 13: 1, 14: byte(i >> 8), 15: byte(i)})
			d.Groups[0].VIPs = append(d.Groups[0].VIPs, last[true])
		}
		d.Pace = election.Pace{PerSecond: 2000, Burst: 200}
	})
	m.await(election.Active)
	if !eventually(3*time.Second, func() bool { return m.now().Counts.Announced >= 1202 }) {
		t.Errorf("announced %+v", m.now().Counts)
	}
	if got := strings.Count(run(t, "ip", "-n", m.namespace, "maddr", "show", "dev", "eth0"), "ff02::1:ff"); got < 600 {
		t.Errorf("it is a member of %d solicited-node groups", got)
	}
	answers := func() (found int) {
		for _, s := range c.all() {
			if s.sender == m.mac && !s.toAll && (s.arp != nil && s.arp.Sender == last[false] || s.neighbor != nil && s.neighbor.Target == last[true]) {
				found++
			}
		}
		return found
	}
	n.client.send(packet.RequestARP(last[false], gateway, n.client.mac), packet.SolicitNeighbor(last[true], netip.MustParseAddr("fe80::254"), n.client.mac))
	if !eventually(2*time.Second, func() bool { return answers() == 2 }) {
		t.Errorf("%d answers for the last VIPs", answers())
	}
}

func TestAVIPThatIsAnAddressOfTheInterfaceIsAProblem(t *testing.T) {
	n := newNetwork(t)
	m := n.machine(1, 250, "second", nil)
	ip(t, m.namespace, "addr add "+vip4.String()+"/32 dev eth0")
	if !eventually(2*time.Second, func() bool {
		return strings.Contains(m.now().Problem, "VIP 203.0.113.1 is an address of interface eth0")
	}) {
		t.Errorf("problem %q", m.now().Problem)
	}
}

func TestWithoutCapNetRawThereIsASentenceWithTheCure(t *testing.T) {
	n := newNetwork(t)
	h := n.host(1, "second")
	problem := ""
	err := withoutCapability(unix.CAP_NET_RAW, func() {
		if err := enter(h.namespace); err != nil {
			problem = err.Error()
			return
		}
		s, err := New(slog.New(slog.DiscardHandler), func(election.Action) {})
		if err != nil {
			problem = err.Error()
			return
		}
		if err := s.Set(Desired{Interface: "eth0", Config: election.Config{Interval: time.Second, Groups: []election.Group{{VRID: vrid, Priority: 1, VIPs: []netip.Addr{vip4}}}}}); err != nil {
			problem = err.Error()
		}
		ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer stop()
		s.Run(ctx)
		problem += s.Shown().Problem
		_ = s.Set(Desired{}) // who is late does no harm
	})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(problem, "vrrp on eth0 needs CAP_NET_RAW: give it to the speaker (`AmbientCapabilities=CAP_NET_RAW`") {
		t.Errorf("problem %q", problem)
	}
}

func TestADesiredStateThatCannotBeIsRefused(t *testing.T) {
	s, err := New(slog.New(slog.DiscardHandler), func(election.Action) {})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := s.Set(Desired{Interface: "eth0"}); err == nil || !strings.HasPrefix(err.Error(), "vrrp: interval 0s") {
		t.Errorf("%v", err)
	}
	if err := s.Set(Desired{}); err != nil {
		t.Errorf("nothing desired: %v", err)
	}
	runtime.KeepAlive(s)
}
