package agents

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/session"
	agentv1 "github.com/guideway/guideway/proto/guideway/agent/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
	"google.golang.org/protobuf/proto"
)

const secretText = "an example key, known to everybody"

// two services, of which one counts.
func exampleServices() *agentv1.Services {
	vip := []*planv1.Vip{{Target: &planv1.Vip_Address{Address: "203.0.113.10"}}}
	return &agentv1.Services{Services: []*agentv1.Service{{Name: "mail", Vips: vip}, {Name: "web", Vips: vip, Buckets: 256}}}
}

// pair is a receiver and the agent that sends to it.
type pair struct {
	t        *testing.T
	receiver *receiver
	counted  map[session.Result]int
	keys     Keys
	now      time.Time

	boot     uint64
	nonce    session.Nonce
	sequence uint64
	services uint64
	// nil: a former version's.
	standing *agentv1.Standing
	accepts  []byte // in the last part
}

func newPair(t *testing.T) *pair {
	secret, err := NewSecret([]byte(secretText))
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{t: t, counted: map[session.Result]int{}, keys: secret.Keys("web-1"), now: time.Unix(1_800_000_000, 0), boot: 1}
	p.receiver = newReceiver(func(r session.Result) { p.counted[r]++ })
	p.receiver.set(secret, map[string]*servicesOf{"web-1": newServicesOf("web-1", exampleServices()), "web-2": newServicesOf("web-2", exampleServices())})
	return p
}

// state of the agent, each part with these counts.
func (p *pair) state(parts ...[]*agentv1.ServiceSockets) (datagrams [][]byte) {
	p.sequence++
	for i, counts := range parts {
		part := &agentv1.StatePart{Services: p.services, Counts: counts}
		if i == 0 {
			part.Standing = p.standing
		}
		if i == len(parts)-1 {
			part.Accepts = p.accepts
		}
		body, err := proto.Marshal(part)
		if err != nil {
			p.t.Fatal(err)
		}
		h := session.Header{Kind: session.KindState, Part: uint8(i), Parts: uint8(len(parts)), Boot: p.boot, Nonce: p.nonce, Sequence: p.sequence, KeyID: session.KeyIDOf(p.keys.KeyID), Name: p.keys.Agent}
		datagrams = append(datagrams, h.Emit(p.keys.Message, body))
	}
	return datagrams
}

// send datagrams; the agent takes the answers in.
func (p *pair) send(datagrams ...[]byte) (states []State) {
	for _, d := range datagrams {
		p.now = p.now.Add(10 * time.Millisecond)
		answers, state := p.receiver.receive(bytes.Clone(d), p.now)
		if state != nil {
			states = append(states, *state)
		}
		for _, bytes := range answers {
			answer, ok := session.Parse(bytes)
			if !ok || answer.Kind != session.KindAnswer || !answer.Authentic(p.keys.Message) {
				p.t.Fatalf("answer %+v", answer)
			}
			var part agentv1.AnswerPart
			if err := proto.Unmarshal(answer.Body, &part); err != nil {
				p.t.Fatal(err)
			}
			p.nonce = answer.Nonce
			if len(part.Piece) > 0 {
				p.services = part.Services
			}
		}
	}
	return states
}

// greeted: past the challenge, with services.
func greeted(t *testing.T) *pair {
	p := newPair(t)
	p.send(p.state(nil)...)
	p.send(p.state(nil)...)
	if p.counted[session.ResultChallenged] != 1 || p.counted[session.ResultAccepted] != 1 || p.services == 0 || p.nonce == (session.Nonce{}) {
		t.Fatalf("counted %v, services %x", p.counted, p.services)
	}
	p.counted = map[session.Result]int{}
	return p
}

func (p *pair) expect(want map[session.Result]int) {
	p.t.Helper()
	if !maps.Equal(p.counted, want) {
		p.t.Errorf("counted %v, want %v", p.counted, want)
	}
}

func web(buckets, sockets []uint32) []*agentv1.ServiceSockets {
	return []*agentv1.ServiceSockets{{Service: 1, Buckets: buckets, Sockets: sockets}}
}

func TestAStateComesWithItsCounts(t *testing.T) {
	p := greeted(t)
	states := p.send(p.state(web([]uint32{0, 5, 250}, []uint32{1, 2, 3}), web([]uint32{5}, []uint32{10}))...)
	if len(states) != 1 || states[0].Agent != "web-1" || states[0].Boot != 1 || states[0].Received != p.now {
		t.Fatalf("states %+v", states)
	}
	want := map[uint32]uint32{0: 1, 5: 12, 255: 3}
	if counts := states[0].Counts; len(counts) != 1 || !maps.Equal(counts["web"], want) {
		t.Errorf("counts %v, want web: %v", counts, want)
	}
	p.expect(map[session.Result]int{session.ResultPart: 1, session.ResultAccepted: 1})
}

func TestAStateSaysWhatItsAgentCanDo(t *testing.T) {
	p := greeted(t)
	former := p.send(p.state(nil)...)[0]
	if former.Serves || former.Accepts != nil || former.Counts["web"] == nil || former.Counted != former.Received {
		t.Errorf("a former version's: %+v", former)
	}
	other := config.AgentAddressOf(netip.MustParseAddr("10.1.0.12"))
	p.standing, p.accepts = &agentv1.Standing{Serves: true, Own: other[:], VipsLacking: 2, Answers: &agentv1.Answers{Measured: 7}}, other[:]
	spoke := p.send(p.state(nil, nil)...)[0]
	if !spoke.Serves || spoke.VIPsLacking != 2 || spoke.Answers.GetMeasured() != 7 || !spoke.Own[other] || len(spoke.Accepts) != 1 || !spoke.Accepts[other] || spoke.Counts != nil || !spoke.Counted.IsZero() {
		t.Errorf("uncounted: %+v", spoke)
	}
	p.standing.CountedMsAgo = proto.Uint32(700)
	counted := p.send(p.state(web([]uint32{7}, []uint32{1}))...)[0]
	if counted.Counts["web"][7] != 1 || counted.Counted != counted.Received.Add(-700*time.Millisecond) {
		t.Errorf("counted: %+v", counted)
	}
	p.accepts = p.accepts[:3]
	if states := p.send(p.state(nil)...); len(states) > 0 || p.counted[session.ResultMalformed] != 1 {
		t.Errorf("a part of an address was taken: %+v", states)
	}
}

func TestAServiceWithoutSocketsIsCountedAndOneLeftOutIsNot(t *testing.T) {
	p := greeted(t)
	if states := p.send(p.state(nil)...); len(states) != 1 || states[0].Counts["web"] == nil {
		t.Errorf("without sockets: %+v", states)
	}
	uncounted := []*agentv1.ServiceSockets{{Service: 1, Uncounted: true}}
	if states := p.send(p.state(web([]uint32{7}, []uint32{1}), uncounted)...); len(states) != 1 || states[0].Counts["web"] != nil {
		t.Errorf("left out: %+v", states)
	}
	p.services++ // as of a config before
	if states := p.send(p.state(web([]uint32{7}, []uint32{1}))...); len(states) != 1 || len(states[0].Counts) != 0 {
		t.Errorf("of another config: %+v", states)
	}
	if p.services != p.receiver.services["web-1"].digest {
		t.Error("the answer did not bring the present services")
	}
}

func TestForgedDatagramsCountForNothing(t *testing.T) {
	p := greeted(t)
	state := p.state(web([]uint32{1}, []uint32{1}))[0]
	for at := range state {
		forged := bytes.Clone(state)
		forged[at] ^= 1
		if states := p.send(forged); len(states) > 0 {
			t.Fatalf("byte %d changed: %+v", at, states)
		}
	}
	if p.counted[session.ResultForged] == 0 || p.counted[session.ResultAccepted]+p.counted[session.ResultPart] > 0 {
		t.Errorf("counted %v", p.counted)
	}
	if states := p.send(state); len(states) != 1 {
		t.Error("the true one is not taken after them")
	}
}

func TestAnAgentCannotSpeakForAnother(t *testing.T) {
	p := greeted(t)
	p.keys.Agent = "web-2" // with the key of web-1
	if states := p.send(p.state(nil)...); len(states) > 0 {
		t.Fatalf("states %+v", states)
	}
	p.keys.Agent = "web-3"
	p.send(p.state(nil)...)
	p.keys.Agent, p.keys.KeyID = "web-1", "0000000000000000"
	p.send(p.state(nil)...)
	p.expect(map[session.Result]int{session.ResultForged: 1, session.ResultUnknownSender: 1, session.ResultOtherKey: 1})
}

// An agent with an old key file is named, but not more often than every few seconds, and nobody
// else is.
func TestItIsHandedOnWhoseDatagramsAreRefused(t *testing.T) {
	p := newPair(t)
	at := netip.MustParseAddrPort("127.0.0.1:0")
	l := New(slog.New(slog.DiscardHandler), nil)
	t.Cleanup(l.Stop)
	secret, err := NewSecret([]byte(secretText))
	if err != nil {
		t.Fatal(err)
	}
	l.secret, l.services = secret, p.receiver.services
	l.listen([]netip.AddrPort{at})
	var found []State
	for range 3 {
		for _, keys := range []Keys{{Agent: "web-1", KeyID: "0000000000000000"}, {Agent: "web-2", KeyID: secret.ID()}, {Agent: "web-9", KeyID: "0000000000000000"}} {
			p.keys = keys
			for _, datagram := range p.state(nil) {
				if _, state := l.take(at, datagram); state != nil {
					found = append(found, *state)
				}
			}
		}
	}
	want := []State{{Agent: "web-1", Refused: "its key file is of another secret than this machine's"}, {Agent: "web-2", Refused: "they are not authentic"}}
	if !reflect.DeepEqual(found, want) {
		t.Errorf("%+v", found)
	}
}

func TestReplayedStatesAreRefused(t *testing.T) {
	p := greeted(t)
	hello := p.state(nil)
	first, second := p.state(web([]uint32{1}, []uint32{1})), p.state(nil)
	recorded := slices.Concat(hello, first, second)
	if states := p.send(recorded...); len(states) != 3 {
		t.Fatalf("%d states", len(states))
	}
	p.counted = map[session.Result]int{}
	p.send(recorded...)
	p.expect(map[session.Result]int{session.ResultReplayed: 3})

	// The agent starts anew; what it sent before is of no use, though its sequence
	// numbers are higher.
	p.counted = map[session.Result]int{}
	p.boot, p.sequence = 2, 0
	p.send(p.state(nil)...)
	if states := p.send(p.state(nil)...); len(states) != 1 || states[0].Boot != 2 {
		t.Fatalf("after its start: %+v", states)
	}
	nonce := p.nonce
	if states := p.send(recorded...); len(states) > 0 {
		t.Fatalf("of the agent's former life: %+v", states)
	}
	p.expect(map[session.Result]int{session.ResultChallenged: 4, session.ResultAccepted: 1})
	p.nonce = nonce
	if states := p.send(p.state(nil)...); len(states) != 1 {
		t.Error("replayed datagrams ended the session")
	}
}

func TestARestartedControllerRefusesWhatItsPredecessorWasSent(t *testing.T) {
	p := greeted(t)
	state := p.state(nil)
	other := newPair(t)
	if states := other.send(state...); len(states) > 0 {
		t.Fatalf("states %+v", states)
	}
	other.expect(map[session.Result]int{session.ResultChallenged: 1})
}

func TestReorderedDoubledAndLostParts(t *testing.T) {
	p := greeted(t)
	three := p.state(web([]uint32{1}, []uint32{1}), nil, web([]uint32{3}, []uint32{3}))
	states := p.send(three[2], three[0], three[2], three[1])
	if len(states) != 1 || !maps.Equal(states[0].Counts["web"], map[uint32]uint32{1: 1, 3: 3}) {
		t.Fatalf("reordered and doubled: %+v", states)
	}
	p.expect(map[session.Result]int{session.ResultPart: 2, session.ResultDuplicate: 1, session.ResultAccepted: 1})

	p.counted = map[session.Result]int{}
	lost, next := p.state(nil, nil), p.state(nil, nil)
	if states := p.send(lost[0], next[0], lost[1], next[1]); len(states) != 1 {
		t.Fatalf("with a part lost: %+v", states)
	}
	p.expect(map[session.Result]int{session.ResultIncomplete: 1, session.ResultPart: 2, session.ResultOutdated: 1, session.ResultAccepted: 1})
}

func TestTruncatedDatagramsAreMalformedOrForged(t *testing.T) {
	p := greeted(t)
	state := p.state(web([]uint32{1}, []uint32{1}))[0]
	for n := range len(state) {
		p.send(state[:n])
	}
	if p.counted[session.ResultMalformed]+p.counted[session.ResultForged] != len(state) {
		t.Errorf("counted %v of %d", p.counted, len(state))
	}
	p.counted = map[session.Result]int{}
	p.send(append(bytes.Clone(state), make([]byte, session.BytesMax)...))
	p.expect(map[session.Result]int{session.ResultMalformed: 1})
}

func TestWrongCountsAreMalformed(t *testing.T) {
	for name, counts := range map[string][]*agentv1.ServiceSockets{
		"no such service":       {{Service: 2, Buckets: []uint32{1}, Sockets: []uint32{1}}},
		"stateful service":      {{Service: 0, Buckets: []uint32{1}, Sockets: []uint32{1}}},
		"no such bucket":        web([]uint32{256}, []uint32{1}),
		"bucket beyond the end": web([]uint32{255, 1}, []uint32{1, 1}),
		"difference overflows":  web([]uint32{255, 1<<32 - 1}, []uint32{1, 1}),
		"a bucket twice":        web([]uint32{1, 0}, []uint32{1, 1}),
		"no sockets":            web([]uint32{1}, []uint32{0}),
		"sockets missing":       web([]uint32{1, 2}, []uint32{1}),
	} {
		t.Run(name, func(t *testing.T) {
			p := greeted(t)
			if states := p.send(p.state(counts)...); len(states) > 0 {
				t.Errorf("states %+v", states)
			}
			p.expect(map[session.Result]int{session.ResultMalformed: 1})
		})
	}
}

func TestAnAgentThatSendsTooMuchIsLimitedAlone(t *testing.T) {
	p := greeted(t)
	const perSecond, burst = session.PartsMax, 2 * session.PartsMax
	for range 2 * burst {
		p.receiver.receive(p.state(nil)[0], p.now)
	}
	if got := p.counted[session.ResultRateLimited]; got < burst || got > burst+perSecond {
		t.Errorf("%d were limited", got)
	}
	p.counted = map[session.Result]int{}
	p.keys = mustSecret(t).Keys("web-2")
	p.nonce = session.Nonce{}
	p.send(p.state(nil)...)
	p.expect(map[session.Result]int{session.ResultChallenged: 1})
}

func TestServicesOfManyPartsArrive(t *testing.T) {
	p := newPair(t)
	services := exampleServices()
	for i := range 200 {
		services.Services = append(services.Services, &agentv1.Service{Name: "service-" + strconv.Itoa(i)})
	}
	of := newServicesOf("web-1", services)
	if len(of.pieces) < 2 {
		t.Fatalf("%d pieces", len(of.pieces))
	}
	var whole []byte
	for _, piece := range of.pieces {
		whole = append(whole, piece...)
	}
	var got agentv1.Services
	if err := proto.Unmarshal(whole, &got); err != nil || !proto.Equal(&got, services) {
		t.Errorf("the pieces are not the services: %v", err)
	}
	p.receiver.services["web-1"] = of
	p.send(p.state(nil)...)
	answers, _ := p.receiver.receive(p.state(nil)[0], p.now)
	if len(answers) != len(of.pieces) {
		t.Errorf("%d answers for %d pieces", len(answers), len(of.pieces))
	}
	for _, answer := range answers {
		if len(answer) > session.BytesMax {
			t.Errorf("an answer of %d bytes", len(answer))
		}
	}
}

func mustSecret(t *testing.T) Secret {
	secret, err := NewSecret([]byte(secretText))
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

type vector struct {
	Secret     string            `json:"secret"`
	Agent      string            `json:"agent"`
	KeyID      string            `json:"key_id"`
	MessageKey string            `json:"message_key"`
	BucketKey  string            `json:"bucket_key"`
	Peers      map[string]string `json:"peers"`
	Datagrams  []struct {
		Kind     string `json:"kind"`
		Part     uint8  `json:"part"`
		Parts    uint8  `json:"parts"`
		Boot     string `json:"boot"`
		Nonce    string `json:"nonce"`
		Sequence uint64 `json:"sequence"`
		Body     string `json:"body"`
		Datagram string `json:"datagram"`
	} `json:"datagrams"`
}

func TestKeysAndDatagramsAreTheSameInEveryLanguage(t *testing.T) {
	text, err := os.ReadFile("../../../vectors/agent_messages.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors) == 0 {
		t.Fatalf("%d vectors: %v", len(vectors), err)
	}
	for _, v := range vectors {
		secret, err := NewSecret([]byte(v.Secret))
		if err != nil {
			t.Fatal(err)
		}
		keys := secret.Keys(v.Agent)
		peers := secret.PeerKeys(v.Agent, slices.Collect(maps.Keys(v.Peers)))
		for peer, key := range peers {
			if got := hex.EncodeToString(key[:]); got != v.Peers[peer] || secret.PeerKeys(peer, []string{v.Agent})[v.Agent] != key {
				t.Errorf("%s and %s: key %s", v.Agent, peer, got)
			}
		}
		if got := hex.EncodeToString(keys.Message[:]); keys.KeyID != v.KeyID || got != v.MessageKey || hex.EncodeToString(keys.Bucket[:]) != v.BucketKey {
			t.Errorf("%s: keys %s", v.Agent, keys.File(peers))
		}
		for _, d := range v.Datagrams {
			boot, _ := strconv.ParseUint(d.Boot, 16, 64)
			given, _ := hex.DecodeString(d.Nonce)
			body, _ := hex.DecodeString(d.Body)
			h := session.Header{Kind: map[string]session.Kind{"state": session.KindState, "answer": session.KindAnswer, "rules": 3, "rules_answer": 4}[d.Kind], Part: d.Part, Parts: d.Parts, Boot: boot, Nonce: session.Nonce(given), Sequence: d.Sequence, KeyID: session.KeyIDOf(v.KeyID), Name: v.Agent}
			emitted := h.Emit(keys.Message, body)
			if got := hex.EncodeToString(emitted); got != d.Datagram {
				t.Errorf("%s:\n got %s\nwant %s", v.Agent, got, d.Datagram)
			}
			if back, ok := session.Parse(emitted); !ok || back.Header != h || !bytes.Equal(back.Body, body) || !back.Authentic(keys.Message) {
				t.Errorf("%s: parsed back as %+v", v.Agent, back)
			}
		}
	}
}

// FuzzAgentDatagram: any bytes, also signed ones, neither stop the receiver nor make
// it take a state whose counts are out of range.
func FuzzAgentDatagram(f *testing.F) {
	secret, err := NewSecret([]byte(secretText))
	if err != nil {
		f.Fatal(err)
	}
	keys := secret.Keys("web-1")
	services := newServicesOf("web-1", exampleServices())
	body, err := proto.Marshal(&agentv1.StatePart{Services: services.digest, Counts: web([]uint32{1, 2}, []uint32{1, 2})})
	if err != nil {
		f.Fatal(err)
	}
	h := session.Header{Kind: session.KindState, Parts: 1, Boot: 1, Sequence: 1, KeyID: session.KeyIDOf(keys.KeyID), Name: "web-1"}
	f.Add(h.Emit(keys.Message, body), body, uint8(1))
	f.Fuzz(func(t *testing.T, raw, body []byte, parts uint8) {
		r := newReceiver(func(session.Result) {})
		r.set(secret, map[string]*servicesOf{"web-1": services})
		now := time.Unix(1, 0)
		r.receive(raw, now)
		if len(body) > session.BodyBytesMax("web-1") {
			return
		}
		answers, _ := r.receive(h.Emit(keys.Message, body), now) // without its nonce
		challenge, _ := session.Parse(answers[0])
		signed := h
		signed.Nonce, signed.Parts = challenge.Nonce, parts
		for part := range parts {
			signed.Part = part
			_, state := r.receive(signed.Emit(keys.Message, body), now)
			if state == nil {
				continue
			}
			for service, live := range state.Counts {
				for bucket, sockets := range live {
					if service != "web" || bucket >= 256 || sockets == 0 {
						t.Fatalf("state %+v", state)
					}
				}
			}
		}
	})
}
