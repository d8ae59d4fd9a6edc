//go:build vms

package scenarios_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/events"
	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

// Guideway on bad links, by `make vms SUITES=netem`, whose kernel has netem. Two clients are
// alike: one asks VIPs, the other the backends themselves. Their links lose, duplicate, delay
// and reorder packets in both directions, with the same random numbers for both. Whatever
// happens to load balancers and backends meanwhile, no connection to a VIP breaks or stalls
// where the direct ones continue, and no more datagrams are lost.

var impairments = []struct {
	name  string
	netem topology.Netem
}{
	{"2 % lost", topology.Netem{Loss: 0.02}},
	{"25 % overtake the others, which take 10 ms", topology.Netem{Delay: 10 * time.Millisecond, Reorder: 0.25}},
	{"5 % come twice", topology.Netem{Duplicate: 0.05}},
	{"50 ± 20 ms", topology.Netem{Delay: 50 * time.Millisecond, Jitter: 20 * time.Millisecond}},
	{"all of it, less", topology.Netem{Delay: 20 * time.Millisecond, Jitter: 5 * time.Millisecond, Reorder: 0.1, Loss: 0.01, Duplicate: 0.02}},
}

func TestNetem(t *testing.T) {
	n := &netemRun{random: rand.New(rand.NewPCG(1, 0))}
	t.Run("tracked", func(t *testing.T) {
		n.begin(t, optionsAlone(t, "netem-tracked"))
		n.spreadFragments(t)
		for _, i := range impairments {
			n.datagrams(t, i.name, i.netem)
			n.transfers(t, i.name, i.netem, "forwarders are replaced while a backend comes", false, n.takeOver(t))
			if err := n.running.Restore(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		checkAtRest(t, n.running)
	})
	t.Run("stateless", func(t *testing.T) {
		o := optionsAlone(t, "netem")
		o.Encap, o.Stateless, o.Multipath = "geneve", true, true
		n.begin(t, o)
		m := &movesLab{Lab: n.running, t: t, name: n.running.LoadBalancers()[0]}
		one, two := n.running.Backends()[0], n.running.Backends()[1]
		for _, i := range impairments {
			n.transfers(t, i.name, i.netem, "a backend is drained and comes back", false, func() {
				m.drain(one)
				m.waitOwners(two)
				m.undrain(one)
				m.waitOwners(one, two)
			})
			n.transfers(t, i.name, i.netem, "Multipath TCP, and one of two links is down for 5 s", true, n.cutLink(t))
		}
		checkAtRest(t, n.running)
	})
	n.write(t)
}

// netemRun on one lab after the other.
type netemRun struct {
	running *hosts.Lab
	// By VIPs first, then directly.
	sides [2]netemSide
	rows  []netemRow
	// random seeds: with small ones netem's first numbers are small, too.
	random *rand.Rand
}

// netemSide is a client and whom it asks, by family.
type netemSide struct {
	network topology.Network
	links   []topology.Node
	targets [2][]netip.Addr
}

// begin with another lab.
func (n *netemRun) begin(t *testing.T, o topology.Options) {
	t.Helper()
	n.running = up(t, o)
	other, err := n.running.Network.AddClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n.sides = [2]netemSide{{network: n.running.Network}, {network: other}}
	for family, vip := range topology.EchoVIPs {
		n.sides[0].targets[family] = []netip.Addr{vip}
		for _, backend := range other.Backends[:o.Backends] {
			n.sides[1].targets[family] = append(n.sides[1].targets[family], backend.Address(family))
		}
	}
	for at := range n.sides {
		s := &n.sides[at]
		s.links = []topology.Node{s.network.Client}
		if o.Multipath {
			second, err := events.AddSecondLink(t.Context(), s.network)
			if err != nil {
				t.Fatal(err)
			}
			s.links = append(s.links, second)
		}
		holdATransfer(t, s.network)
		// netem gets packets, not trains of segments that it would lose as one.
		for i := range s.links {
			if err := topology.Run(t.Context(), "", "ip", "netns", "exec", s.network.Client.Namespace, "ethtool", "-K", nameOfLink(i), "gso", "off", "tso", "off"); err != nil {
				t.Fatal(err)
			}
		}
	}
	time.Sleep(netemQuiet)
}

// netemQuiet is longer than a kernel reports its multicast groups on a link that is new, which
// takes random numbers from netem.
const netemQuiet = 3 * time.Second

func nameOfLink(number int) string { return fmt.Sprintf("eth%d", number) }

// impair the links of both sides alike, with other random numbers than before.
func (n *netemRun) impair(t *testing.T, netem topology.Netem) {
	t.Helper()
	for i := range n.sides[0].links {
		there, back := n.random.Uint64(), n.random.Uint64()
		for _, s := range n.sides {
			link, name := s.links[i], nameOfLink(i)
			err := errors.Join(
				s.network.PinNeighbours(t.Context(), link, name),
				topology.SetNetem(link.Namespace, name, netem, there),
				topology.SetNetem(s.network.Router, link.Port, netem, back))
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// netemRow of the table: an event on impaired links, and what it did to both sides.
type netemRow struct {
	impairment, event string
	linkDown          bool // by the event: that is so of all with Multipath TCP
	sides             [2]netemOutcome
}

type netemOutcome struct {
	// count of datagrams or connections, and how many were lost or broke.
	count, lost int
	reasons     []string
	// took: how long each answer or transfer did, in order of length once judged.
	took []time.Duration
}

func (o netemOutcome) median() time.Duration {
	if len(o.took) == 0 {
		return 0
	}
	return o.took[len(o.took)/2]
}

func (o netemOutcome) worst() time.Duration {
	if len(o.took) == 0 {
		return 0
	}
	return o.took[len(o.took)-1]
}

const (
	// Connections of each side, half of each family, and the file that each sends there and
	// back again and again.
	netemConnections, netemFile = 8, 32 << 10
	// Transfers of each connection after the event, and its pause after each: without one an
	// emulated machine is busy, slower than its links, and takes half a minute for a move.
	netemAfter, netemPause = 2, 400 * time.Millisecond
	// A transfer that takes longer has stalled. By then a segment was sent seven times, the
	// last time after 0.2 + 0.4 + … + 6.4 = 12.6 s; on the worst link (2 % in each direction)
	// that is in vain once in 10⁸ transfers, of some 50 segments each.
	netemLimit = 25 * time.Second
)

// transfers of both sides at the same time, while something happens.
func (n *netemRun) transfers(t *testing.T, impairment string, netem topology.Netem, event string, multipath bool, during func()) {
	t.Helper()
	n.impair(t, netem)
	row := netemRow{impairment: impairment, event: event, linkDown: multipath}
	happened := make(chan struct{})
	var all sync.WaitGroup
	var mutex sync.Mutex
	end := sync.OnceFunc(func() { close(happened); all.Wait() })
	defer end()
	for at, s := range n.sides {
		outcome := &row.sides[at]
		for i := range netemConnections {
			outcome.count++
			all.Go(func() {
				took, err := s.transfer(t, i, multipath, happened)
				mutex.Lock()
				defer mutex.Unlock()
				outcome.took = append(outcome.took, took...)
				if err != nil {
					outcome.lost++
					outcome.reasons = append(outcome.reasons, err.Error())
				}
			})
		}
	}
	time.Sleep(2 * time.Second) // the connections are open, and transfer
	during()
	end()
	n.judge(t, row)
}

// transfer again and again on one connection, and some times after something has happened.
func (s netemSide) transfer(t *testing.T, index int, multipath bool, happened <-chan struct{}) (took []time.Duration, err error) {
	targets := s.targets[index%2]
	target := targets[index/2%len(targets)]
	dialer := net.Dialer{Timeout: netemLimit}
	dialer.SetMultipathTCP(multipath)
	connection, err := topology.DialInside(t.Context(), s.network.Client.Namespace, dialer, "tcp", netip.AddrPortFrom(target, topology.EchoPort).String())
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	c, err := greetedWithin(connection, netemLimit)
	if err != nil {
		return nil, err
	}
	err = c.transferUntil(happened, netemAfter, netemFile, netemLimit, func(d time.Duration) {
		took = append(took, d)
		time.Sleep(netemPause)
	})
	if err != nil {
		return took, fmt.Errorf("%s at %s: %w", c.server(), c.backend, err)
	}
	return took, nil
}

// cutLink on which connections of both sides begin, for a while.
func (n *netemRun) cutLink(t *testing.T) func() {
	return func() {
		set := func(state string) {
			for _, s := range n.sides {
				if err := s.network.SetLink(t.Context(), s.links[0], state); err != nil {
					t.Fatal(err)
				}
			}
		}
		set("down")
		time.Sleep(5 * time.Second)
		set("up")
	}
}

// takeOver of each forwarder, and a backend comes at the same time.
func (n *netemRun) takeOver(t *testing.T) func() {
	return func() {
		weights := n.running.Weights()
		weights[n.running.Backends()[2]] = 1 // the spare
		changed := make(chan error, 1)
		go func() { changed <- n.running.SetWeights(t.Context(), weights) }()
		for _, name := range n.running.LoadBalancers() {
			note, err := n.running.TakeOverForwarder(t.Context(), name)
			if err != nil || note == nil || len(note.GetEmptied()) > 0 {
				t.Errorf("%s: taken over %+v, %v", name, note, err)
			}
		}
		if err := <-changed; err != nil {
			t.Error(err)
		}
	}
}

// spreadFragments of a datagram over the load balancers, by chance.
func (n *netemRun) spreadFragments(t *testing.T) {
	t.Helper()
	waitPeers(t, n.running)
	if err := n.running.Network.RouteByMark(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.running.Network.SpreadFragments(t.Context(), n.running.LoadBalancers()...); err != nil {
		t.Fatal(err)
	}
}

const (
	netemDatagrams = 120
	// An answer that comes later is lost: both ways take 140 ms at most, and a fragment waits
	// for its first one at a load balancer meanwhile.
	netemAnswer = 500 * time.Millisecond
)

// datagrams of several fragments, one after the other, so that netem's random numbers are for
// the same fragments on both sides.
func (n *netemRun) datagrams(t *testing.T, impairment string, netem topology.Netem) {
	t.Helper()
	n.impair(t, netem)
	before := metrics(t, n.running)
	defer func() { tellLosses(t, n.running, before) }()
	row := netemRow{impairment: impairment, event: "datagrams of 3 to 5 fragments"}
	var all sync.WaitGroup
	for at, s := range n.sides {
		all.Go(func() {
			outcome := &row.sides[at]
			for i := range netemDatagrams {
				targets := s.targets[i%2]
				outcome.count++
				begun := time.Now()
				_, err := askDatagramIn(t, s.network.Client.Namespace, netip.Addr{}, targets[i/2%len(targets)], 3_000+1_111*(i/2%4), netemAnswer)
				if err != nil {
					outcome.lost++
					outcome.reasons = append(outcome.reasons, fmt.Sprintf("%d: %v", i, err))
					continue
				}
				outcome.took = append(outcome.took, time.Since(begun))
			}
		})
	}
	all.Wait()
	n.judge(t, row)
}

const (
	// How much longer half of the transfers may take than twice the time of direct ones: two
	// more hops in a machine that is some ten times slower than a real one.
	netemMore = 50 * time.Millisecond
	// How much longer the slowest one may take than twice the time of the slowest direct one,
	// which has one repetition less of a segment: three repetitions, after 0.2, 0.4 and 0.8 s.
	// Not where a link was down: a segment whose repetitions all went there waits for the one
	// after 6.2 s. In eight rounds that was so of one of ours in five, and of a direct one in six.
	netemRepeats = 1400 * time.Millisecond
)

// judge a row, and enter it.
func (n *netemRun) judge(t *testing.T, row netemRow) {
	t.Helper()
	for at := range row.sides {
		slices.Sort(row.sides[at].took)
	}
	n.rows = append(n.rows, row)
	t.Log(row)
	ours, direct := row.sides[0], row.sides[1]
	if ours.lost > direct.lost {
		t.Errorf("%s: %s: %d lost, and %d of the direct ones:\n%s\ndirectly:\n%s", row.impairment, row.event, ours.lost, direct.lost,
			strings.Join(ours.reasons, "\n"), strings.Join(direct.reasons, "\n"))
	}
	if ours.median() > 2*direct.median()+netemMore || !row.linkDown && ours.worst() > 2*direct.worst()+netemRepeats {
		t.Errorf("%s: %s: slower than directly: %v, %v", row.impairment, row.event, ours, direct)
	}
}

func (o netemOutcome) String() string {
	return fmt.Sprintf("%d of %d lost; median %v, longest %v of %d", o.lost, o.count,
		o.median().Round(time.Millisecond), o.worst().Round(time.Millisecond), len(o.took))
}

func (r netemRow) String() string {
	return fmt.Sprintf("| %s | %s | %v | %v |", r.impairment, r.event, r.sides[0], r.sides[1])
}

func (n *netemRun) write(t *testing.T) {
	t.Helper()
	slices.SortStableFunc(n.rows, func(a, b netemRow) int { return cmp.Compare(a.event, b.event) })
	lines := []string{"| links | event | Guideway | directly |", "|---|---|---|---|"}
	for _, row := range n.rows {
		lines = append(lines, row.String())
	}
	keep(t, strings.Join(lines, "\n")+"\n")
}
