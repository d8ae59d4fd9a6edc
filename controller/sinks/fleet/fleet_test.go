package fleet

// With etcd's own server.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/etcdtest"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

func storeAt(t *testing.T, server *etcdtest.Server) *Store {
	t.Helper()
	return newStore(t, config.Etcd{Cluster: "c1", Endpoints: []string{server.URL()}})
}

func newStore(t *testing.T, settings config.Etcd) *Store {
	t.Helper()
	s := NewStore(settings)
	t.Cleanup(s.Close)
	return s
}

func see(t *testing.T, s *Store) Seen {
	t.Helper()
	seen, err := s.See(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

// publish text after what is current now.
func publish(t *testing.T, s *Store, text string) *Config {
	t.Helper()
	stored, err := s.Publish(t.Context(), see(t, s), 0, &fleetv1.ConfigRecord{Machine: "lb-1", User: "alice", Message: "why"}, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

func TestAConfigIsStoredAsDocumented(t *testing.T) {
	server := etcdtest.Start(t)
	s := storeAt(t, server)
	if seen := see(t, s); seen.Current != nil {
		t.Fatalf("an empty etcd has %v", seen.Current)
	}
	text := incompressible(3 << 20)
	publish(t, s, string(text))
	keys := strings.Fields(server.Ctl("get", "--prefix", "/guideway/", "--keys-only"))
	slices.Sort(keys)
	if want := []string{
		"/guideway/c1/config/1/0", "/guideway/c1/config/1/1", "/guideway/c1/config/1/2", "/guideway/c1/config/1/3",
		"/guideway/c1/config/1/record", "/guideway/c1/current",
	}; !slices.Equal(keys, want) {
		t.Errorf("keys %v", keys)
	}
	current := server.Ctl("get", "--print-value-only", "/guideway/c1/current")
	if !strings.Contains(strings.ReplaceAll(current, " ", ""), `"generation":"1"`) || !strings.Contains(current, digestOf(text)) {
		t.Errorf("current is %s", current)
	}
	seen := see(t, s)
	fetched, err := s.Fetch(t.Context(), seen.Current)
	if err != nil || !bytes.Equal(fetched.Text, text) {
		t.Errorf("fetched %d bytes: %v", len(fetched.Text), err)
	}
	record, err := s.Record(t.Context(), 1)
	if err != nil || record.User != "alice" || record.Bytes != uint64(len(text)) || record.Parts != 4 || record.Time.AsTime().IsZero() {
		t.Errorf("record %v: %v", record, err)
	}
}

func TestOfTwoWhoApplyAtOnceOneIsRefused(t *testing.T) {
	s := storeAt(t, etcdtest.Start(t))
	publish(t, s, "first")
	seen := see(t, s)
	var done, refused int
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			text := append([]byte(fmt.Sprintf("config %d ", i)), incompressible(2<<20)...)
			_, err := s.Publish(t.Context(), seen, 0, &fleetv1.ConfigRecord{}, text)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				done++
			case errors.Is(err, ErrChanged):
				refused++
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if done != 1 || refused != 7 {
		t.Errorf("%d were stored, %d refused", done, refused)
	}
	now := see(t, s)
	if config, err := s.Fetch(t.Context(), now.Current); err != nil || !bytes.HasPrefix(config.Text, []byte("config ")) {
		t.Errorf("what became current: %v", err)
	}
	// What the refused ones have stored goes when a later config becomes current.
	latest := publish(t, s, "second")
	if err := s.ForgetOldest(t.Context()); err != nil {
		t.Fatal(err)
	}
	records, err := s.Records(t.Context())
	if err != nil || len(records) != 3 || records[0].Generation != latest.Generation {
		t.Errorf("records %v: %v", records, err)
	}
	for generation, recorded := range mustGenerations(t, s) {
		if !recorded && generation < latest.Generation {
			t.Errorf("generation %d never became current and is still there", generation)
		}
	}
}

func mustGenerations(t *testing.T, s *Store) map[uint64]bool {
	t.Helper()
	generations, err := s.generations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return generations
}

func TestTheLastFiftyAreKept(t *testing.T) {
	s := storeAt(t, etcdtest.Start(t))
	for i := range 53 {
		publish(t, s, fmt.Sprint("config ", i))
	}
	if err := s.ForgetOldest(t.Context()); err != nil {
		t.Fatal(err)
	}
	records, err := s.Records(t.Context())
	if err != nil || len(records) != 50 || records[0].Generation != 53 || records[49].Generation != 4 {
		t.Errorf("%d records: %v", len(records), err)
	}
	if _, err := s.Record(t.Context(), 3); !errors.Is(err, ErrUnknown) {
		t.Errorf("the oldest: %v", err)
	}
}

// takeEach config, of a machine that checks none.
func takeEach(take func(*Config)) Events {
	return Events{Machine: func() string { return "lb-1" }, Take: take, Check: func(*fleetv1.Candidate, int64) {}, Tell: func(string, string, string) {}}
}

// following returns what a follower hands on.
func following(t *testing.T, s *Store, interval time.Duration) (*Follower, chan *Config) {
	t.Helper()
	taken := make(chan *Config, 100)
	f := NewFollower(s, slog.New(slog.DiscardHandler), nil, takeEach(func(c *Config) { taken <- c }))
	f.interval = interval
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return f, taken
}

// How long a busy machine may take.
const timeout = 20 * time.Second

func expect(t *testing.T, taken chan *Config, text string) time.Duration {
	t.Helper()
	began := time.Now()
	select {
	case c := <-taken:
		if string(c.Text) != text {
			t.Fatalf("taken is %.40q, not %.40q", c.Text, text)
		}
	case <-time.After(timeout):
		t.Fatalf("%.40q is not taken after %v", text, timeout)
	}
	return time.Since(began)
}

func TestAFollowerTakesWhatIsStored(t *testing.T) {
	server := etcdtest.Start(t)
	s := storeAt(t, server)
	publish(t, s, "first")
	f, taken := following(t, s, time.Hour) // so the watch alone does it
	expect(t, taken, "first")
	publish(t, s, "second")
	expect(t, taken, "second")
	// Away and back, with nothing new.
	if status := f.Status(); status.Away != "" || status.Current.GetGeneration() != 2 || status.Restored != 0 {
		t.Errorf("status %+v", status)
	}
}

func TestAFollowerCatchesUpAfterEtcdWasAway(t *testing.T) {
	server := etcdtest.Start(t)
	s := storeAt(t, server)
	_, taken := following(t, s, 500*time.Millisecond)
	publish(t, s, "first")
	expect(t, taken, "first")
	server.Kill()
	_, err := s.See(t.Context())
	if err == nil || !strings.Contains(err.Error(), "etcd does not answer") || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("of an etcd that was killed: %v", err)
	}
	server.Run()
	publish(t, s, "second")
	expect(t, taken, "second")
	if len(taken) > 0 {
		t.Errorf("%q is taken again", (<-taken).Text)
	}
}

func TestARequestWhoseConnectionAnotherClosedSaysWhyEtcdIsAway(t *testing.T) {
	server := etcdtest.Start(t)
	s := storeAt(t, server)
	publish(t, s, "first")
	server.Kill()
	time.AfterFunc(100*time.Millisecond, s.Close)
	_, err := s.See(t.Context())
	if err == nil || !strings.Contains(err.Error(), "etcd does not answer") || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v", err)
	}
}

func TestPeopleAreToldOnceWhatBecomesOfEtcd(t *testing.T) {
	server := etcdtest.Start(t)
	s := storeAt(t, server)
	var told []string
	events := takeEach(func(*Config) {})
	events.Tell = func(from, to, cause string) { told = append(told, fmt.Sprintf("%s > %s (%s)", from, to, cause)) }
	f := NewFollower(s, slog.New(slog.DiscardHandler), nil, events)
	f.failed(errors.New("for a moment"))
	f.started = f.started.Add(-awayAfter)
	for range 3 {
		f.failed(errors.New("connection refused"))
	}
	publish(t, s, "first")
	for range 3 {
		f.take(t.Context(), see(t, s))
	}
	server.Ctl("put", "/guideway/c1/config/2/0", "no zstd")
	server.Ctl("put", "/guideway/c1/current", `{"generation": 2, "digest": "none", "parts": 1}`)
	for range 3 {
		f.take(t.Context(), see(t, s))
	}
	f.seen.revision += 1000 // more than the one that is read now
	f.take(t.Context(), see(t, s))
	for _, alarms := range [][]string{{"NOSPACE"}, {"NOSPACE"}, {"NOSPACE", "CORRUPT"}, nil} {
		f.answered(nil, nil, alarms)
		f.unusable(nil)
	}
	want := []string{
		"answers > lost (the running configuration stays in use: connection refused)", "lost > answers (it has no alarm",
		"answers > unusable (the config in it cannot be read, the one that runs goes on: config 2 in etcd is damaged", "unusable > restored (it is another cluster than before, or was restored",
		"restored > unusable (", "unusable > alarmed (NOSPACE)", "alarmed > alarmed (NOSPACE, CORRUPT)", "alarmed > answers (it has",
	}
	if !slices.EqualFunc(told, want, strings.HasPrefix) {
		t.Errorf("told:\n%s", strings.Join(told, "\n"))
	}
}

func TestAFollowerCatchesUpBehindACompaction(t *testing.T) {
	server := etcdtest.Start(t)
	s := storeAt(t, server)
	publish(t, s, "first")
	f := NewFollower(s, slog.New(slog.DiscardHandler), nil, takeEach(nil))
	seen := see(t, s)
	for i := range 5 {
		publish(t, s, fmt.Sprint("config ", i))
	}
	server.Ctl("compact", "--physical", fmt.Sprint(see(t, s).revision))
	// A watch from before the compaction is one that was cut off meanwhile.
	f.watchFrom(t.Context(), seen)
	select {
	case news := <-f.watch:
		if news.CompactRevision == 0 {
			t.Fatalf("etcd reports no compaction: %+v", news)
		}
	case <-time.After(timeout):
		t.Fatal("the watch reports nothing")
	}
	taken := make(chan *Config, 10)
	f.events, f.interval = takeEach(func(c *Config) { taken <- c }), time.Hour
	f.endWatch()
	f.watchFrom(t.Context(), seen)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); f.wait(ctx); f.Run(ctx) }()
	expect(t, taken, "config 4")
	publish(t, s, "after it")
	expect(t, taken, "after it")
	cancel()
	<-ended
}

func TestAFollowerNoticesARestoredSnapshot(t *testing.T) {
	server := etcdtest.Start(t)
	s := storeAt(t, server)
	publish(t, s, "first")
	f, taken := following(t, s, 500*time.Millisecond)
	expect(t, taken, "first")
	snapshot := server.Snapshot()
	publish(t, s, "second")
	expect(t, taken, "second")
	server.Restore(snapshot)
	if c := expectAny(t, taken); string(c.Text) != "first" || c.Generation != 1 {
		t.Errorf("taken is generation %d", c.Generation)
	}
	if f.Status().Restored == 0 {
		t.Error("that etcd was restored is not noticed")
	}
	// Above what ran before: every machine takes it.
	stored, err := s.Publish(t.Context(), see(t, s), 2, &fleetv1.ConfigRecord{}, []byte("third"))
	if err != nil || stored.Generation != 3 {
		t.Errorf("generation %d: %v", stored.GetGeneration(), err)
	}
	expect(t, taken, "third")
}

func expectAny(t *testing.T, taken chan *Config) *Config {
	t.Helper()
	select {
	case c := <-taken:
		return c
	case <-time.After(timeout):
		t.Fatalf("nothing is taken after %v", timeout)
		return nil
	}
}

func TestADamagedConfigIsNotTakenAndSaidSo(t *testing.T) {
	server := etcdtest.Start(t)
	s := storeAt(t, server)
	publish(t, s, "first")
	f, taken := following(t, s, 200*time.Millisecond)
	expect(t, taken, "first")
	says := func(what string) {
		t.Helper()
		for deadline := time.Now().Add(timeout); !strings.Contains(f.Status().Unusable, what); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("it never says %q, but %+v", what, f.Status())
			}
		}
	}
	// As a writer that keeps no rule would leave it.
	server.Ctl("put", "/guideway/c1/current", `{"generation": 2, "digest": "none", "parts": 1}`)
	says("/guideway/c1/config/2/0")
	server.Ctl("put", "/guideway/c1/config/2/0", "no zstd")
	says("config 2 in etcd is damaged")
	server.Ctl("put", "/guideway/c1/current", `{"generation": 2, "digest": "none", "parts": 4000000}`)
	says("has 4000000 parts")
	if status := f.Status(); status.Away != "" || len(taken) > 0 {
		t.Errorf("status %+v, taken %d", status, len(taken))
	}
	publish(t, s, "third")
	expect(t, taken, "third")
	if status := f.Status(); status.Unusable != "" || status.Current.GetGeneration() != 3 {
		t.Errorf("status %+v", status)
	}
}

func TestAFullEtcdIsReadAndSaysSo(t *testing.T) {
	server := etcdtest.Start(t, "--quota-backend-bytes", fmt.Sprint(16<<20))
	s := storeAt(t, server)
	publish(t, s, "first")
	f, taken := following(t, s, 200*time.Millisecond)
	expect(t, taken, "first")
	filler := filepath.Join(t.TempDir(), "filler")
	if err := os.WriteFile(filler, incompressible(1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	for range 64 {
		if _, err = s.Publish(t.Context(), see(t, s), 0, &fleetv1.ConfigRecord{}, incompressible(2<<20)); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "etcd is full") || !strings.Contains(err.Error(), "alarm disarm") {
		t.Fatalf("a full etcd says %v", err)
	}
	for deadline := time.Now().Add(timeout); len(f.Status().Alarms) == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no alarm is seen")
		}
	}
	if alarms := f.Status().Alarms; !strings.Contains(alarms[0], "NOSPACE") {
		t.Errorf("alarms %v", alarms)
	}
	if seen := see(t, s); seen.Current == nil {
		t.Error("it is not read any more")
	}
}

func TestRightsAreEtcds(t *testing.T) {
	ca := etcdtest.NewAuthority(t)
	server := etcdtest.StartTLS(t, ca)
	for _, command := range [][]string{
		{"user", "add", "root:rootpw"}, {"user", "grant-role", "root", "root"},
		{"role", "add", "guideway-read"}, {"role", "grant-permission", "guideway-read", "read", "--prefix=true", "/guideway/c1/"},
		{"role", "add", "guideway-apply"}, {"role", "grant-permission", "guideway-apply", "readwrite", "--prefix=true", "/guideway/c1/config/"},
		{"role", "grant-permission", "guideway-apply", "readwrite", "/guideway/c1/current"},
		{"user", "add", "lb-1:secret-1"}, {"user", "grant-role", "lb-1", "guideway-read"}, {"user", "grant-role", "lb-1", "guideway-apply"},
		{"user", "add", "lb-2", "--no-password"}, {"user", "grant-role", "lb-2", "guideway-read"},
		{"role", "add", "guideway-lb-2"}, {"role", "grant-permission", "guideway-lb-2", "readwrite", "/guideway/c1/machines/lb-2"},
		{"user", "grant-role", "lb-2", "guideway-lb-2"},
		{"auth", "enable"},
	} {
		server.Ctl(command...)
	}
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key := ca.Issue(t, "lb-2")
	anyCert, anyKey := ca.Issue(t, "unknown")
	settings := config.Etcd{Cluster: "c1", Endpoints: []string{server.URL()}, CAFile: ca.File, CertFile: anyCert, KeyFile: anyKey, User: "lb-1", PasswordFile: password}
	writer := newStore(t, settings)
	publish(t, writer, "first")

	byCertificate := settings
	byCertificate.User, byCertificate.PasswordFile, byCertificate.CertFile, byCertificate.KeyFile = "", "", cert, key
	reader := newStore(t, byCertificate)
	_, taken := following(t, reader, time.Hour)
	expect(t, taken, "first")
	publish(t, writer, "second")
	expect(t, taken, "second")
	_, err := reader.Publish(t.Context(), see(t, reader), 0, &fleetv1.ConfigRecord{}, []byte("third"))
	if err == nil || !strings.Contains(err.Error(), "etcd denies the certificate in "+cert) {
		t.Errorf("a reader stores: %v", err)
	}

	// Each writes its own key alone.
	if err := registerOnce(t, reader, machineNamed("lb-2")); err != nil {
		t.Errorf("its own key: %v", err)
	}
	for name, store := range map[string]*Store{"lb-1": reader, "lb-1 itself, without a role for its key": writer} {
		if err := registerOnce(t, store, machineNamed("lb-1")); err == nil || !strings.Contains(err.Error(), "etcd denies") {
			t.Errorf("the key of %s: %v", name, err)
		}
	}

	for says, change := range map[string]func(*config.Etcd){
		"refuses user lb-1":  func(s *config.Etcd) { s.PasswordFile = writeFile(t, "wrong") },
		"unknown authority":  func(s *config.Etcd) { s.CAFile = etcdtest.NewAuthority(t).File },
		"no certificate in ": func(s *config.Etcd) { s.CAFile = writeFile(t, "no PEM") },
		"no such file":       func(s *config.Etcd) { s.PasswordFile = "/nonexistent" },
	} {
		bad := settings
		change(&bad)
		if _, err := newStore(t, bad).See(t.Context()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
