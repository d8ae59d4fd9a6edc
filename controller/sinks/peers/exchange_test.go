package peers

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/outside"
	"github.com/guideway/guideway/controller/sinks/session"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

var (
	hereAt  = netip.MustParseAddrPort("127.0.9.1:9477")
	thereAt = netip.MustParseAddrPort("127.0.9.2:9477")
)

// pair is this machine's exchange and what its peer sends it, without sockets between them.
type pair struct {
	t    *testing.T
	here *Exchange
	told [][]*fleetv1.DrainChange
	peer *session.Sender
}

// configOf lb-1 of two.
func configOf(t testing.TB, secret string) *config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cluster.key")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	return &config.Config{
		Cluster: config.Cluster{Name: "c1", SecretFile: file, KeyID: config.KeyID([]byte(secret))},
		Machine: config.Machine{Name: "lb-1", Addresses: []netip.Addr{hereAt.Addr()}},
		Peers:   []config.Peer{{Name: "lb-2", Addresses: []netip.Addr{thereAt.Addr()}}},
	}
}

const secretText = "an example key, known to everybody"

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{t: t}
	e := New(slog.New(slog.DiscardHandler), nil, func(drains []*fleetv1.DrainChange) { p.told = append(p.told, drains) })
	e.Set(configOf(t, secretText))
	t.Cleanup(e.Stop)
	if e.problem != "" {
		t.Fatal(e.problem)
	}
	p.here = e
	p.restartPeer()
	return p
}

func (p *pair) restartPeer() {
	secret := []byte(secretText)
	p.peer = session.NewSender(session.KindPeerState, "lb-2", session.KeyIDOf(config.KeyID(secret)), keyOf(secret, "lb-2", "lb-1"))
}

// send a status; the peer takes the answers.
func (p *pair) send(status *fleetv1.PeerStatus) (datagrams [][]byte) {
	body, err := proto.Marshal(status)
	if err != nil {
		p.t.Fatal(err)
	}
	datagrams = p.peer.State(body)
	p.deliver(datagrams)
	return datagrams
}

func (p *pair) deliver(datagrams [][]byte) {
	for _, datagram := range datagrams {
		for _, answer := range p.here.receive(hereAt, datagram, thereAt) {
			if d, ok := session.Parse(answer); ok {
				p.peer.Answered(d)
			}
		}
	}
}

func statusOf(reason string) *fleetv1.PeerStatus {
	return &fleetv1.PeerStatus{Machine: &fleetv1.Machine{Name: "lb-9", State: "serving", Reason: reason}}
}

// seen of the peer; nil: it is absent.
func (p *pair) seen(now time.Time) *fleetv1.Machine {
	p.t.Helper()
	machines, err := p.here.machines(now)
	if err != nil || len(machines) > 1 {
		p.t.Fatalf("%v: %v", machines, err)
	}
	if len(machines) == 0 {
		return nil
	}
	return machines[0]
}

func (p *pair) greeted() *pair {
	p.send(statusOf("first"))
	p.send(statusOf("second"))
	if m := p.seen(time.Now()); m.GetReason() != "second" {
		p.t.Fatalf("seen %v, results %v", m, p.here.Results())
	}
	return p
}

func TestAPeerIsWhoItsKeySaysAndAbsentWhenSilent(t *testing.T) {
	p := newPair(t).greeted()
	if m := p.seen(time.Now()); m.Name != "lb-2" {
		t.Errorf("it calls itself %s", m.Name)
	}
	if m := p.seen(time.Now().Add(SilentMax + time.Second)); m != nil {
		t.Errorf("after its silence: %v", m)
	}
	p.here.Set(&config.Config{Machine: config.Machine{Name: "lb-1"}, Cluster: config.Cluster{KeyID: config.KeyDerived}})
	if m := p.seen(time.Now()); m != nil {
		t.Errorf("no longer in the config: %v", m)
	}
}

func TestRecordedStatusesCountForNothing(t *testing.T) {
	p := newPair(t).greeted()
	recorded := p.send(statusOf("recorded"))
	p.send(statusOf("latest"))
	p.deliver(recorded)
	if m := p.seen(time.Now()); m.Reason != "latest" {
		t.Errorf("replayed: %v", m)
	}
	p.restartPeer()
	p.send(statusOf("challenged"))
	p.send(statusOf("anew"))
	p.deliver(recorded)
	if m := p.seen(time.Now()); m.Reason != "anew" {
		t.Errorf("replayed after the peer's restart: %v", m)
	}
	// One that this machine sent does not come back as its peer's.
	body, _ := proto.Marshal(statusOf("reflected"))
	for _, sender := range p.here.senders {
		p.deliver(sender.State(body))
	}
	if m := p.seen(time.Now()); m.Reason != "anew" {
		t.Errorf("reflected: %v", m)
	}
}

func TestForgedStatusesCountForNothing(t *testing.T) {
	p := newPair(t).greeted()
	for name, forged := range map[string]*session.Sender{
		"of an agent's key": session.NewSender(session.KindPeerState, "lb-2", session.KeyIDOf(config.KeyID([]byte(secretText))), session.Key{1}),
		"of another secret": session.NewSender(session.KindPeerState, "lb-2", session.KeyIDOf(config.KeyID([]byte("another"))), keyOf([]byte("another"), "lb-2", "lb-1")),
		"of no peer":        session.NewSender(session.KindPeerState, "lb-3", session.KeyIDOf(config.KeyID([]byte(secretText))), keyOf([]byte(secretText), "lb-3", "lb-1")),
		"to another peer":   session.NewSender(session.KindPeerState, "lb-2", session.KeyIDOf(config.KeyID([]byte(secretText))), keyOf([]byte(secretText), "lb-2", "lb-3")),
		"of an agent":       session.NewSender(session.KindState, "lb-2", session.KeyIDOf(config.KeyID([]byte(secretText))), keyOf([]byte(secretText), "lb-2", "lb-1")),
	} {
		body, _ := proto.Marshal(statusOf(name))
		for range 2 {
			for _, datagram := range forged.State(body) {
				if answers := p.here.receive(hereAt, datagram, thereAt); len(answers) > 0 {
					t.Errorf("answered: %s", name)
				}
			}
		}
	}
	body, _ := proto.Marshal(statusOf("from elsewhere"))
	if answers := p.here.receive(hereAt, p.peer.State(body)[0], netip.MustParseAddrPort("127.0.9.3:9477")); len(answers) > 0 {
		t.Error("answered: from elsewhere")
	}
	if m := p.seen(time.Now()); m.Reason != "second" {
		t.Errorf("seen %v", m)
	}
	r := p.here.Results()
	if r[session.ResultForged] != 4 || r[session.ResultOtherKey] != 2 || r[session.ResultUnknownSender] != 3 || r[session.ResultMalformed] != 2 {
		t.Errorf("results %v", r)
	}
}

func TestDrainsAreHandedOnOnlyFromWhatIsTaken(t *testing.T) {
	p := newPair(t)
	status := statusOf("drains")
	status.Drains = []*fleetv1.DrainChange{{Kind: "backend", Name: "web-1", Drained: true}}
	recorded := p.send(status)
	if len(p.told) > 0 {
		t.Errorf("told before the session began: %v", p.told)
	}
	recorded = append(recorded, p.send(status)...)
	p.deliver(recorded)
	if len(p.told) != 1 || !proto.Equal(p.told[0][0], status.Drains[0]) {
		t.Errorf("told %v", p.told)
	}
}

// A peer that was taken over, or has a defect, costs memory within limits and shows no
// text that commands a terminal.
func TestWhatAPeerSaysIsBounded(t *testing.T) {
	p := newPair(t).greeted()
	huge := statusOf(strings.Repeat("x", 50_000) + "\x1b[2J")
	huge.Machine.State = "serving\x1b[2J"
	huge.Machine.Backends, huge.Machine.PacketsPerSecond = 1<<32-1, 1<<64-1
	for range 5000 {
		huge.Machine.BackendsDown = append(huge.Machine.BackendsDown, "web-1")
		huge.Machine.DrainedBackends = append(huge.Machine.DrainedBackends, "web-1")
		huge.Machine.DrainedServices = append(huge.Machine.DrainedServices, "web")
		huge.Machine.Addresses = append(huge.Machine.Addresses, "10.0.0.1")
	}
	p.send(huge)
	m := p.seen(time.Now())
	if m.State != `serving\x1b[2J` || len(m.Reason) > 400 || len(m.BackendsDown) != downMax || len(m.Addresses) != addressesMax {
		t.Errorf("%q, a reason of %d bytes, %d backends, %d addresses", m.State, len(m.Reason), len(m.BackendsDown), len(m.Addresses))
	}
	if len(m.DrainedBackends) != DrainsMax || len(m.DrainedServices) != DrainsMax {
		t.Errorf("%d backends and %d services are drained", len(m.DrainedBackends), len(m.DrainedServices))
	}
	p.deliver(p.peer.State([]byte{15 << 3, 1})) // a field of a later version, and no machine
	p.deliver(p.peer.State([]byte("no status")))
	if r := p.here.Results(); r[session.ResultMalformed] != 2 {
		t.Errorf("results %v", r)
	}
	if p.seen(time.Now()) == nil {
		t.Error("what is malformed took the place of what was not")
	}
}

func TestAFloodOfForgedDatagramsIsLimited(t *testing.T) {
	p := newPair(t).greeted()
	forged := session.NewSender(session.KindPeerState, "lb-2", session.KeyIDOf(config.KeyID([]byte(secretText))), session.Key{1})
	for range 20_000 {
		p.deliver(forged.State([]byte("x")))
	}
	if r := p.here.Results(); r[session.ResultRateLimited] == 0 || r[session.ResultForged]+r[session.ResultRateLimited] != 20_000 {
		t.Errorf("results %v", r)
	}
}

func TestWithoutASecretOrWithEtcdNothingIsExchanged(t *testing.T) {
	e := New(slog.New(slog.DiscardHandler), nil, nil)
	defer e.Stop()
	c := configOf(t, secretText)
	e.Set(c)
	derived := *c
	derived.Cluster = config.Cluster{Name: "c1", KeyID: config.KeyDerived}
	e.Set(&derived)
	if _, err := e.Machines(t.Context()); err == nil || !strings.Contains(err.Error(), "write `cluster: {secret_file: ") || e.hasPeers() || len(e.receivers) > 0 {
		t.Errorf("without a secret: %v", err)
	}
	other := *c
	other.Cluster.KeyID = config.KeyID([]byte("as it was before"))
	e.Set(&other)
	if _, err := e.Machines(t.Context()); err == nil || !strings.Contains(err.Error(), "reload the config") {
		t.Errorf("with a secret that has changed: %v", err)
	}
	e.Set(c)
	shared := *c
	shared.Etcd = &config.Etcd{}
	e.Set(&shared)
	if _, err := e.Machines(t.Context()); err != nil || e.hasPeers() {
		t.Errorf("with etcd: %v", err)
	}
}

// FuzzPeerStatus: any bytes, also signed ones, neither stop the exchange nor make it hear of
// a machine that is no peer, or of one beyond the limits.
func FuzzPeerStatus(f *testing.F) {
	status := statusOf("seed")
	status.Drains = []*fleetv1.DrainChange{{Kind: "backend", Name: "web-1", Drained: true}}
	body, err := proto.Marshal(status)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("GWAG"), body)
	c := configOf(f, secretText)
	f.Fuzz(func(t *testing.T, raw, body []byte) {
		if len(body) == 0 || len(body) > session.PartsMax*session.BodyBytesMax("lb-2") {
			return
		}
		p := &pair{t: t, here: New(slog.New(slog.DiscardHandler), nil, func([]*fleetv1.DrainChange) {})}
		p.here.adopt(c, c.Peers, []byte(secretText))
		p.restartPeer()
		p.deliver([][]byte{raw})
		p.deliver(p.peer.State(body))
		p.deliver(p.peer.State(body))
		if m := p.seen(time.Now()); m != nil && (m.Name != "lb-2" || len(m.Addresses) > addressesMax || len(m.BackendsDown) > downMax || len(m.Reason) > 2*outside.TextBytesMax) {
			t.Fatalf("seen %v", m)
		}
	})
}
