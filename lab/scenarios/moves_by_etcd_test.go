package scenarios_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/topology"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// Load balancers that agree on bucket maps by etcd: whatever moves, whichever of them,
// of their leaders, or etcd dies or hangs meanwhile, and while the router sends flows
// to others of them than before, no connection breaks, whether busy or idle, IPv4 or
// IPv6, and no backend's kernel sends an RST.
func TestMovesByEtcd(t *testing.T) {
	for _, program := range []string{"etcd", "etcdctl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("a lab needs %s: tools/install-deps.sh lab installs it", program)
		}
	}
	o := options(t, "agree")
	o.LoadBalancers, o.Encap, o.Stateless = 3, "geneve", true
	running := up(t, o)
	m := &movesByEtcd{movesLab{Lab: running, t: t, name: running.LoadBalancers()[1]}}
	for range 20 {
		for _, vip := range topology.EchoVIPs {
			m.idle = append(m.idle, converse(t, running, vip))
		}
	}
	remote := loadForTakeOver(t, running, 1, 200)
	resets := watchResets(t, running)
	one, two, three := running.Backends()[0], running.Backends()[1], running.Backends()[2] // a spare
	m.run("scale out", func() { m.setWeight(three, 1); m.waitOwners(one, two, three) })
	m.run("many at once", func() { m.toggle(one, two, three) })
	m.run("the leader's controller is killed in each step", func() { m.killLeader(one, two, three) })
	m.run("the leader's machine dies in the middle of a move", func() { m.killLeadersMachine(one, two, three) })
	m.run("etcd is away in each step", func() { m.etcdAway(one, two, three) })
	m.run("a load balancer is held a generation apart in each step", func() { m.holdApart(one, two, three) })
	if nightly {
		m.run("load balancers are a step apart for a minute", func() { m.holdAMinute(one, two, three) })
	}
	m.run("a machine that is drained is not waited for", func() { m.withdraw(one, two, three) })
	m.run("etcd's map is damaged", func() { m.damage(one, two, three) })
	m.run("scale in", func() { m.setWeight(three, 0); m.waitOwners(one, two) })
	goOn(t, m.idle)
	stopUnbroken(t, remote)
	resets.check()
	m.run("moves close when their connections have ended", func() { m.end(three) })
	checkAtRest(t, running)
}

type movesByEtcd struct{ movesLab }

// afterCommand are times by which a move has made any number of its steps.
var afterCommand = map[bool][]time.Duration{false: {250}, true: {50, 250, 500}}[nightly]

func but(all []string, backend string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(b string) bool { return b == backend })
}

func (m *movesByEtcd) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *movesByEtcd) leader() (string, error) {
	out, err := m.Etcdctl(m.t.Context(), "get", "--print-value-only", m.EtcdPrefix()+"leader/default")
	if err != nil {
		return "", err
	}
	var leader struct{ Machine string }
	if err := json.Unmarshal([]byte(out), &leader); err != nil {
		return "", fmt.Errorf("no leader: %w", err)
	}
	return leader.Machine, nil
}

func (m *movesByEtcd) waitLeader(former string) {
	m.t.Helper()
	eventually(m.t, 30*time.Second, "another than "+former+" leads", func() error {
		leader, err := m.leader()
		if err == nil && leader == former {
			err = errors.New("it leads still")
		}
		return err
	})
}

func (m *movesByEtcd) mustLeader() string {
	m.t.Helper()
	leader, err := m.leader()
	m.must(err)
	return leader
}

// commandBut is a load balancer that gets commands, and is not the one given.
func (m *movesByEtcd) commandBut(machine string) {
	m.name = but(m.LoadBalancers(), machine)[0]
}

// killLeader: the next one goes on when the former's lease has ended. Its forwarder is
// still waited for.
func (m *movesByEtcd) killLeader(all ...string) {
	for at, delay := range afterCommand {
		leader, backend := m.mustLeader(), all[at%2]
		m.commandBut(leader)
		m.drain(backend)
		time.Sleep(delay * time.Millisecond)
		m.must(m.Kill(leader, "controller"))
		m.waitLeader(leader)
		m.must(m.StartController(leader))
		m.waitOwners(but(all, backend)...)
		m.undrain(backend)
		m.waitOwners(all...)
	}
}

// killLeadersMachine: the router sends its flows to the others, which do not go on
// before it has returned.
func (m *movesByEtcd) killLeadersMachine(all ...string) {
	leader := m.mustLeader()
	m.commandBut(leader)
	m.drain(all[0])
	time.Sleep(200 * time.Millisecond)
	_, err := m.KillLoadBalancer(leader)
	m.must(err)
	time.Sleep(2 * time.Second)
	m.must(m.RestoreLoadBalancer(leader))
	m.waitOwners(all[1:]...)
	m.undrain(all[0])
	m.waitOwners(all...)
}

func (m *movesByEtcd) etcdAway(all ...string) {
	for at, delay := range afterCommand {
		backend := all[at%2]
		m.drain(backend)
		time.Sleep(delay * time.Millisecond)
		m.must(m.KillEtcd())
		time.Sleep([]time.Duration{6 * time.Second, 500 * time.Millisecond}[at%2])
		goOn(m.t, m.idle[:4])
		m.must(m.StartEtcd())
		m.waitOwners(but(all, backend)...)
		m.undrain(backend)
		m.waitOwners(all...)
	}
}

// holdApart one load balancer, whose controller hangs, while the router sends flows
// to others than before, again and again. Moves do not go on before it does.
func (m *movesByEtcd) holdApart(all ...string) {
	for at, delay := range afterCommand {
		backend := all[at%2]
		held := m.LoadBalancers()[at%3]
		m.commandBut(held)
		m.drain(backend)
		time.Sleep(delay * time.Millisecond)
		resume, err := m.Hang(held, "controller")
		m.must(err)
		for range 5 {
			m.rehash()
			time.Sleep(500 * time.Millisecond)
		}
		goOn(m.t, m.idle[:8])
		m.must(resume())
		m.waitOwners(but(all, backend)...)
		m.rehash()
		m.undrain(backend)
		m.waitOwners(all...)
	}
}

// apartFor so long two load balancers run maps that are a step apart.
const apartFor = time.Minute

// holdAMinute: one load balancer has the step in which the former backend is in charge,
// and the others the one in which it is not. Each second the router sends all flows to
// others of them, and connections begin at whichever backend is in charge there.
func (m *movesByEtcd) holdAMinute(all ...string) {
	leader := m.mustLeader()
	others := but(m.LoadBalancers(), leader)
	late, held := others[0], others[1]
	m.name = leader
	m.waitUnchanged()
	resumeLate, err := m.Hang(late, "controller")
	m.must(err)
	m.drain(all[0])
	m.waitPreparedBut(late)
	resumeHeld, err := m.Hang(held, "controller")
	m.must(err)
	m.must(resumeLate())
	m.waitOwnersAt(leader, all[1:]...)
	m.waitOwnersAt(late, all[1:]...)
	passed := m.passedOn()
	var begun []conversation
	for end := time.Now().Add(apartFor); time.Now().Before(end) && !m.t.Failed(); {
		if m.hasBuckets(leader, all[0]) || m.hasBuckets(late, all[0]) || !m.hasBuckets(held, all[0]) {
			m.t.Fatal("they are not a step apart")
		}
		m.rehash()
		for _, vip := range topology.EchoVIPs {
			begun = append(begun, converse(m.t, m.Lab, vip))
		}
		goOn(m.t, begun)
		goOn(m.t, m.idle)
		time.Sleep(time.Second)
	}
	byBackend := map[string]int{}
	for _, c := range begun {
		byBackend[c.backend]++
	}
	passed = m.passedOn() - passed
	m.t.Logf("connections that began meanwhile, by backend: %v; agents passed %v packets on", byBackend, passed)
	if byBackend[all[0]] == 0 || len(byBackend) == 1 || passed == 0 {
		m.t.Error("nothing was shown")
	}
	m.must(resumeHeld())
	m.waitOwners(all[1:]...)
	goOn(m.t, begun)
	m.undrain(all[0])
	m.waitOwners(all...)
	for _, c := range begun {
		_ = c.Close()
	}
}

// waitUnchanged until all have acknowledged the maps, and none has changed for some seconds:
// no move is left that may close when a short connection ends.
func (m *movesByEtcd) waitUnchanged() {
	m.t.Helper()
	const unchangedFor = 4 * time.Second
	var generations []uint64
	since := time.Now()
	eventually(m.t, 60*time.Second, "maps stay as they are", func() error {
		shown, err := m.bucketsAt(m.name)
		if err != nil {
			return err
		}
		var now []uint64
		for _, s := range shown {
			now = append(now, s.Buckets.Generation)
			if len(s.Buckets.Agreement.GetLags()) > 0 {
				since = time.Now()
			}
		}
		if !slices.Equal(now, generations) {
			generations, since = now, time.Now()
		}
		if time.Since(since) < unchangedFor {
			return fmt.Errorf("generations %v", now)
		}
		return nil
	})
}

// waitPreparedBut until all but this machine have acknowledged that buckets are to move.
func (m *movesByEtcd) waitPreparedBut(late string) {
	m.t.Helper()
	eventually(m.t, 30*time.Second, "moves wait for "+late+" alone", func() error {
		shown, err := m.bucketsAt(m.name)
		if err != nil {
			return err
		}
		moving := map[string]bool{}
		for _, s := range shown {
			lags := s.Buckets.Agreement.GetLags()
			if (len(lags) != 1 || lags[0].Machine != late) && (s.Name == "web" || s.Name == "echo") {
				return fmt.Errorf("%v", s)
			}
			moving[s.Name] = slices.ContainsFunc(s.Buckets.Backends, func(use *controllerv1.BucketUse) bool { return use.Next > 0 })
		}
		if !moving["web"] || !moving["echo"] {
			return fmt.Errorf("%+v", shown)
		}
		return nil
	})
}

// hasBuckets of the echo service, as the machine's forwarder has them.
func (m *movesByEtcd) hasBuckets(machine, backend string) bool {
	m.t.Helper()
	plan, err := m.Plan(m.t.Context(), machine)
	m.must(err)
	for _, service := range plan.GetServices() {
		for _, at := range service.GetBucketMap().GetByBucket() {
			if service.GetName() == "echo" && service.GetBucketMap().GetBackends()[at] == backend {
				return true
			}
		}
	}
	return false
}

// passedOn by all agents.
func (m *movesByEtcd) passedOn() (sum float64) {
	m.t.Helper()
	for sample, value := range agentMetrics(m.t, m.Lab) {
		if strings.HasPrefix(sample, "guideway_agent_forwarded_packets_total") {
			sum += value
		}
	}
	return sum
}

var hashSeed = uint32(1)

// rehash has the router choose next hops of all flows anew.
func (m *movesByEtcd) rehash() {
	m.t.Helper()
	hashSeed++
	m.must(m.Network.Rehash(m.t.Context(), hashSeed))
}

// withdraw a machine's routes, then switch its controller off: the others go on
// without it, and it comes back with the present map, also where it starts before etcd
// answers.
func (m *movesByEtcd) withdraw(all ...string) {
	away := m.LoadBalancers()[2]
	m.name = away
	m.command("drain", "machine")
	key := m.EtcdPrefix() + "acknowledgements/" + away
	eventually(m.t, 30*time.Second, away+" has withdrawn", func() error {
		out, err := m.Etcdctl(m.t.Context(), "get", "--print-value-only", key)
		if err == nil && !strings.Contains(strings.ReplaceAll(out, " ", ""), `"withdrawn":true`) {
			err = errors.New(out)
		}
		return err
	})
	m.must(m.Kill(away, "controller"))
	m.commandBut(away)
	m.drain(all[0])
	for _, machine := range m.LoadBalancers()[:2] {
		m.waitOwnersAt(machine, all[1:]...)
	}
	m.must(m.KillEtcd())
	m.must(m.StartController(away))
	m.name = away
	eventually(m.t, 30*time.Second, away+" is to take routes back", func() error {
		_, err := on(m.t, m.Lab, away, "undrain", "machine")
		return err
	})
	// Its maps are older than those of the others by more than a step.
	eventually(m.t, 30*time.Second, away+" waits for etcd", func() error {
		out, err := on(m.t, m.Lab, away, "show", "bgp")
		if err == nil && !strings.Contains(out, "waiting until etcd says") {
			err = errors.New(out)
		}
		return err
	})
	m.must(m.StartEtcd())
	m.waitOwners(all[1:]...)
	m.commandBut(away)
	m.undrain(all[0])
	m.waitOwners(all...)
	m.must(m.WaitReady(m.t.Context(), readyMax))
}

func (m *movesByEtcd) damage(all ...string) {
	_, err := m.Etcdctl(m.t.Context(), "put", m.EtcdPrefix()+"maps/echo", "no map")
	m.must(err)
	m.drain(all[0])
	m.waitOwners(all[1:]...)
	m.undrain(all[0])
	m.waitOwners(all...)
}
