package scenarios_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// movesLab has stateless services, a load on them, and connections that say nothing
// unless they are asked.
type movesLab struct {
	*hosts.Lab
	t *testing.T
	// The load balancer that gets commands.
	name string
	idle []conversation
}

// Buckets move in every way, under load: no connection breaks, whether busy or
// idle, IPv4 or IPv6, and no backend's kernel sends an RST. Only a backend that
// dies takes connections along: its own.
func TestMoves(t *testing.T) {
	o := options(t, "moves")
	o.LoadBalancers, o.Encap, o.Stateless = 1, "geneve", true
	running := up(t, o)
	m := &movesLab{Lab: running, t: t, name: running.LoadBalancers()[0]}
	for range 20 {
		for _, vip := range topology.EchoVIPs {
			m.idle = append(m.idle, converse(t, running, vip))
		}
	}
	remote := loadForTakeOver(t, running, 1, 200)
	resets := watchResets(t, running)
	one, two, three := running.Backends()[0], running.Backends()[1], running.Backends()[2] // a spare
	m.run("a backend drains", func() { m.drain(one); m.waitOwners(two) })
	m.run("it comes back", func() { m.undrain(one); m.waitOwners(one, two) })
	m.run("scale out to a backend that the others' agents are told of later", func() { m.welcome(three, one, two) })
	m.run("the controller is killed in each step", func() { m.killController(one, two, three) })
	m.run("the forwarder is killed during a move", func() { m.killForwarder(one, two, three) })
	m.run("an agent is killed during a move", func() { m.killAgent(one, two, three) })
	m.run("an agent hangs during a move", func() { m.hangAgent(one, two, three) })
	m.run("maps on disk are damaged during a move", func() { m.damageFiles(one, two, three) })
	m.run("scale in", func() { m.setWeight(three, 0); m.waitOwners(one, two) })
	goOn(t, m.idle)
	stopUnbroken(t, remote)
	resets.check()
	m.run("moves close when their connections have ended, though messages are lost", func() {
		m.loseMessages()
		m.end(three)
	})
	m.run("a backend dies", func() { m.kill(1) })
	m.run("it comes back with its address changed", func() { m.renumber(1) })
	checkAtRest(t, running)
}

func (m *movesLab) run(name string, f func()) {
	m.t.Helper()
	if !m.t.Failed() {
		began := time.Now()
		f()
		m.t.Logf("%s: %v", name, time.Since(began).Round(time.Millisecond))
	}
}

func (m *movesLab) drain(backend string)   { m.command("drain", "backend", backend) }
func (m *movesLab) undrain(backend string) { m.command("undrain", "backend", backend) }

func (m *movesLab) command(args ...string) {
	m.t.Helper()
	if out, err := on(m.t, m.Lab, m.name, args...); err != nil {
		m.t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// welcome a backend: it gets its buckets once the agents of the others know it. Before, they
// would drop the packets that it passes on.
func (m *movesLab) welcome(backend string, others ...string) {
	m.t.Helper()
	m.must(m.SetStranger(m.t.Context(), backend))
	time.Sleep(3 * time.Second) // until agents have told controllers, as each second
	m.setWeight(backend, 1)
	eventually(m.t, 10*time.Second, "moves wait for agents to know "+backend, func() error {
		out, err := on(m.t, m.Lab, m.name, "show", "moves")
		if err == nil && !strings.Contains(out, backend+" gets no buckets of living backends until") {
			err = errors.New(out)
		}
		return err
	})
	m.waitOwners(others...)
	goOn(m.t, m.idle)
	m.must(m.SetStranger(m.t.Context(), ""))
	m.waitOwners(append(others, backend)...)
}

func (m *movesLab) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *movesLab) setWeight(backend string, weight uint32) {
	m.t.Helper()
	weights := m.Weights()
	weights[backend] = weight
	if err := m.SetWeights(m.t.Context(), weights); err != nil {
		m.t.Fatal(err)
	}
}

// waitOwners until exactly these have buckets of the services that have them by
// these names, and all forwarders have the map.
func (m *movesLab) waitOwners(want ...string) {
	m.t.Helper()
	for _, machine := range m.LoadBalancers() {
		m.waitOwnersAt(machine, want...)
	}
}

// bucketsAt a machine, of each stateless service.
func (m *movesLab) bucketsAt(machine string) ([]*controllerv1.Service, error) {
	m.t.Helper()
	out, err := on(m.t, m.Lab, machine, "show", "buckets", "-o", "json")
	if err != nil {
		return nil, err
	}
	state, err := shownState(out, "services")
	return state.Services, err
}

func (m *movesLab) waitOwnersAt(machine string, want ...string) {
	m.t.Helper()
	eventually(m.t, 30*time.Second, fmt.Sprintf("%v have all buckets at %s", want, machine), func() error {
		shown, err := m.bucketsAt(machine)
		if err != nil {
			return err
		}
		owners := map[string]int{}
		for _, s := range shown {
			if s.Name != "web" && s.Name != "echo" {
				continue // its backends have other names
			}
			for _, use := range s.Buckets.Backends {
				if use.Owned > 0 {
					owners[s.Name]++
				}
				if use.Next > 0 || s.Buckets.Generation != s.Buckets.GenerationAcknowledged || slices.Contains(want, use.Backend) != (use.Owned > 0) {
					return fmt.Errorf("%v", s)
				}
			}
		}
		for service, count := range owners {
			if count != len(want) {
				return fmt.Errorf("%d backends have buckets of %s", count, service)
			}
		}
		if len(owners) != 2 {
			return fmt.Errorf("not both services are stateless: %+v", shown)
		}
		return nil
	})
}

// toggle drains faster than moves are made.
func (m *movesLab) toggle(all ...string) {
	for range 3 {
		for _, backend := range all {
			m.drain(backend)
			m.undrain(backend)
		}
	}
	m.drain(all[0])
	m.drain(all[1])
	m.waitOwners(all[2])
	goOn(m.t, m.idle[:4])
	m.undrain(all[0])
	m.undrain(all[1])
	m.waitOwners(all...)
}

// killController so long after the command that it has made any number of steps.
func (m *movesLab) killController(all ...string) {
	for at, delay := range []time.Duration{0, 40, 80, 120, 180, 250} {
		backend := all[at%2]
		m.drain(backend)
		time.Sleep(delay * time.Millisecond)
		if err := m.Kill(m.name, "controller"); err != nil {
			m.t.Fatal(err)
		}
		if err := m.StartController(m.name); err != nil {
			m.t.Fatal(err)
		}
		m.waitOwners(slices.DeleteFunc(slices.Clone(all), func(b string) bool { return b == backend })...)
		m.undrain(backend)
		m.waitOwners(all...)
	}
}

func (m *movesLab) killForwarder(all ...string) {
	m.drain(all[0])
	if err := m.KillForwarder(m.name); err != nil {
		m.t.Fatal(err)
	}
	m.waitOwners(all[1:]...)
	m.undrain(all[0])
	m.waitOwners(all...)
}

// killAgent of the backend that the buckets leave, then of one that gets them. Their
// connections stand still meanwhile.
func (m *movesLab) killAgent(all ...string) {
	for at := range 2 {
		m.drain(all[0])
		if err := m.KillAgent(at); err != nil {
			m.t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
		if err := m.StartAgent(at); err != nil {
			m.t.Fatal(err)
		}
		m.waitOwners(all[1:]...)
		m.undrain(all[0])
		m.waitOwners(all...)
	}
}

// hangAgent of the backend that the buckets leave: its program goes on, and without its
// counts no move away from it closes.
func (m *movesLab) hangAgent(all ...string) {
	eventually(m.t, 20*time.Second, "agents run", func() error {
		for at := range all {
			if _, err := m.AgentMetrics(m.t.Context(), at); err != nil {
				return err
			}
		}
		return nil
	})
	goOn(m.t, m.idle)
	resume, err := m.Hang(all[0], "agent")
	if err != nil {
		m.t.Fatal(err)
	}
	m.drain(all[0])
	m.waitOwners(all[1:]...)
	goOn(m.t, m.idle)
	if m.openMovesFrom(all[0]) == 0 {
		m.t.Errorf("moves away from %s closed without a word of its agent", all[0])
	}
	if err := resume(); err != nil {
		m.t.Fatal(err)
	}
	m.undrain(all[0])
	m.waitOwners(all...)
}

// damageFiles of a controller that is away in the middle of moves: the next one goes on
// by the forwarder's plan, and says so.
func (m *movesLab) damageFiles(all ...string) {
	m.drain(all[0])
	m.waitOwners(all[1:]...)
	if err := m.Kill(m.name, "controller"); err != nil {
		m.t.Fatal(err)
	}
	directory := filepath.Join(m.Options().RunDir, m.name)
	files, err := filepath.Glob(filepath.Join(directory, "state", "bucket-maps", "*.json"))
	if err != nil || len(files) == 0 {
		m.t.Fatalf("bucket maps on disk: %v, %v", files, err)
	}
	for at, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			m.t.Fatal(err)
		}
		// Cut off, as by a power cut, or something else.
		damaged := [][]byte{content[:len(content)/2], []byte("no map"), nil}[at%3]
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			m.t.Fatal(err)
		}
	}
	if err := m.StartController(m.name); err != nil {
		m.t.Fatal(err)
	}
	m.waitOwners(all[1:]...)
	goOn(m.t, m.idle)
	if m.openMovesFrom(all[0]) == 0 {
		m.t.Errorf("moves away from %s were forgotten", all[0])
	}
	log, err := os.ReadFile(filepath.Join(directory, "controller.log"))
	if err != nil {
		m.t.Fatal(err)
	}
	if said := strings.Count(string(log), "a bucket map cannot be used"); said != len(files) {
		m.t.Errorf("the log has %d of %d damaged maps", said, len(files))
	}
	m.undrain(all[0])
	m.waitOwners(all...)
}

func (m *movesLab) moves() (moves []*controllerv1.BucketMove, err error) {
	m.t.Helper()
	services, err := m.bucketsAt(m.name)
	for _, s := range services {
		moves = append(moves, s.Buckets.Moves...)
	}
	return moves, err
}

// openMovesFrom a backend, in whatever step.
func (m *movesLab) openMovesFrom(backend string) (open int) {
	m.t.Helper()
	shown, err := m.moves()
	if err != nil {
		m.t.Fatal(err)
	}
	for _, move := range shown {
		if move.From == backend {
			open++
		}
	}
	return open
}

// loseMessages: of those between agents and controllers one of three is lost, either way,
// by chance.
func (m *movesLab) loseMessages() {
	m.t.Helper()
	const rules = `table inet guideway_lossy {
	chain forward {
		type filter hook forward priority 0
		udp dport 9475 numgen random mod 3 == 0 counter drop
		udp sport 9475 numgen random mod 3 == 0 counter drop
	}
}
`
	command := exec.CommandContext(m.t.Context(), "ip", "netns", "exec", m.Network.Router, "nft", "-f", "-")
	command.Stdin = strings.NewReader(rules)
	if out, err := command.CombinedOutput(); err != nil {
		m.t.Fatalf("nft on the router: %v: %s", err, out)
	}
}

// end the connections of a backend that has no buckets any more.
func (m *movesLab) end(backend string) {
	m.idle = slices.DeleteFunc(m.idle, func(c conversation) bool {
		if c.backend == backend {
			_ = c.Close()
		}
		return c.backend == backend
	})
	eventually(m.t, 30*time.Second, "no move away from "+backend+" is open", func() error {
		shown, err := m.moves()
		if err != nil {
			return err
		}
		for _, move := range shown {
			if move.From == backend {
				return errors.New(move.String())
			}
		}
		return nil
	})
}

// kill a backend: the connections of the others go on.
func (m *movesLab) kill(index int) {
	if err := m.KillBackend(m.t.Context(), index); err != nil {
		m.t.Fatal(err)
	}
	dead := m.Backends()[index]
	m.waitOwners(m.Backends()[0])
	others := slices.DeleteFunc(slices.Clone(m.idle), func(c conversation) bool { return c.backend == dead })
	if len(others) == 0 || len(others) == len(m.idle) {
		m.t.Fatalf("%d of %d connections are not at %s", len(others), len(m.idle), dead)
	}
	goOn(m.t, others)
}

// renumber a backend that is dead: it has its buckets again and new connections, and those
// of the others go on.
func (m *movesLab) renumber(index int) {
	if err := m.RenumberBackend(m.t.Context(), index); err != nil {
		m.t.Fatal(err)
	}
	one, renumbered := m.Backends()[0], m.Backends()[index]
	m.waitOwners(one, renumbered)
	goOn(m.t, slices.DeleteFunc(slices.Clone(m.idle), func(c conversation) bool { return c.backend != one }))
	for _, vip := range topology.EchoVIPs {
		var begun []conversation
		for range 30 {
			begun = append(begun, converse(m.t, m.Lab, vip))
		}
		goOn(m.t, begun)
		if !slices.ContainsFunc(begun, func(c conversation) bool { return c.backend == renumbered }) {
			m.t.Errorf("none of %d connections to %s is at %s", len(begun), vip, renumbered)
		}
	}
}
