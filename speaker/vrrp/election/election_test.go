package election

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/speaker/vrrp/packet"
)

const interval = 100 * time.Millisecond

var (
	start   = time.Unix(1000, 0)
	own     = netip.MustParseAddr("192.0.2.5")
	lower   = netip.MustParseAddr("192.0.2.4")
	higher  = netip.MustParseAddr("192.0.2.6")
	vip     = netip.MustParseAddr("203.0.113.1")
	vip6    = netip.MustParseAddr("2001:db8::1")
	ourMAC  = packet.MAC{2, 0, 0, 0, 0, 5}
	their   = packet.MAC{2, 0, 0, 0, 0, 9}
	gateway = netip.MustParseAddr("192.0.2.254")
	link    = Link{Up: true, MAC: ourMAC, IPv4: own, IPv6: netip.MustParseAddr("fe80::5"), MTU: 1500}
)

// gatewayAnswers a probe of that address.
func gatewayAnswers(asked netip.Addr) ARPHeard {
	return ARPHeard{packet.ARP{Operation: packet.ARPReply, SenderMAC: their, Sender: gateway, Target: asked}}
}

// driven is a Node whose actions are seen by what they are.
type driven struct {
	t    *testing.T
	node Node
	now  time.Time
	did  []Action
}

// drive a Node of one IPv4 virtual router, 51, of priority 200, from its start.
func drive(t *testing.T, change func(*Config)) *driven {
	config := Config{Interval: interval, Groups: []Group{{VRID: 51, Priority: 200, VIPs: []netip.Addr{vip}}}}
	if change != nil {
		change(&config)
	}
	if err := config.Check(); err != nil {
		t.Fatal(err)
	}
	d := &driven{t: t, now: start}
	d.step(Configure{config})
	d.step(LinkChanged{link})
	return d
}

func (d *driven) step(e Event) []Action {
	did := d.node.Step(e, d.now)
	d.did = append(d.did, did...)
	return did
}

// pass time, with ticks as a Node wants them.
func (d *driven) pass(duration time.Duration) *driven {
	for end := d.now.Add(duration); d.now.Before(end); {
		next := d.node.Next()
		if next.After(end) {
			d.now = end
		} else {
			d.now = later(d.now, next)
		}
		before := d.now
		d.step(Tick{})
		if next := d.node.Next(); !next.After(before) {
			d.t.Fatalf("at %v the next tick is wanted at %v", before.Sub(start), next.Sub(start))
		}
	}
	return d
}

func (d *driven) hear(priority uint8, source netip.Addr) []Action {
	return d.step(AdvertisementHeard{Source: source, Advertisement: packet.Advertisement{VRID: 51, Priority: priority, Interval: interval, Addresses: []netip.Addr{vip}}})
}

func (d *driven) active() *driven {
	d.pass(400 * time.Millisecond)
	d.expect(Active)
	d.did = nil
	return d
}

func (d *driven) expect(state State) {
	d.t.Helper()
	if got := d.node.States()[0]; got.State != state {
		d.t.Fatalf("after %v: %v (%s), want %v", d.now.Sub(start), got.State, got.Reason, state)
	}
}

// taken are the actions since the last time, as words.
func (d *driven) taken() string {
	words := words(d.did)
	d.did = nil
	return words
}

func words(actions []Action) string {
	var words []string
	for _, a := range actions {
		switch a := a.(type) {
		case Advertise:
			words = append(words, fmt.Sprintf("advertise %d", a.Advertisement.Priority))
		case Announce:
			words = append(words, "announce "+a.VIP.String())
		case AnswerARP:
			words = append(words, "answer "+a.Request.Target.String())
		case AnswerNeighbor:
			words = append(words, "answer "+a.Solicitation.Target.String())
		case Probe:
			words = append(words, "probe "+a.Target.String())
		case Changed:
			words = append(words, a.To.String())
		case SecondOwner:
			words = append(words, "second owner")
		}
	}
	return strings.Join(words, ", ")
}

func (d *driven) expectActions(what, want string) {
	d.t.Helper()
	if got := d.taken(); got != want {
		d.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// RFC 9568 section 6.4: each state, each event.
func TestEveryTransition(t *testing.T) {
	const skew = 21875 * time.Microsecond // of priority 200
	initialize := func(d *driven) *driven {
		d.step(StandingChanged{Standing{Withheld: "the forwarder is dead"}})
		return d
	}
	backup := func(d *driven) *driven { return d }
	active := (*driven).active
	hears := func(priority uint8, source netip.Addr) func(*driven) {
		return func(d *driven) { d.hear(priority, source) }
	}
	passes := func(duration time.Duration) func(*driven) { return func(d *driven) { d.pass(duration) } }
	withheld := func(d *driven) { initialize(d) }
	cases := []struct {
		name   string
		config func(*Config)
		from   func(*driven) *driven
		event  func(*driven)
		want   State
		does   string
	}{
		{"Initialize: may run", nil, initialize, func(d *driven) { d.step(StandingChanged{}) }, Backup, "backup"},
		{"Initialize: time", nil, initialize, passes(2 * time.Second), Initialize, ""},
		{"Initialize: an advertisement", nil, initialize, hears(1, lower), Initialize, ""},

		{"Backup: the owner is heard in time", nil, backup, func(d *driven) { d.pass(300*time.Millisecond).hear(200, lower); d.pass(300 * time.Millisecond) }, Backup, ""},
		{"Backup: three intervals and the skew", nil, backup, passes(3*interval + skew - time.Microsecond), Backup, ""},
		{"Backup: Active_Down_Timer", nil, backup, passes(3*interval + skew), Active, "active, advertise 200, announce 203.0.113.1"},
		{"Backup: a lower priority is not waited for", nil, backup, func(d *driven) { d.pass(300*time.Millisecond).hear(199, higher); d.pass(skew) }, Active, "active, advertise 200, announce 203.0.113.1"},
		{"Backup: a lower priority, no preemption", func(c *Config) { c.NoPreempt = true }, backup, func(d *driven) { d.pass(300*time.Millisecond).hear(1, lower); d.pass(300 * time.Millisecond) }, Backup, ""},
		{"Backup: the owner resigns", nil, backup, func(d *driven) { d.hear(0, lower); d.pass(skew) }, Active, "active, advertise 200, announce 203.0.113.1"},
		{"Backup: the owner resigns, before the skew", nil, backup, func(d *driven) { d.hear(0, lower); d.pass(skew - time.Microsecond) }, Backup, ""},
		{"Backup: may not run", nil, backup, withheld, Initialize, "initialize"},
		{"Backup: the link goes", nil, backup, func(d *driven) { d.step(LinkChanged{}) }, Initialize, "initialize"},

		{"Active: Adver_Timer", nil, active, passes(interval), Active, "advertise 200"},
		{"Active: a higher priority", nil, active, hears(201, lower), Backup, "backup"},
		{"Active: the same priority, a greater address", nil, active, hears(200, higher), Backup, "backup"},
		{"Active: the same priority, a smaller address", nil, active, hears(200, lower), Active, "advertise 200"},
		{"Active: a lower priority", nil, active, hears(199, higher), Active, "advertise 200"},
		{"Active: an address owner", nil, active, hears(255, lower), Backup, "backup"},
		{"Active: another one resigns", nil, active, hears(0, higher), Active, "advertise 200"},
		{"Active: may not run", nil, active, withheld, Initialize, "advertise 0, initialize"},
		{"Active: the address goes", nil, active, func(d *driven) { d.step(LinkChanged{Link{Up: true, MAC: ourMAC}}) }, Initialize, "initialize"},
		{"Active: the group goes", nil, active, func(d *driven) {
			d.step(Configure{Config{Interval: interval, Groups: []Group{{VRID: 52, Priority: 1, VIPs: []netip.Addr{vip}}}}})
		}, Backup, "advertise 0, initialize, backup"},
		{"Active: slow", nil, active, func(d *driven) { d.step(StandingChanged{Standing{Slow: true}}); d.pass(interval) }, Active, "advertise 72"},
		{"Active: slow, and another is not", nil, active, func(d *driven) { d.step(StandingChanged{Standing{Slow: true}}); d.hear(130, lower) }, Backup, "backup"},
		{"Active: its own advertisement, by a loop", nil, active, hears(255, own), Active, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := c.from(drive(t, c.config))
			d.now = d.now.Add(answerGap)
			d.step(Tick{})
			d.now = d.now.Add(-answerGap) // only its answers are due
			d.did = nil
			c.event(d)
			d.expect(c.want)
			d.expectActions("it does", c.does)
		})
	}
}

func TestTheIntervalOfTheOwnerCountsWithinBounds(t *testing.T) {
	for _, c := range []struct{ owner, ours, waits time.Duration }{
		{100 * time.Millisecond, 100 * time.Millisecond, 321875 * time.Microsecond},
		{500 * time.Millisecond, 100 * time.Millisecond, 5 * 321875 * time.Microsecond},
		{packet.IntervalMax, 100 * time.Millisecond, 3218750 * time.Microsecond}, // as for 1 s
		{10 * time.Millisecond, 100 * time.Millisecond, 321875 * time.Microsecond},
		{3 * time.Second, 2 * time.Second, 2 * 3218750 * time.Microsecond},
	} {
		d := drive(t, func(c2 *Config) { c2.Interval = c.ours })
		d.step(AdvertisementHeard{Source: lower, Advertisement: packet.Advertisement{VRID: 51, Priority: 200, Interval: c.owner}})
		d.pass(c.waits - time.Microsecond)
		d.expect(Backup)
		d.pass(time.Microsecond)
		d.expect(Active)
	}
}

// Priority 0 ends a wait early, and never puts its end off: forged again and again it would
// keep everybody from owning.
func TestPriorityZeroNeverPutsTheTakeOverOff(t *testing.T) {
	d := drive(t, nil)
	for range 40 {
		d.pass(10 * time.Millisecond)
		d.hear(0, lower)
	}
	d.expect(Active)
}

func TestAFloodOfLowerAdvertisementsIsAnsweredAtABoundedRate(t *testing.T) {
	d := drive(t, nil).active()
	d.pass(interval)
	d.did = nil
	for range 10_000 {
		d.now = d.now.Add(100 * time.Microsecond)
		d.hear(1, lower)
		if !d.node.Next().After(d.now) {
			d.step(Tick{})
		}
	}
	sent, announced, told := 0, 0, 0
	for _, a := range d.did {
		switch a.(type) {
		case Advertise:
			sent++
		case Announce:
			announced++
		case SecondOwner:
			told++
		}
	}
	if sent > 101 || announced > 3 || told != 1 {
		t.Errorf("in a second: %d advertisements, %d announcements, %d events", sent, announced, told)
	}
}

func TestAfterAStandstillItBeginsAsBackup(t *testing.T) {
	for name, resume := range map[string]Event{
		"time":             Tick{},
		"an advertisement": AdvertisementHeard{Source: lower, Advertisement: packet.Advertisement{VRID: 51, Priority: 1, Interval: interval}},
		"a question":       ARPHeard{packet.ARP{Operation: packet.ARPRequest, SenderMAC: their, Sender: lower, Target: vip}},
	} {
		d := drive(t, nil).active()
		d.now = d.node.last.Add(3*interval + time.Millisecond)
		d.step(resume)
		d.expect(Backup)
		d.expectActions("on "+name, "backup")
		d.pass(300 * time.Millisecond)
		d.expect(Backup)
		d.pass(30 * time.Millisecond)
		d.expect(Active)
	}
	d := drive(t, nil).active()
	d.now = d.node.last.Add(3 * interval)
	d.step(Tick{})
	d.expect(Active)
}

// Whose process stands still while it waits has heard nothing, which says nothing.
func TestABackupThatStoodStillWaitsAnew(t *testing.T) {
	d := drive(t, nil)
	d.step(AdvertisementHeard{Source: lower, Advertisement: packet.Advertisement{VRID: 51, Priority: 250, Interval: time.Second}})
	d.now = d.now.Add(time.Hour)
	d.step(Tick{})
	d.expect(Backup)
	d.pass(3 * time.Second) // of the owner's interval
	d.expect(Backup)
}

// Timers run out in ticks alone: what was heard in time, and is read late, counts.
func TestWhatIsReadLateCountsBeforeTheTimer(t *testing.T) {
	d := drive(t, nil).pass(250 * time.Millisecond)
	d.now = d.now.Add(200 * time.Millisecond)
	d.step(ARPHeard{packet.ARP{Operation: packet.ARPRequest, SenderMAC: their, Target: vip}})
	d.hear(200, lower)
	d.step(Tick{})
	d.expect(Backup)
}

// The wait for the next advertisement begins when one comes, not when it is read; but what
// was read late because nothing ran says nothing of what came since.
func TestTimersRunSinceAnAdvertisementCame(t *testing.T) {
	advertisement := packet.Advertisement{VRID: 51, Priority: 200, Interval: interval}
	for _, c := range []struct{ late, age, waits time.Duration }{
		{150 * time.Millisecond, 120 * time.Millisecond, 201875 * time.Microsecond},
		{150 * time.Millisecond, time.Hour, 171875 * time.Microsecond}, // what the clock of the age says
		{150 * time.Millisecond, -time.Hour, 321875 * time.Microsecond},
		{time.Second, 900 * time.Millisecond, 321875 * time.Microsecond},
	} {
		d := drive(t, nil).pass(50 * time.Millisecond)
		d.now = d.now.Add(c.late)
		d.step(AdvertisementHeard{Source: lower, Advertisement: advertisement, Age: c.age})
		d.step(Tick{})
		d.pass(c.waits - time.Microsecond)
		d.expect(Backup)
		d.pass(time.Microsecond)
		d.expect(Active)
	}
}

func TestOnlyTheOwnerAnswers(t *testing.T) {
	ask := ARPHeard{packet.ARP{Operation: packet.ARPRequest, SenderMAC: their, Sender: lower, Target: vip}}
	probe := ARPHeard{packet.ARP{Operation: packet.ARPRequest, SenderMAC: their, Sender: netip.IPv4Unspecified(), Target: vip}}
	solicit := func(target netip.Addr) NeighborHeard {
		return NeighborHeard{packet.Neighbor{Solicitation: true, Source: netip.MustParseAddr("fe80::9"), Sender: their, Target: target}}
	}
	d := drive(t, func(c *Config) { c.Groups[0].VIPs = append(c.Groups[0].VIPs, vip6) })
	questions := []Event{ask, probe, solicit(vip6), solicit(packet.VirtualLinkLocal(51))}
	for _, q := range questions {
		d.step(q)
	}
	d.expectActions("a backup", "backup, backup")
	d.active()
	for _, q := range questions {
		d.step(q)
	}
	d.expectActions("the owner", "answer 203.0.113.1, answer 203.0.113.1, answer 2001:db8::1, answer fe80::200:5eff:fe00:233")
	for name, other := range map[string]Event{
		"another address": ARPHeard{packet.ARP{Operation: packet.ARPRequest, SenderMAC: their, Sender: lower, Target: higher}},
		"a reply":         ARPHeard{packet.ARP{Operation: packet.ARPReply, SenderMAC: their, Sender: lower, Target: vip}},
		"its own":         ARPHeard{packet.ARP{Operation: packet.ARPRequest, SenderMAC: ourMAC, Sender: vip, Target: vip}},
		"its own of IPv6": NeighborHeard{packet.Neighbor{Sender: ourMAC, Source: vip6, Target: vip6}},
		"of IPv6":         solicit(netip.MustParseAddr("2001:db8::2")),
	} {
		d.step(other)
		d.expectActions(name, "")
	}
}

func TestAFloodOfQuestionsKeepsNobodyElseFromAnAnswer(t *testing.T) {
	d := drive(t, nil).active()
	answered := 0
	for i := range 100_000 {
		d.now = d.now.Add(10 * time.Microsecond)
		from := their
		if i%10_000 == 9_999 {
			from = packet.MAC{2, 0, 0, 0, 1, 1}
			d.did = nil
		}
		d.step(ARPHeard{packet.ARP{Operation: packet.ARPRequest, SenderMAC: from, Sender: lower, Target: vip}})
		if from != their {
			if d.taken() != "answer 203.0.113.1" {
				t.Fatalf("after %d questions of another: no answer", i)
			}
			answered++
		}
	}
	if got := d.node.Counts().Answered; answered != 10 || got > 1510+10 {
		t.Errorf("in a second %d questions were answered, of another %d", got, answered)
	}
}

func TestAClaimOfAnotherIsASecondOwnerUnlessItTakesOver(t *testing.T) {
	claims := map[string]Event{
		"gratuitous ARP":         ARPHeard{packet.ARP{Operation: packet.ARPRequest, SenderMAC: their, Sender: vip, Target: vip}},
		"an answer":              ARPHeard{packet.ARP{Operation: packet.ARPReply, SenderMAC: their, Sender: vip, Target: lower}},
		"neighbor advertisement": NeighborHeard{packet.Neighbor{Sender: their, Source: vip6, Target: vip6}},
	}
	for name, claim := range claims {
		both := func(c *Config) { c.Groups[0].VIPs = append(c.Groups[0].VIPs, vip6) }
		d := drive(t, both).active().pass(10 * time.Second)
		d.did = nil
		d.step(claim)
		d.expectActions(name, "")
		d.pass(interval)
		if did := d.taken(); !strings.Contains(did, "second owner") || !strings.Contains(did, "announce ") {
			t.Errorf("%s: after an interval %q", name, did)
		}
		if !slices.ContainsFunc(d.node.States(), func(r RouterState) bool { return r.SecondOwner != "" && !r.SecondOwnerHeardAt.IsZero() }) {
			t.Errorf("%s: no second owner is shown", name)
		}

		d.step(claim)
		d.hear(250, higher)
		d.step(AdvertisementHeard{Source: netip.MustParseAddr("fe80::6"), Advertisement: packet.Advertisement{VRID: 51, Priority: 250, Interval: interval, Addresses: []netip.Addr{vip6}}})
		d.pass(interval)
		d.expectActions(name+" of the next owner", "backup, backup")
		if slices.ContainsFunc(d.node.States(), func(r RouterState) bool { return r.SecondOwner != "" }) {
			t.Errorf("%s: a backup shows a second owner", name)
		}
	}
}

func TestAnnouncementsComeInRoundsAtABoundedPace(t *testing.T) {
	const vips = 1000
	d := drive(t, func(c *Config) {
		c.Groups[0].VIPs = nil
		for i := range vips {
			c.Groups[0].VIPs = append(c.Groups[0].VIPs, vipNumber(i))
		}
		c.Groups = append(c.Groups, Group{VRID: 52, Priority: 200, VIPs: []netip.Addr{netip.MustParseAddr("198.51.100.1")}})
		c.Pace = Pace{PerSecond: 100, Burst: 50}
	})
	d.pass(321875 * time.Microsecond)
	var at []time.Duration
	times, operations := map[netip.Addr][]time.Duration{}, map[uint16]int{}
	began := d.now
	note := func(did []Action) {
		for _, a := range did {
			if a, ok := a.(Announce); ok {
				at = append(at, d.now.Sub(began))
				times[a.VIP] = append(times[a.VIP], d.now.Sub(began))
				operations[a.Operation]++
			}
		}
	}
	note(d.did)
	for d.now.Sub(began) < 90*time.Second {
		d.now = d.node.Next()
		note(d.step(Tick{}))
	}
	if burst := slices.IndexFunc(at, func(t time.Duration) bool { return t > 0 }); burst != 50 {
		t.Errorf("at once %d were announced", burst)
	}
	for i := range len(at) - 150 { // a burst, and 100 a second
		if at[i+150]-at[i] < time.Second {
			t.Fatalf("151 within %v", at[i+150]-at[i])
		}
	}
	// 950 more at 100 a second; the next rounds as soon as there is room.
	if first := times[vipNumber(vips-1)][0]; first < 9*time.Second || first > 10*time.Second {
		t.Errorf("the last VIP was announced after %v", first)
	}
	if len(times) != vips+1 || operations[packet.ARPRequest] == 0 || operations[packet.ARPReply] == 0 {
		t.Errorf("%d VIPs, operations %v", len(times), operations)
	}
}

func TestAFewVIPsAreAnnouncedAtOnceThenAfterOneAndFiveSecondsAndEachMinute(t *testing.T) {
	d := drive(t, nil).pass(321875 * time.Microsecond)
	began, at := d.now, []time.Duration{}
	for d.now.Sub(began) < 130*time.Second {
		if strings.Contains(d.taken(), "announce") {
			at = append(at, d.now.Sub(began))
		}
		d.now = d.node.Next()
		d.step(Tick{})
	}
	if want := []time.Duration{0, time.Second, 5 * time.Second, 65 * time.Second, 125 * time.Second}; !slices.Equal(at, want) {
		t.Errorf("%v, want %v", at, want)
	}
}

func TestANewVIPOfAnOwnerIsAnnouncedAndAFormerOneIsNotAnswered(t *testing.T) {
	d := drive(t, nil).active()
	d.step(Configure{Config{Interval: interval, Groups: []Group{{VRID: 51, Priority: 200, VIPs: []netip.Addr{higher}}}}})
	d.step(Tick{})
	d.expect(Active)
	d.expectActions("the new one", "announce 192.0.2.6")
	d.step(ARPHeard{packet.ARP{Operation: packet.ARPRequest, SenderMAC: their, Sender: lower, Target: vip}})
	d.expectActions("the former one", "")
}

func TestALinkThatReceivesNothingIsGivenUp(t *testing.T) {
	d := drive(t, func(c *Config) { c.Probes = []netip.Addr{gateway, netip.MustParseAddr("fe80::254")} })
	d.pass(1900 * time.Millisecond)
	d.expect(Initialize)
	d.expectActions("at first", "probe 192.0.2.254, probe fe80::254, probe 192.0.2.254, probe fe80::254")
	d.step(gatewayAnswers(own))
	d.expect(Backup)
	for range 5 {
		d.pass(time.Second)
		d.step(gatewayAnswers(own))
		d.expect(Active)
	}
	d.did = nil
	d.pass(deafAfter)
	d.expect(Active)
	d.pass(time.Second)
	d.expect(Initialize)
	if did := d.taken(); !strings.Contains(did, "advertise 0, initialize") {
		t.Errorf("%s", did)
	}
	// Whatever concerns VIPs shows that it receives.
	d.step(ARPHeard{packet.ARP{Operation: packet.ARPRequest, SenderMAC: their, Sender: lower, Target: vip}})
	d.expect(Backup)
}

func TestAGatewayCountsOnceItAnswered(t *testing.T) {
	d := drive(t, nil).active()
	found := link
	found.Gateways = []netip.Addr{gateway, netip.MustParseAddr("fe80::254")}
	d.step(LinkChanged{found})
	d.pass(time.Minute)
	d.expect(Active)
	if did := d.taken(); !strings.Contains(did, "probe 192.0.2.254, probe fe80::254") || d.node.Doubts() {
		t.Errorf("while nobody answers: doubts %v, %s", d.node.Doubts(), did)
	}
	d.step(gatewayAnswers(own))
	answered := ProbeState{Target: gateway, Gateway: true, Answers: true, AnsweredAt: d.now}
	if got := d.node.Probes(); got[0] != answered || got[1] != (ProbeState{Target: found.Gateways[1], Gateway: true}) {
		t.Errorf("%+v", got)
	}
	d.pass(doubtAfter + 2*interval)
	if !d.node.Doubts() {
		t.Error("no doubts")
	}
	d.pass(deafAfter - doubtAfter)
	d.expect(Initialize)
	if got := d.node.Probes()[0]; got.Answers {
		t.Errorf("%+v", got)
	}
	// A link that comes again still owes a sign, and any host gives it.
	down := found
	down.Up = false
	d.step(LinkChanged{down})
	d.step(LinkChanged{found})
	d.pass(10 * time.Second)
	d.expect(Initialize)
	d.step(ARPHeard{packet.ARP{Operation: packet.ARPRequest, SenderMAC: their, Sender: lower, Target: higher}})
	d.expect(Backup)
}

func TestAnotherGatewayThanTheOneThatAnsweredDemandsNothing(t *testing.T) {
	d := drive(t, nil).active()
	found := link
	found.Gateways = []netip.Addr{gateway}
	d.step(LinkChanged{found})
	d.step(gatewayAnswers(own))
	d.pass(deafAfter - 100*time.Millisecond)
	found.Gateways = []netip.Addr{lower}
	d.step(LinkChanged{found})
	d.pass(time.Minute)
	d.expect(Active)
}

// A gateway that cannot be asked says nothing about the link.
func TestAGatewayOfAFamilyWithoutAnAddressDemandsNothing(t *testing.T) {
	found := link
	found.Gateways = []netip.Addr{netip.MustParseAddr("fe80::254")}
	d := drive(t, nil).active()
	d.step(LinkChanged{found})
	d.step(NeighborHeard{packet.Neighbor{Target: found.Gateways[0], Source: found.Gateways[0], Destination: link.IPv6, Sender: their}})
	if got := d.node.Probes()[0]; !got.Answers {
		t.Errorf("%+v", got)
	}
	found.IPv6 = netip.Addr{}
	d.step(LinkChanged{found})
	d.pass(time.Minute)
	d.expect(Active)
}

// Who did not run has asked nobody.
func TestAStandstillIsNoSilence(t *testing.T) {
	for _, interval := range []time.Duration{interval, 2 * time.Second} {
		d := drive(t, func(c *Config) { c.Interval = interval })
		found := link
		found.Gateways = []netip.Addr{gateway}
		d.step(LinkChanged{found})
		for range 10 {
			d.step(gatewayAnswers(own))
			d.pass(time.Second)
		}
		d.expect(Active)
		d.now = d.now.Add(5 * time.Second)
		d.step(Tick{})
		if got := d.node.States()[0]; got.State == Initialize {
			t.Errorf("interval %v: %+v", interval, got)
		}
	}
}

// A reload that names other hosts to probe leaves an owner its place while they answer.
func TestOtherProbesDoNotInterrupt(t *testing.T) {
	d := drive(t, nil).active().pass(10 * time.Second)
	d.step(Configure{Config{Interval: interval, Probes: []netip.Addr{lower}, Groups: []Group{{VRID: 51, Priority: 200, VIPs: []netip.Addr{vip}}}}})
	d.pass(deafAfter)
	d.expect(Active)
	d.pass(time.Second)
	d.expect(Initialize)
}

func TestAdvertisementsListWhatFitsTheLinkLocalAddressFirst(t *testing.T) {
	d := drive(t, func(c *Config) {
		c.Groups[0].VIPs = nil
		for i := range 300 {
			c.Groups[0].VIPs = append(c.Groups[0].VIPs, vipNumber(i), netip.AddrFrom16([16]byte{0x20, 1, 14: byte(i >> 8), 15: byte(i)}))
		}
	})
	d.pass(400 * time.Millisecond)
	seen := 0
	for _, a := range d.did {
		a, ok := a.(Advertise)
		switch {
		case !ok:
		case a.Source == own && len(a.Advertisement.Addresses) == 255 && a.Advertisement.Interval == interval:
			seen |= 1
		case a.Source == link.IPv6 && len(a.Advertisement.Addresses) == 90 && a.Advertisement.Addresses[0] == packet.VirtualLinkLocal(51):
			seen |= 2
		default:
			t.Errorf("from %s: %d addresses", a.Source, len(a.Advertisement.Addresses))
		}
	}
	if seen != 3 {
		t.Errorf("seen %d", seen)
	}
}

func TestAConfigIsRefusedWithTheReason(t *testing.T) {
	good := func() Config {
		return Config{Interval: interval, Groups: []Group{{VRID: 1, Priority: 1, VIPs: []netip.Addr{vip}}}}
	}
	for want, change := range map[string]func(*Config){
		"give 10ms to 40.95s":        func(c *Config) { c.Interval = 15 * time.Millisecond },
		"interval 41s":               func(c *Config) { c.Interval = 41 * time.Second },
		"interval 0s":                func(c *Config) { c.Interval = 0 },
		"VRID 0":                     func(c *Config) { c.Groups[0].VRID = 0 },
		"VRID 1: give each group":    func(c *Config) { c.Groups = append(c.Groups, c.Groups[0]) },
		"priority 0":                 func(c *Config) { c.Groups[0].Priority = 0 },
		"priority 255":               func(c *Config) { c.Groups[0].Priority = 255 },
		"VIP 224.0.0.1":              func(c *Config) { c.Groups[0].VIPs[0] = netip.MustParseAddr("224.0.0.1") },
		"VIP ::ffff:192.0.2.1":       func(c *Config) { c.Groups[0].VIPs[0] = netip.MustParseAddr("::ffff:192.0.2.1") },
		"VIP 203.0.113.1 is in VRID": func(c *Config) { c.Groups = append(c.Groups, Group{VRID: 2, Priority: 1, VIPs: []netip.Addr{vip}}) },
		"at most 4096": func(c *Config) {
			for i := range VIPsMax {
				c.Groups[0].VIPs = append(c.Groups[0].VIPs, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
			}
		},
		"announcements": func(c *Config) { c.Pace.PerSecond = -1 },
	} {
		c := good()
		change(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if err := good().Check(); err != nil {
		t.Error(err)
	}
}
