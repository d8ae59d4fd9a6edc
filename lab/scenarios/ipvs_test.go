//go:build vms

package scenarios_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/lab/traffic/load"
)

// keepalived and IPVS in the place of Guideway, in the same lab under the same load, by
// `make vms SUITES=ipvs`, whose kernel has IPVS. It ends with a table, for docs/from-keepalived.md:
// what broke in all rounds, and the longest wait. IPVS_ROUNDS is the number of rounds.

// pair of load balancers, of which one owns all VIPs.
type pair interface {
	tracker
	// start both, and wait until they serve.
	start(t *testing.T)
	stop(t *testing.T)
	// ready: both serve by the present weights, and the preferred one owns the VIPs.
	ready(t *testing.T)
	// kill one as a power failure does; its link is cut by the caller.
	kill(t *testing.T, machine string)
	// boot it again.
	boot(t *testing.T, machine string)
	weights() map[string]uint32
	setWeights(t *testing.T, weights map[string]uint32)
	// upgrade one as its documentation says, to the same version.
	upgrade(t *testing.T, machine string)
}

type tracker interface {
	// tracked connections of the VIPs' owner.
	tracked(t *testing.T) int
}

func TestBesideIPVS(t *testing.T) {
	o := optionsAlone(t, "ipvs")
	o.Router, o.Encap, o.OneOwner, o.Backends, o.Queues = topology.NoRouter, "l2", true, 3, 1
	c := &comparison{running: up(t, o), cells: map[string]map[string]*effects{}}
	for _, side := range []struct {
		name string
		pair pair
	}{
		{ours, &guidewayPair{c.running}},
		{"keepalived", &keepalivedPair{running: c.running}},
		{"keepalived with sync", &keepalivedPair{running: c.running, config: hosts.Keepalived{Sync: true}}},
	} {
		lasts := t.Run(side.name, func(t *testing.T) {
			c.sides, c.owner = append(c.sides, side.name), side.pair
			side.pair.start(t)
			for range ipvsRounds(t) {
				c.round(t, side.pair)
			}
			side.pair.stop(t)
		})
		if !lasts {
			break // the next one begins where it ended
		}
	}
	c.write(t)
	c.judge(t)
}

func ipvsRounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv("IPVS_ROUNDS")
	if text == "" {
		return 1
	}
	rounds, err := strconv.Atoi(text)
	if err != nil || rounds < 1 {
		t.Fatalf("IPVS_ROUNDS is %q: give a number of rounds", text)
	}
	return rounds
}

// ours is the name of the first side.
const ours = "Guideway"

// comparison of the sides, event by event.
type comparison struct {
	running *hosts.Lab
	owner   tracker
	// sides by name, in order; the last one is the present one.
	sides  []string
	events []string
	cells  map[string]map[string]*effects // by event, then side
	// loads so far: each has client addresses of its own.
	loads int
}

// effects of an event, over all rounds.
type effects struct {
	connections, broken, requests, failed int
	// own connections of the server that the event took away, which broke.
	own     int
	longest time.Duration
	reasons map[string]int
}

// round of all events. Each begins where the one before has ended.
func (c *comparison) round(t *testing.T, p pair) {
	servers, owner := c.running.Backends(), c.running.PreferredOwner()
	ctx := t.Context()
	change := func(edit func(weights map[string]uint32)) func() {
		return func() {
			weights := p.weights()
			edit(weights)
			p.setWeights(t, weights)
		}
	}
	die := func() {
		p.kill(t, owner)
		c.check(t, c.running.Network.SetLink(ctx, c.node(t, owner), "down"))
	}
	comeBack := func() {
		c.check(t, c.running.Network.SetLink(ctx, c.node(t, owner), "up"))
		p.boot(t, owner)
		p.ready(t)
	}
	addSpare := change(func(w map[string]uint32) { w[servers[3]] = 1 })
	base := p.weights()

	c.event(t, "nothing happens", "", func() {})
	c.event(t, "the owner dies", "", die)
	c.event(t, "it comes back", "", comeBack)
	c.event(t, "a server dies", servers[0], func() { c.check(t, c.running.KillBackend(ctx, 0)) })
	c.event(t, "the server comes back", "", func() { c.check(t, c.running.RestoreBackend(ctx, 0)); p.ready(t) })
	c.event(t, "a server is added", "", addSpare)
	p.setWeights(t, base)
	c.event(t, "a server is drained, and removed after 5 s", servers[1], func() {
		change(func(w map[string]uint32) { w[servers[1]] = 0 })()
		time.Sleep(5 * time.Second)
		change(func(w map[string]uint32) { delete(w, servers[1]) })()
	})
	p.setWeights(t, base)
	c.event(t, "both machines are upgraded, one after the other", "", func() {
		for _, machine := range []string{otherThan(c.running, owner), owner} {
			p.upgrade(t, machine)
			p.ready(t)
		}
	})
	c.event(t, "a server is added, and the owner dies after 5 s", "", func() { addSpare(); time.Sleep(5 * time.Second); die() })
	comeBack()
	p.setWeights(t, base)
	c.event(t, "a server is added, the owner dies after 5 s and comes back", "", func() {
		addSpare()
		time.Sleep(5 * time.Second)
		die()
		time.Sleep(5 * time.Second)
		comeBack()
	})
	p.setWeights(t, base)
}

// otherThan one of the two load balancers.
func otherThan(running *hosts.Lab, name string) string {
	machines := running.LoadBalancers()
	return machines[slices.IndexFunc(machines, func(other string) bool { return other != name })]
}

func (c *comparison) node(t *testing.T, name string) topology.Node {
	t.Helper()
	n, err := c.running.Network.LoadBalancer(name)
	c.check(t, err)
	return n
}

func (c *comparison) check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", c.sides[len(c.sides)-1], err)
	}
}

const (
	// ipvsConnections that last, of one message a second each.
	ipvsConnections = 60
	// How long clients are watched before and after an event: longer than a health check, and
	// than a server is believed to live.
	ipvsBefore, ipvsAfter = 3 * time.Second, 6 * time.Second
)

// event under load. Connections of the server that dies, if one does, have to break.
func (c *comparison) event(t *testing.T, name, dead string, do func()) {
	t.Helper()
	remote := c.load(t)
	time.Sleep(ipvsBefore)
	if tracked := c.owner.tracked(t); tracked < ipvsConnections {
		t.Fatalf("the owner tracks %d connections of %d: the load goes another way", tracked, ipvsConnections)
	}
	do()
	time.Sleep(ipvsAfter)
	report, err := remote.Stop()
	c.check(t, err)
	side := c.sides[len(c.sides)-1]
	if c.cells[name] == nil {
		c.events, c.cells[name] = append(c.events, name), map[string]*effects{}
	}
	if c.cells[name][side] == nil {
		c.cells[name][side] = &effects{reasons: map[string]int{}}
	}
	c.cells[name][side].add(report, dead)
	t.Logf("%s: %s: %s (%d messages, %d requests) %v", side, name, c.cells[name][side], report.Messages, report.Requests, c.cells[name][side].reasons)
}

func (c *comparison) load(t *testing.T) *load.Remote {
	t.Helper()
	c.loads++
	addresses, err := c.running.Network.AddClientAddresses(t.Context(), c.loads, 2)
	c.check(t, err)
	remote, err := load.StartRemote(c.running.LoadCommand(t.Context()), load.Spec{
		Seed: uint64(c.loads), Sources: addresses, TimeLimit: 10 * time.Second,
		Echo:        []netip.AddrPort{netip.AddrPortFrom(topology.EchoVIPs[0], topology.EchoPort)},
		Web:         []netip.AddrPort{netip.AddrPortFrom(topology.WebVIPs[0], topology.HTTPPort)},
		Connections: ipvsConnections, MessageRate: 1,
		FreshRate: 10, KeepAliveConnections: 10, KeepAliveRate: 10,
	})
	c.check(t, err)
	t.Cleanup(func() { _ = remote.Abandon() }) // of one that was stopped: nothing to do
	eventually(t, 30*time.Second, "all connections are open", func() error {
		report, err := remote.Progress()
		if err == nil && report.Open != ipvsConnections {
			err = fmt.Errorf("%+v", report)
		}
		return err
	})
	return remote
}

func (e *effects) add(report load.Report, dead string) {
	e.connections += report.Connections
	e.requests += report.Requests
	e.longest = max(e.longest, report.LongestPause, report.LongestRequest)
	for _, failure := range report.Failures {
		switch {
		case dead != "" && failure.Backend == dead:
			e.own++
			continue
		case failure.Kind == load.KindEcho:
			e.broken++
		default:
			e.failed++
		}
		e.reasons[failure.Kind+": "+failure.Reason]++
	}
}

func (e *effects) String() string {
	if e == nil {
		return "" // it was not run
	}
	text := fmt.Sprintf("%d / %d / %.1f s", e.broken, e.failed, e.longest.Seconds())
	if e.own > 0 {
		text += fmt.Sprintf(" (and %d of the server)", e.own)
	}
	return text
}

// judge that the measurement is one: nothing breaks where nothing happens. What our documents
// promise is held, too.
func (c *comparison) judge(t *testing.T) {
	for _, event := range c.events {
		for _, side := range c.sides {
			e := c.cells[event][side]
			promised := side == ours && !strings.HasPrefix(event, "a server is added, ")
			if e != nil && (event == "nothing happens" || promised) && e.broken+e.failed > 0 {
				t.Errorf("%s: %s: %s: %v", side, event, e, e.reasons)
			}
		}
	}
}

// write the table, to the file of LAB_TABLES as well.
func (c *comparison) write(t *testing.T) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n|---|%s\n", strings.Join(c.sides, " | "), strings.Repeat("---|", len(c.sides)))
	for _, event := range c.events {
		fmt.Fprintf(&b, "| %s |", event)
		for _, side := range c.sides {
			fmt.Fprintf(&b, " %s |", c.cells[event][side])
		}
		b.WriteString("\n")
	}
	any := c.cells[c.events[0]][c.sides[0]]
	fmt.Fprintf(&b, "of %d connections and some %d requests each\n", any.connections, any.requests)
	keep(t, b.String())
}

// keep a table in the log, and in the file of LAB_TABLES if there is one.
func keep(t *testing.T, text string) {
	t.Helper()
	t.Log("\n" + text)
	file := os.Getenv("LAB_TABLES")
	if file == "" {
		return
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Error(err)
	}
}

// guidewayPair is the lab as it comes.
type guidewayPair struct{ running *hosts.Lab }

func (g *guidewayPair) start(t *testing.T) { g.ready(t) }

func (g *guidewayPair) stop(t *testing.T) {
	t.Helper()
	for _, machine := range g.running.LoadBalancers() {
		stopGuideway(t, g.running, machine)
	}
}

func stopGuideway(t *testing.T, running *hosts.Lab, machine string) {
	t.Helper()
	for _, process := range []string{"speaker", "controller", "forwarder"} {
		if err := running.Stop(machine, process); err != nil {
			t.Fatal(err)
		}
	}
}

func (g *guidewayPair) ready(t *testing.T) {
	t.Helper()
	if len(g.running.Running()) < 2 {
		return // the event leaves one dead
	}
	if err := g.running.WaitReady(t.Context(), readyMax); err != nil {
		t.Fatal(err)
	}
}

func (g *guidewayPair) kill(t *testing.T, machine string) {
	t.Helper()
	if _, err := g.running.KillLoadBalancer(machine); err != nil {
		t.Fatal(err)
	}
}

// boot: what a machine has in /run is gone.
func (g *guidewayPair) boot(t *testing.T, machine string) {
	t.Helper()
	run := filepath.Join(g.running.Options().RunDir, machine, "run")
	if err := errors.Join(os.RemoveAll(run), os.Mkdir(run, 0o755), g.running.RestoreLoadBalancer(machine)); err != nil {
		t.Fatal(err)
	}
}

func (g *guidewayPair) weights() map[string]uint32 { return g.running.Weights() }

func (g *guidewayPair) setWeights(t *testing.T, weights map[string]uint32) {
	t.Helper()
	if err := g.running.SetWeights(t.Context(), weights); err != nil {
		t.Fatal(err)
	}
}

// upgrade as docs/operate.md has it.
func (g *guidewayPair) upgrade(t *testing.T, machine string) {
	t.Helper()
	note, err := g.running.TakeOverForwarder(t.Context(), machine)
	if err != nil || note == nil || len(note.GetEmptied()) > 0 {
		t.Fatalf("%s: taken over %+v, %v", machine, note, err)
	}
	if err := g.running.RestartController(machine); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the controller is ready", func() error {
		samples, err := g.running.ControllerMetrics(t.Context(), machine)
		if err == nil && samples["guideway_ready"] != 1 {
			err = errors.New("guideway_ready is not 1")
		}
		return err
	})
	for _, step := range []func() error{
		func() error { return g.ask(t, machine, "drain", "machine", "--wait", "--timeout", "30s") },
		func() error { return g.running.Stop(machine, "speaker") },
		func() error { return g.running.StartSpeaker(machine) },
		func() error { return g.ask(t, machine, "undrain", "machine") },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
}

func (g *guidewayPair) ask(t *testing.T, machine string, args ...string) error {
	t.Helper()
	said, err := on(t, g.running, machine, args...)
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, said)
	}
	return err
}

func (g *guidewayPair) tracked(t *testing.T) int {
	t.Helper()
	return trackedBy(t, g.running, g.owner())
}

func trackedBy(t *testing.T, running *hosts.Lab, machine string) (sum int) {
	t.Helper()
	for sample, value := range metricsOf(t, running, machine) {
		if strings.HasPrefix(sample, "guideway_connections{") {
			sum += int(value)
		}
	}
	return sum
}

// owner of the VIPs: the preferred machine, while it runs.
func (g *guidewayPair) owner() string {
	if alive := g.running.Running(); !slices.Contains(alive, g.running.PreferredOwner()) {
		return alive[0]
	}
	return g.running.PreferredOwner()
}

// keepalivedPair is keepalived with IPVS on the same machines.
type keepalivedPair struct {
	running *hosts.Lab
	config  hosts.Keepalived
	// dead machine; empty: none.
	dead string
}

func (k *keepalivedPair) start(t *testing.T) {
	t.Helper()
	k.config.VIPs = []netip.Addr{topology.WebVIPs[0], topology.EchoVIPs[0]}
	k.config.Weights = k.running.Weights()
	for _, machine := range k.running.Running() {
		stopGuideway(t, k.running, machine)
	}
	for _, machine := range k.running.LoadBalancers() {
		k.startOne(t, machine)
	}
	k.ready(t)
}

func (k *keepalivedPair) startOne(t *testing.T, machine string) {
	t.Helper()
	if err := k.running.StartKeepalived(machine, k.config); err != nil {
		t.Fatal(err)
	}
}

func (k *keepalivedPair) stop(t *testing.T) {
	t.Helper()
	for _, machine := range k.running.LoadBalancers() {
		if err := k.running.StopKeepalived(machine); err != nil {
			t.Fatal(err)
		}
	}
}

func (k *keepalivedPair) ready(t *testing.T) {
	t.Helper()
	for _, machine := range k.running.LoadBalancers() {
		if machine == k.dead {
			continue
		}
		if err := k.running.WaitKeepalived(t.Context(), machine, k.config, machine == k.owner()); err != nil {
			t.Fatal(err)
		}
	}
}

func (k *keepalivedPair) owner() string {
	preferred := k.running.PreferredOwner()
	if k.dead != preferred {
		return preferred
	}
	return otherThan(k.running, preferred)
}

func (k *keepalivedPair) kill(t *testing.T, machine string) {
	t.Helper()
	k.dead = machine
	if err := k.running.Kill(machine, "keepalived"); err != nil {
		t.Fatal(err)
	}
}

func (k *keepalivedPair) boot(t *testing.T, machine string) {
	t.Helper()
	k.dead = ""
	if err := k.running.BootKeepalived(t.Context(), machine, k.config); err != nil {
		t.Fatal(err)
	}
}

func (k *keepalivedPair) weights() map[string]uint32 { return maps.Clone(k.config.Weights) }

func (k *keepalivedPair) setWeights(t *testing.T, weights map[string]uint32) {
	t.Helper()
	k.config.Weights = maps.Clone(weights)
	for _, machine := range k.running.LoadBalancers() {
		if machine == k.dead {
			continue
		}
		if err := k.running.ReloadKeepalived(machine, k.config); err != nil {
			t.Fatal(err)
		}
	}
	k.ready(t)
}

func (k *keepalivedPair) upgrade(t *testing.T, machine string) {
	t.Helper()
	if err := k.running.StopKeepalived(machine); err != nil {
		t.Fatal(err)
	}
	k.startOne(t, machine)
}

func (k *keepalivedPair) tracked(t *testing.T) int {
	t.Helper()
	count, err := k.running.IPVSConnections(k.owner())
	if err != nil {
		t.Fatal(err)
	}
	return count
}
