package fleet

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guideway/guideway/controller/agreement"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/buckets"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/etcdtest"
)

// sharer is a machine's Maps, and what it has handed on last.
type sharer struct {
	*Maps
	t    *testing.T
	name string
	stop func()

	mu   sync.Mutex
	seen *agreement.Seen
	away string
}

func share(t *testing.T, settings config.Etcd, name string) *sharer {
	t.Helper()
	s := &sharer{t: t, name: name}
	s.Maps = NewMaps(newStore(t, settings), slog.New(slog.DiscardHandler), s.hear)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	s.stop = func() { cancel(); <-ended }
	t.Cleanup(s.stop)
	return s
}

func (s *sharer) hear(event brain.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e := event.(type) {
	case brain.AgreementSeen:
		s.seen, s.away = e.Seen, ""
	case brain.AgreementAway:
		s.away = e.Reason
	}
}

func (s *sharer) now() (*agreement.Seen, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		return &agreement.Seen{}, s.away
	}
	return s.seen, s.away
}

// desire what a brain would.
func (s *sharer) desire(change func(*brain.Agreement)) {
	want := &brain.Agreement{Machine: s.name, Shard: "default", Lead: true, Told: agreement.Told{Shard: "default", Number: 1, Maps: map[string]uint64{}}}
	if change != nil {
		change(want)
	}
	s.Set(want)
}

func (s *sharer) until(what string, holds func(seen *agreement.Seen, away string) bool) {
	s.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		seen, away := s.now()
		if holds(seen, away) {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: not: %s: %+v, away %q", s.name, what, seen, away)
		}
	}
}

func firstMap(backend string) *buckets.Map {
	var none *buckets.Map
	return none.Next(buckets.Situation{
		Buckets: 256, Members: []buckets.Member{{Backend: backend, Weight: 1}}, Backends: map[string]buckets.Backend{backend: {State: buckets.Alive}}, Now: time.Now(),
	})
}

func proposes(m *buckets.Map, previous int64) func(*brain.Agreement) {
	return func(want *brain.Agreement) {
		want.Proposals = map[string]*agreement.Proposal{"web": {Map: m, Previous: previous, AsLeader: true}}
	}
}

func TestOneMachineLeadsAndItsMapsReachAll(t *testing.T) {
	server := etcdtest.Start(t)
	settings := config.Etcd{Cluster: "c1", Endpoints: []string{server.URL()}}
	first := share(t, settings, "lb-1")
	first.desire(nil)
	first.until("it leads", func(seen *agreement.Seen, _ string) bool { return seen.Leads && seen.Leader == "lb-1" })
	second := share(t, settings, "lb-2")
	second.desire(proposes(firstMap("wrong"), 0)) // it does not lead
	second.until("another leads", func(seen *agreement.Seen, _ string) bool { return !seen.Leads && seen.Leader == "lb-1" })
	first.desire(proposes(firstMap("web-1"), 0))
	second.until("it has the map", func(seen *agreement.Seen, _ string) bool {
		m := seen.Maps["web"].Map
		return m != nil && m.Buckets[0].Owner == "web-1"
	})
	seen, _ := second.now()
	first.desire(proposes(firstMap("stale"), 0)) // of before there was one
	second.desire(func(want *brain.Agreement) {
		want.Told.Maps["web"], want.Told.Number, want.Told.Drained = 1, 2, []string{"web-1"}
		want.Verdicts = agreement.Verdicts{"web": {"web-1": agreement.Down, "web-2": agreement.TakesNew}}
	})
	first.until("it sees what the other says", func(seen *agreement.Seen, _ string) bool {
		return seen.Told["lb-2"].Maps["web"] == 1 && len(seen.DrainedOn("web-1", []string{"lb-2"})) == 1 && seen.Verdicts["lb-2"]["web"]["web-1"] == agreement.Down
	})
	if now, _ := first.now(); now.Maps["web"].Revision != seen.Maps["web"].Revision {
		t.Error("a map that was not seen is replaced")
	}
	first.stop()
	second.until("it leads, as the other has ended", func(seen *agreement.Seen, _ string) bool { return seen.Leads })
	if now, _ := second.now(); now.Told["lb-1"].Shard != "default" || now.Verdicts["lb-1"] != nil {
		t.Errorf("what lb-1 has acknowledged stays, what it finds of backends does not: %+v", now)
	}
	second.desire(func(want *brain.Agreement) { want.Lead = false })
	second.until("it leads no more", func(seen *agreement.Seen, _ string) bool { return seen.Leader == "" })
}

// A leader that hangs makes way when its lease ends, and writes nothing afterwards.
func TestALeaderThatWasCutOffWritesNothing(t *testing.T) {
	server := etcdtest.Start(t)
	settings := config.Etcd{Cluster: "c1", Endpoints: []string{server.URL()}}
	first := share(t, settings, "lb-1")
	first.desire(nil)
	first.until("it leads", func(seen *agreement.Seen, _ string) bool { return seen.Leads })
	server.Ctl("put", "/guideway/c1/leader/default", `{"machine": "lb-2"}`) // as if elected since
	first.desire(proposes(firstMap("web-1"), 0))
	first.until("another leads", func(seen *agreement.Seen, _ string) bool { return seen.Leader == "lb-2" && !seen.Leads })
	if out := server.Ctl("get", "--keys-only", "--prefix", "/guideway/c1/maps/"); strings.TrimSpace(out) != "" {
		t.Errorf("stored: %s", out)
	}
	server.Ctl("put", "/guideway/c1/leader/default", `no JSON`)
	first.until("it leads where the key is damaged", func(seen *agreement.Seen, _ string) bool { return seen.Leads })
}

func TestWhatIsDamagedIsSaidAndWhatIsLostIsWrittenAgain(t *testing.T) {
	server := etcdtest.Start(t)
	settings := config.Etcd{Cluster: "c1", Endpoints: []string{server.URL()}}
	first := share(t, settings, "lb-1")
	first.desire(func(want *brain.Agreement) { want.Told.Maps["web"] = 7 })
	first.until("it has acknowledged", func(seen *agreement.Seen, _ string) bool { return seen.Told["lb-1"].Maps["web"] == 7 })
	server.Ctl("put", "/guideway/c1/maps/web", `{"service": "web", "generation": "7", "byBucket": [3]}`)
	first.until("the map is damaged", func(seen *agreement.Seen, _ string) bool {
		return seen.Maps["web"].Map == nil && seen.Maps["web"].Problem != "" && seen.Maps["web"].Revision > 0
	})
	server.Ctl("put", "/guideway/c1/acknowledgements/lb-2", `no JSON`)
	server.Ctl("del", "/guideway/c1/acknowledgements/lb-1")
	first.until("it has acknowledged again", func(seen *agreement.Seen, _ string) bool { return seen.Told["lb-1"].Maps["web"] == 7 })
	if out := server.Ctl("get", "--print-value-only", "/guideway/c1/acknowledgements/lb-1"); !strings.Contains(out, `"7"`) {
		t.Errorf("stored: %s", out)
	}
	snapshot := server.Snapshot()
	first.desire(func(want *brain.Agreement) { want.Told.Maps["web"], want.Told.Number = 8, 2 })
	first.until("it has acknowledged more", func(seen *agreement.Seen, _ string) bool { return seen.Told["lb-1"].Maps["web"] == 8 })
	server.Restore(snapshot)
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(server.Ctl("get", "--print-value-only", "/guideway/c1/acknowledgements/lb-1"), `"8"`); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("an older snapshot's acknowledgement stays")
		}
	}
}

func TestEtcdThatIsAwayIsSaidAndTakenUpAgain(t *testing.T) {
	server := etcdtest.Start(t)
	first := share(t, config.Etcd{Cluster: "c1", Endpoints: []string{server.URL()}}, "lb-1")
	first.desire(nil)
	first.until("it leads", func(seen *agreement.Seen, _ string) bool { return seen.Leads })
	server.Kill()
	first.until("etcd is away", func(_ *agreement.Seen, away string) bool { return away != "" })
	server.Run()
	first.until("it leads again", func(seen *agreement.Seen, away string) bool { return seen.Leads && away == "" })
}

func TestAMachineGetsPacketsAgainOnlyWithThePresentMaps(t *testing.T) {
	server := etcdtest.Start(t)
	first := share(t, config.Etcd{Cluster: "c1", Endpoints: []string{server.URL()}}, "lb-1")
	first.desire(func(want *brain.Agreement) { want.Told.Withdrawn = true })
	first.until("withdrawn", func(seen *agreement.Seen, _ string) bool { return seen.Told["lb-1"].Withdrawn })
	first.desire(proposes(firstMap("web-1"), 0))
	first.desire(func(want *brain.Agreement) { proposes(firstMap("web-1"), 0)(want); want.Told.Withdrawn = true })
	first.until("there is a map", func(seen *agreement.Seen, _ string) bool { return seen.Maps["web"].Map != nil })
	seen, _ := first.now()
	rejoins := func(revision int64) func(*brain.Agreement) {
		return func(want *brain.Agreement) {
			want.Told.Number, want.Rejoins = 5, map[string]int64{"web": revision}
		}
	}
	first.desire(func(want *brain.Agreement) { want.Told.Number = 5 }) // decided before etcd was read
	time.Sleep(500 * time.Millisecond)
	if now, _ := first.now(); now.Told["lb-1"].Number == 5 {
		t.Error("moves wait for it, though it has not said which maps it has")
	}
	first.desire(rejoins(seen.Maps["web"].Revision - 1))
	time.Sleep(500 * time.Millisecond)
	if now, _ := first.now(); now.Told["lb-1"].Number == 5 {
		t.Error("it gets packets with an older map")
	}
	first.desire(rejoins(seen.Maps["web"].Revision))
	first.until("it gets packets", func(seen *agreement.Seen, _ string) bool {
		return seen.Told["lb-1"].Number == 5 && !seen.Told["lb-1"].Withdrawn
	})
}

// What this machine writes itself says nothing of maps that were written before, and
// that its watch has not reported yet.
func TestAMachineGetsNoPacketsWhileAMapIsUnderWay(t *testing.T) {
	server := etcdtest.Start(t)
	s := &sharer{t: t, name: "lb-1"}
	s.Maps = NewMaps(newStore(t, config.Etcd{Cluster: "c1", Endpoints: []string{server.URL()}}), slog.New(slog.DiscardHandler), s.hear)
	defer s.end(t.Context())
	round := func(change func(*brain.Agreement)) {
		t.Helper()
		s.desire(change)
		if err := s.round(t.Context(), s.wanted()); err != nil {
			t.Fatal(err)
		}
	}
	const key = "/guideway/c1/maps/web"
	server.Ctl("put", key, "of before")
	round(func(want *brain.Agreement) { want.Told.Withdrawn = true })
	seen := s.Maps.seen.revision(key)
	server.Ctl("put", key, "of since") // and no watch is heard
	rejoins := func(want *brain.Agreement) {
		want.Told.Number, want.Rejoins = 5, map[string]int64{"web": seen}
		want.Verdicts = agreement.Verdicts{"web": {"web-1": agreement.Down}} // written first
	}
	round(rejoins)
	if out := server.Ctl("get", "--print-value-only", "/guideway/c1/acknowledgements/lb-1"); !strings.Contains(out, "withdrawn") {
		t.Errorf("it gets packets with an older map: %s", out)
	}
	for s.Maps.seen.revision(key) == seen {
		s.take(<-s.watched.events())
	}
	seen = s.Maps.seen.revision(key)
	round(rejoins)
	if out := server.Ctl("get", "--print-value-only", "/guideway/c1/acknowledgements/lb-1"); strings.Contains(out, "withdrawn") {
		t.Errorf("it gets none with the present one: %s", out)
	}
}

// What etcd refuses for want of a permission is written when that is granted, without
// any other change.
func TestAMapThatWasRefusedIsWrittenWhenItMayBe(t *testing.T) {
	authority := etcdtest.NewAuthority(t)
	server := etcdtest.StartTLS(t, authority)
	for _, command := range []string{
		"user add root --no-password", "user grant-role root root", "user add lb-1 --no-password", "role add most",
		"role grant-permission most read --prefix=true /guideway/c1/",
		"role grant-permission most readwrite --prefix=true /guideway/c1/leader/",
		"role grant-permission most readwrite --prefix=true /guideway/c1/verdicts/",
		"role grant-permission most readwrite --prefix=true /guideway/c1/acknowledgements/",
		"user grant-role lb-1 most", "auth enable",
	} {
		server.Ctl(strings.Fields(command)...)
	}
	cert, key := authority.Issue(t, "lb-1")
	first := share(t, config.Etcd{Cluster: "c1", Endpoints: []string{server.URL()}, CAFile: authority.File, CertFile: cert, KeyFile: key}, "lb-1")
	first.desire(proposes(firstMap("web-1"), 0))
	first.until("etcd refuses the map", func(seen *agreement.Seen, _ string) bool {
		return seen.Leads && strings.Contains(seen.Refused, "docs/etcd.md")
	})
	time.Sleep(2 * mapsInterval) // refused again, which is no news
	server.Ctl(strings.Fields("role grant-permission most readwrite --prefix=true /guideway/c1/maps/")...)
	first.until("it is written", func(seen *agreement.Seen, _ string) bool { return seen.Maps["web"].Map != nil && seen.Refused == "" })
}

func TestRolesAreEnough(t *testing.T) {
	authority := etcdtest.NewAuthority(t)
	server := etcdtest.StartTLS(t, authority)
	server.Ctl("user", "add", "root", "--no-password")
	server.Ctl("user", "grant-role", "root", "root")
	for _, command := range []string{
		"role add guideway-read", "role grant-permission guideway-read read --prefix=true /guideway/c1/",
		"role add guideway-lead", "role grant-permission guideway-lead readwrite --prefix=true /guideway/c1/maps/",
		"role grant-permission guideway-lead readwrite --prefix=true /guideway/c1/leader/",
	} {
		server.Ctl(strings.Fields(command)...)
	}
	for _, machine := range []string{"lb-1", "lb-2"} {
		for _, command := range []string{
			"user add NAME --no-password", "role add own-NAME", "role grant-permission own-NAME readwrite /guideway/c1/verdicts/NAME",
			"role grant-permission own-NAME readwrite /guideway/c1/acknowledgements/NAME",
			"user grant-role NAME guideway-read", "user grant-role NAME own-NAME",
		} {
			server.Ctl(strings.Fields(strings.ReplaceAll(command, "NAME", machine))...)
		}
	}
	server.Ctl("user", "grant-role", "lb-1", "guideway-lead")
	server.Ctl("auth", "enable")
	settings := func(machine string) config.Etcd {
		cert, key := authority.Issue(t, machine)
		return config.Etcd{Cluster: "c1", Endpoints: []string{server.URL()}, CAFile: authority.File, CertFile: cert, KeyFile: key}
	}
	second := share(t, settings("lb-2"), "lb-2")
	second.desire(nil)
	second.until("etcd refuses that it leads", func(seen *agreement.Seen, _ string) bool {
		return seen.Leader == "" && strings.Contains(seen.Refused, "docs/etcd.md") && seen.Told["lb-2"].Shard == "default"
	})
	first := share(t, settings("lb-1"), "lb-1")
	first.desire(proposes(firstMap("web-1"), 0))
	second.until("it sees the other's map", func(seen *agreement.Seen, _ string) bool { return seen.Leader == "lb-1" && seen.Maps["web"].Map != nil })
}
