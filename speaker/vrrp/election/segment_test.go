package election

// Several machines on a segment in memory: frames take time, get lost, and do not cross a
// split; a machine dies, or stands still. Everything follows from a seed.

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/guideway/guideway/speaker/vrrp/packet"
)

// frame on its way to a machine.
type frame struct {
	to    *machine
	at    time.Time
	event Event
}

type machine struct {
	name string
	node Node
	link Link
	side int
	dead bool
	// It stands still until then; what came meanwhile waits.
	stillUntil time.Time
	waiting    []Event
}

type segment struct {
	t        *testing.T
	random   *rand.Rand
	machines []*machine
	loss     float64
	now      time.Time
	frames   []frame
	// It answers probes, unless it is dead.
	gatewayIsDead bool
	// How long each virtual router had as many owners, of those that are on side 0.
	owners map[uint8]map[int]time.Duration
}

const latencyMax = time.Millisecond

// newSegment of machines that share four groups, by their names.
func newSegment(t *testing.T, machines int, loss float64) *segment {
	s := &segment{t: t, random: rand.New(rand.NewPCG(51, uint64(machines))), loss: loss, now: start}
	for i, name := range machineNames(machines) {
		host := byte(i + 1)
		m := &machine{name: name, link: Link{
			Up: true, MTU: 1500, MAC: packet.MAC{2, 0, 0, 0, 0, host},
			IPv4: netip.AddrFrom4([4]byte{192, 0, 2, host}), IPv6: netip.AddrFrom16([16]byte{0xfe, 0x80, 15: host}),
			Gateways: []netip.Addr{gateway},
		}}
		s.machines = append(s.machines, m)
		s.step(m, Configure{s.config(name, machineNames(machines))})
		s.step(m, LinkChanged{m.link})
	}
	s.owners = map[uint8]map[int]time.Duration{}
	return s
}

const groups = 4

func (s *segment) config(name string, machines []string) Config {
	config := Config{Interval: interval}
	for group, priority := range Priorities(machines, name, groups) {
		config.Groups = append(config.Groups, Group{VRID: uint8(51 + group), Priority: priority, VIPs: []netip.Addr{vipNumber(group)}})
	}
	return config
}

// step as a speaker does: what was heard, then time.
func (s *segment) step(m *machine, events ...Event) {
	for _, event := range append(events, Tick{}) {
		for _, action := range m.node.Step(event, s.now) {
			switch a := action.(type) {
			case Advertise:
				s.send(m, AdvertisementHeard{Source: a.Source, Advertisement: a.Advertisement})
			case Announce:
				s.send(m, ARPHeard{packet.ARP{Operation: a.Operation, SenderMAC: m.link.MAC, Sender: a.VIP, Target: a.VIP}})
			case Probe:
				s.send(m, ARPHeard{packet.ARP{Operation: packet.ARPRequest, SenderMAC: m.link.MAC, Sender: m.link.IPv4, Target: a.Target}})
				if !s.gatewayIsDead {
					s.frames = append(s.frames, frame{m, s.now.Add(latencyMax), gatewayAnswers(m.link.IPv4)})
				}
			}
		}
	}
}

func (s *segment) send(from *machine, event Event) {
	for _, to := range s.machines {
		if to != from && to.side == from.side && s.random.Float64() >= s.loss {
			delay := latencyMax/4 + time.Duration(s.random.Int64N(int64(latencyMax*3/4)))
			s.frames = append(s.frames, frame{to, s.now.Add(delay), event})
		}
	}
}

// run for so long.
func (s *segment) run(duration time.Duration) {
	for end := s.now.Add(duration); s.now.Before(end); {
		next, due := end, func() {}
		for _, m := range s.machines {
			if at := later(later(m.node.Next(), m.stillUntil), s.now); !m.dead && at.Before(next) {
				next, due = at, func() { events := m.waiting; m.waiting = nil; s.step(m, events...) }
			}
		}
		for i, f := range s.frames {
			if f.at.Before(next) {
				next, due = f.at, func() { s.frames = slices.Delete(s.frames, i, i+1); s.deliver(f) }
			}
		}
		s.count(next.Sub(s.now))
		s.now = next
		due()
	}
}

func (s *segment) deliver(f frame) {
	switch {
	case f.to.dead:
	case s.now.Before(f.to.stillUntil):
		f.to.waiting = append(f.to.waiting, f.event)
	default:
		s.step(f.to, f.event)
	}
}

func (s *segment) count(lasted time.Duration) {
	for vrid := uint8(51); vrid < 51+groups; vrid++ {
		if s.owners[vrid] == nil {
			s.owners[vrid] = map[int]time.Duration{}
		}
		s.owners[vrid][len(s.ownersOf(vrid, 0))] += lasted
	}
}

// ownersOf a virtual router on that side.
func (s *segment) ownersOf(vrid uint8, side int) (names []string) {
	for _, m := range s.machines {
		for _, r := range m.node.States() {
			if r.VRID == vrid && r.State == Active && !m.dead && m.side == side && !s.now.Before(m.stillUntil) {
				names = append(names, m.name)
			}
		}
	}
	return names
}

// expectOwners by priority, among machines that live on that side.
func (s *segment) expectOwners(when string, side int) {
	s.t.Helper()
	for vrid := uint8(51); vrid < 51+groups; vrid++ {
		best, priority := "", uint8(0)
		for _, m := range s.machines {
			for _, r := range m.node.States() {
				if r.VRID == vrid && r.State != Initialize && !m.dead && m.side == side && r.Priority > priority {
					best, priority = m.name, r.Priority
				}
			}
		}
		if got := s.ownersOf(vrid, side); len(got) != 1 || got[0] != best {
			s.t.Errorf("%s: VRID %d is owned by %v, not by %s", when, vrid, got, best)
		}
	}
}

// expectAlways one owner since the last time, but for so long at most.
func (s *segment) expectAlways(when string, noneMax, severalMax time.Duration) {
	s.t.Helper()
	for vrid, owners := range s.owners {
		several := time.Duration(0)
		for count, lasted := range owners {
			if count > 1 {
				several += lasted
			}
		}
		if owners[0] > noneMax || several > severalMax {
			s.t.Errorf("%s: VRID %d had no owner for %v, several for %v", when, vrid, owners[0], several)
		}
	}
	s.owners = map[uint8]map[int]time.Duration{}
}

// downMax is the longest Active_Down_Interval of machines that are not slow.
const downMax = 3*interval + 60*time.Millisecond + 2*latencyMax

func each(t *testing.T, do func(*testing.T, *segment)) {
	for _, machines := range []int{2, 3} {
		t.Run(fmt.Sprintf("%d machines", machines), func(t *testing.T) {
			s := newSegment(t, machines, 0)
			s.run(downMax)
			s.expectOwners("at first", 0)
			s.expectAlways("at first", downMax, 2*latencyMax)
			do(t, s)
		})
	}
}

func TestMachinesShareTheGroupsAndNothingChangesByItself(t *testing.T) {
	each(t, func(t *testing.T, s *segment) {
		s.run(time.Minute)
		s.expectOwners("after a minute", 0)
		s.expectAlways("in a minute", 0, 0)
		for _, m := range s.machines {
			if c := m.node.Counts(); c.SecondOwners > 0 {
				t.Errorf("%s saw second owners: %+v", m.name, c)
			}
		}
	})
}

func TestTheOthersOwnWhatADeadMachineDid(t *testing.T) {
	each(t, func(t *testing.T, s *segment) {
		for range 20 {
			s.run(time.Duration(s.random.Int64N(int64(interval))))
			dies := s.machines[s.random.IntN(len(s.machines))]
			dies.dead = true
			s.run(downMax)
			s.expectOwners(dies.name+" died", 0)
			s.expectAlways(dies.name+" died", downMax, 2*latencyMax)
			// It comes back as new, and has its groups after its time.
			dies.dead, dies.node = false, Node{}
			s.step(dies, Configure{s.config(dies.name, machineNames(len(s.machines)))}, LinkChanged{dies.link})
			s.run(downMax + interval)
			s.expectOwners(dies.name+" is back", 0)
			s.expectAlways(dies.name+" is back", 0, 2*latencyMax)
		}
	})
}

func TestWhatAMachineResignsHasAnOwnerAtOnce(t *testing.T) {
	each(t, func(t *testing.T, s *segment) {
		s.step(s.machines[0], StandingChanged{Standing{Withheld: "drained"}})
		s.run(downMax)
		s.expectOwners("it resigned", 0)
		s.expectAlways("it resigned", 60*time.Millisecond+latencyMax, 2*latencyMax) // the skew
		s.step(s.machines[0], StandingChanged{})
		s.run(downMax)
		s.expectOwners("it is back", 0)
		s.expectAlways("it is back", 0, 2*latencyMax)
	})
}

func TestASlowMachineOwnsNothingWhereAnotherIsNot(t *testing.T) {
	each(t, func(t *testing.T, s *segment) {
		for i, m := range s.machines {
			s.step(m, StandingChanged{Standing{Slow: true}})
			s.run(2 * downMax)
			s.expectOwners(fmt.Sprintf("%d are slow", i+1), 0)
			s.expectAlways("slow", 0, 2*latencyMax)
		}
	})
}

func TestASplitHasAnOwnerOnEachSideAndOneWhenItHeals(t *testing.T) {
	each(t, func(t *testing.T, s *segment) {
		s.machines[0].side = 1
		s.run(downMax)
		s.expectOwners("split", 0)
		s.expectOwners("split", 1)
		s.run(10 * time.Second)
		s.owners = map[uint8]map[int]time.Duration{}
		s.machines[0].side = 0
		s.run(interval + 3*latencyMax)
		s.expectOwners("healed", 0)
		s.expectAlways("healed", 0, interval+2*latencyMax)
	})
}

func TestAMachineThatStoodStillIsBackup(t *testing.T) {
	each(t, func(t *testing.T, s *segment) {
		still := s.machines[0]
		still.stillUntil = s.now.Add(5 * time.Second)
		s.run(downMax)
		s.run(5*time.Second - downMax - latencyMax)
		for vrid := uint8(51); vrid < 51+groups; vrid++ {
			if owners := s.ownersOf(vrid, 0); len(owners) != 1 || owners[0] == still.name {
				t.Errorf("VRID %d: %v", vrid, owners)
			}
		}
		s.owners = map[uint8]map[int]time.Duration{}
		s.run(interval)
		for _, r := range still.node.States() {
			if r.State != Backup {
				t.Errorf("VRID %d after it stood still: %v", r.VRID, r.State)
			}
		}
		s.run(downMax)
		s.expectOwners("it goes on", 0)
		s.expectAlways("it goes on", 0, 2*latencyMax)
	})
}

// Each frame may be lost: three in a row are now and then, and then there are two owners for
// an interval or so; there is hardly ever none.
func TestWhereFramesGetLostThereIsAnOwnerAlmostAlways(t *testing.T) {
	for _, machines := range []int{2, 3} {
		s := newSegment(t, machines, 0.1)
		s.run(time.Second)
		s.owners = map[uint8]map[int]time.Duration{}
		s.run(2 * time.Minute)
		s.expectAlways("a tenth is lost", time.Second/10, 2*time.Minute/200)
		s.loss = 0
		s.run(2 * downMax)
		s.expectOwners("nothing is lost any more", 0)
	}
}

func TestARotationThatChangesMovesFewGroupsAndLeavesNoneAlone(t *testing.T) {
	s := newSegment(t, 3, 0)
	s.machines[2].dead = true // it is not there yet
	for _, m := range s.machines[:2] {
		s.step(m, Configure{s.config(m.name, machineNames(2))})
	}
	s.run(2 * downMax)
	s.expectOwners("two machines", 0)
	s.owners = map[uint8]map[int]time.Duration{}
	s.machines[2].dead = false
	s.machines[2].node = Node{}
	for _, m := range s.machines {
		s.step(m, Configure{s.config(m.name, machineNames(3))}, LinkChanged{m.link})
		s.run(time.Second)
	}
	s.run(2 * downMax)
	s.expectOwners("three machines", 0)
	s.expectAlways("a third comes", 0, 4*latencyMax)
}

// Who owns all VIPs hears no advertisement, but the others ask for the gateway, too.
func TestAGatewayThatIsSilentForAllMovesNothing(t *testing.T) {
	each(t, func(t *testing.T, s *segment) {
		for _, m := range s.machines[1:] {
			s.step(m, StandingChanged{Standing{Slow: true}})
		}
		s.run(time.Second)
		s.expectAlways("one owns all", 2*latencyMax, downMax)
		s.gatewayIsDead = true
		s.run(time.Minute)
		s.expectOwners("it is silent", 0)
		s.expectAlways("it is silent", 0, 0)
	})
}
