package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/etcdtest"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

func machineNamed(name string) *fleetv1.Machine {
	return &fleetv1.Machine{Name: name, Addresses: []string{"10.0.0.1"}, Shard: "default", Version: "1.0", State: "serving"}
}

func registerOnce(t *testing.T, s *Store, machine *fleetv1.Machine) error {
	t.Helper()
	l := lease{store: s}
	if _, err := l.hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s.register(t.Context(), l.id, machine)
}

// registering a machine that is what the pointer holds.
func registering(t *testing.T, s *Store, machine *atomic.Pointer[fleetv1.Machine]) (r *Registrar, stop func()) {
	t.Helper()
	r = NewRegistrar(s, slog.New(slog.DiscardHandler), func(context.Context) *fleetv1.Machine { return machine.Load() })
	r.interval = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(stop)
	return r, stop
}

func untilMachines(t *testing.T, s *Store, what string, holds func([]*fleetv1.Machine) bool) []*fleetv1.Machine {
	t.Helper()
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		machines, err := s.Machines(t.Context())
		if err == nil && holds(machines) {
			return machines
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: never after %v: %v: %v", what, timeout, machines, err)
		}
	}
}

func one(machines []*fleetv1.Machine) bool  { return len(machines) == 1 }
func none(machines []*fleetv1.Machine) bool { return len(machines) == 0 }

func TestAMachineIsRegisteredAsLongAsItsControllerLives(t *testing.T) {
	server := etcdtest.Start(t)
	s := storeAt(t, server)
	var machine atomic.Pointer[fleetv1.Machine]
	machine.Store(machineNamed("lb-1"))
	r, stop := registering(t, s, &machine)
	found := untilMachines(t, s, "registered", one)[0]
	if found.Name != "lb-1" || found.Version != "1.0" || found.Time.AsTime().IsZero() {
		t.Errorf("registered is %v", found)
	}
	if value := server.Ctl("get", "--print-value-only", "/guideway/c1/machines/lb-1"); !strings.Contains(strings.ReplaceAll(value, " ", ""), `"name":"lb-1"`) {
		t.Errorf("etcd has %s", value)
	}
	changed := machineNamed("lb-1")
	changed.State, changed.Drained = "drained", true
	machine.Store(changed)
	untilMachines(t, s, "a change is written", func(m []*fleetv1.Machine) bool { return one(m) && m[0].Drained })
	if problem := r.Problem(); problem != "" {
		t.Error(problem)
	}
	stop()
	untilMachines(t, s, "gone with its controller", none)
}

func TestALeaseThatIsLostIsHadAnew(t *testing.T) {
	server := etcdtest.Start(t)
	s := storeAt(t, server)
	var machine atomic.Pointer[fleetv1.Machine]
	machine.Store(machineNamed("lb-1"))
	r, _ := registering(t, s, &machine)
	untilMachines(t, s, "registered", one)
	leases := strings.Fields(server.Ctl("lease", "list"))
	server.Ctl("lease", "revoke", leases[len(leases)-1])
	untilMachines(t, s, "the key went with the lease", none)
	untilMachines(t, s, "registered anew", one)
	server.Kill()
	for deadline := time.Now().Add(timeout); !strings.Contains(r.Problem(), "etcd does not answer"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the problem is %q", r.Problem())
		}
		changed := machineNamed("lb-1")
		changed.Reason = fmt.Sprint(time.Now()) // so that there is something to write
		machine.Store(changed)
	}
	server.Run()
	untilMachines(t, s, "what changed meanwhile", func(m []*fleetv1.Machine) bool {
		return one(m) && m[0].Reason == machine.Load().Reason && r.Problem() == ""
	})
}

func TestAnotherMachineOfTheSameNameIsNotOverwritten(t *testing.T) {
	s := storeAt(t, etcdtest.Start(t))
	first, second := machineNamed("lb-1"), machineNamed("lb-1")
	second.Addresses = []string{"10.0.0.2"}
	if err := registerOnce(t, s, first); err != nil {
		t.Fatal(err)
	}
	err := registerOnce(t, s, second)
	if err == nil || !strings.Contains(err.Error(), "another machine is registered as lb-1, with the addresses 10.0.0.1 (here: 10.0.0.2)") {
		t.Errorf("the second: %v", err)
	}
	// Its own, from before a restart.
	if err := registerOnce(t, s, first); err != nil {
		t.Error(err)
	}
}

// A later version may have written it.
func TestAKeyWithUnknownFieldsIsRead(t *testing.T) {
	server := etcdtest.Start(t)
	s := storeAt(t, server)
	server.Ctl("put", "/guideway/c1/machines/lb-1", `{"name": "lb-1", "state": "serving", "fromTheFuture": {"a": [1]}}`)
	server.Ctl("put", "/guideway/c1/machines/lb-2", `no JSON`)
	server.Ctl("put", "/guideway/c1/current", `{"generation": "3", "digest": "d", "parts": 1, "fromTheFuture": true}`)
	machines, err := s.Machines(t.Context())
	if err != nil || len(machines) != 2 || machines[0].State != "serving" {
		t.Fatalf("%v: %v", machines, err)
	}
	if m := machines[1]; m.Name != "lb-2" || m.State != "unreadable" || !strings.Contains(m.Reason, "/guideway/c1/machines/lb-2") {
		t.Errorf("a damaged one: %v", m)
	}
	if seen := see(t, s); seen.Current.GetGeneration() != 3 {
		t.Errorf("current is %v", seen.Current)
	}
}

// Who may write in etcd does not write on the terminals of those who look.
func TestTextInEtcdIsCutAndQuoted(t *testing.T) {
	server := etcdtest.Start(t)
	s := storeAt(t, server)
	server.Ctl("put", "/guideway/c1/machines/lb-1\x1b[2J", `{"state": "serving\u001b[2J", "reason": "`+strings.Repeat("a", 100<<10)+`"}`)
	server.Ctl("put", "/guideway/c1/machines/lb-2", `{"\u001b]0;owned": 1, "reason": "\u001b"`)
	server.Ctl("put", "/guideway/c1/overrides/backend/\x1b[2J", `{}`)
	machines, err := s.Machines(t.Context())
	if err != nil || len(machines) != 2 {
		t.Fatalf("%v: %v", machines, err)
	}
	if m := machines[0]; m.Name != `lb-1\x1b[2J` || m.State != `serving\x1b[2J` || len(m.Reason) > valueBytesMax {
		t.Errorf("%q %q, a reason of %d bytes", m.Name, m.State, len(m.Reason))
	}
	if m := machines[1]; strings.Contains(m.Reason, "\x1b") {
		t.Errorf("%q", m.Reason)
	}
	if drains, err := s.Drains(t.Context()); err != nil || drains.Drained[0].Name != `\x1b[2J` {
		t.Errorf("%q %v", drains.Drained, err)
	}
}

func TestWhatIsWrittenAndWhen(t *testing.T) {
	now := time.Now()
	written := machineNamed("lb-1")
	written.PacketsPerSecond, written.BytesPerSecond = 1000, 100_000
	after := func(age time.Duration, change func(*fleetv1.Machine)) bool {
		machine := proto.CloneOf(written)
		change(machine)
		r := &Registrar{written: written, writtenAt: now.Add(-age)}
		return r.isDue(machine, now)
	}
	for _, test := range []struct {
		what   string
		age    time.Duration
		change func(*fleetv1.Machine)
		due    bool
	}{
		{"nothing changed", 30 * time.Second, func(*fleetv1.Machine) {}, false},
		{"nothing changed for a minute", time.Minute, func(*fleetv1.Machine) {}, true},
		{"the state", time.Second, func(m *fleetv1.Machine) { m.State = "drained" }, true},
		{"rates, soon after", 9 * time.Second, func(m *fleetv1.Machine) { m.PacketsPerSecond = 9000 }, false},
		{"rates, later", 10 * time.Second, func(m *fleetv1.Machine) { m.PacketsPerSecond = 1200 }, true},
		{"rates, by little", 10 * time.Second, func(m *fleetv1.Machine) { m.BytesPerSecond = 105_000 }, false},
	} {
		if after(test.age, test.change) != test.due {
			t.Errorf("%s: due is %v", test.what, !test.due)
		}
	}
}

// What registering a hundred machines costs etcd, whose rates change all the time.
func TestAHundredMachinesWriteLittle(t *testing.T) {
	server := etcdtest.Start(t)
	s := storeAt(t, server)
	const machines = 100
	for i := range machines {
		store := newStore(t, config.Etcd{Cluster: "c1", Endpoints: []string{server.URL()}})
		name := fmt.Sprintf("lb-%03d", i)
		r := NewRegistrar(store, slog.New(slog.DiscardHandler), func(context.Context) *fleetv1.Machine {
			m := machineNamed(name)
			m.PacketsPerSecond = rand.Uint64N(1_000_000)
			return m
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); r.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-ended })
	}
	untilMachines(t, s, "all are registered", func(m []*fleetv1.Machine) bool { return len(m) == machines })
	before, processorBefore := see(t, s).revision, processorTime(t, server.PID())
	const watched = 12 * time.Second
	time.Sleep(watched)
	writes := see(t, s).revision - before
	t.Logf("%d machines: %d writes in %v, %v of etcd's processor time", machines, writes, watched, processorTime(t, server.PID())-processorBefore)
	// Each about once in ten seconds.
	if writes < machines/2 || writes > 2*machines {
		t.Errorf("%d machines wrote %d times in %v", machines, writes, watched)
	}
}

// processorTime that a process has used (proc(5): utime and stime, in hundredths).
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	var ticks int
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
