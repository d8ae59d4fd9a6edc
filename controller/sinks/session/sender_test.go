package session

import (
	"bytes"
	"testing"
	"time"
)

// exchange is a sender and its receiver.
type exchange struct {
	t        *testing.T
	sender   *Sender
	receiver *Receiver
	counted  map[Result]int
	now      time.Time
}

var exampleKey = Key{1}

func newExchange(t *testing.T) *exchange {
	e := &exchange{t: t, counted: map[Result]int{}, now: time.Unix(1_800_000_000, 0), sender: NewSender(KindPeerState, "lb-1", KeyID{9}, exampleKey)}
	e.restartReceiver()
	return e
}

func (e *exchange) restartReceiver() {
	e.receiver = NewReceiver(KindPeerState, func(r Result) { e.counted[r]++ })
	e.receiver.Set(KeyID{9}, map[string]Key{"lb-1": exampleKey})
}

// deliver datagrams; the sender takes the answers. It returns the states that were taken.
func (e *exchange) deliver(datagrams [][]byte) (states [][]byte) {
	for _, d := range datagrams {
		e.now = e.now.Add(time.Millisecond)
		answer := e.receiver.Receive(d, e.now, func(_ Header, bodies [][]byte) bool {
			states = append(states, bytes.Join(bodies, nil))
			return true
		})
		if answer == nil {
			continue
		}
		for _, bytes := range e.receiver.Emit(*answer, [][]byte{nil}) {
			if d, ok := Parse(bytes); !ok || !e.sender.Answered(d) {
				e.t.Errorf("an answer is not taken: %+v", d.Header)
			}
		}
	}
	return states
}

func TestAStateOfManyPartsArrivesAfterTheChallenge(t *testing.T) {
	e := newExchange(t)
	body := bytes.Repeat([]byte("0123456789"), 1000)
	if states := e.deliver(e.sender.State(body)); len(states) > 0 {
		t.Fatalf("taken without the nonce: %d", len(states))
	}
	if states := e.deliver(e.sender.State(body)); len(states) != 1 || !bytes.Equal(states[0], body) {
		t.Fatalf("%d states", len(states))
	}
}

func TestASessionBeginsAnewAfterARestartOfEitherSide(t *testing.T) {
	e := newExchange(t)
	e.deliver(e.sender.State([]byte("a")))
	recorded := e.sender.State([]byte("b"))
	if states := e.deliver(recorded); len(states) != 1 {
		t.Fatal("no session")
	}
	e.restartReceiver()
	e.deliver(e.sender.State([]byte("c")))
	if states := e.deliver(e.sender.State([]byte("d"))); len(states) != 1 || string(states[0]) != "d" {
		t.Errorf("after the receiver's restart: %q", states)
	}
	e.sender = NewSender(KindPeerState, "lb-1", KeyID{9}, exampleKey)
	e.deliver(e.sender.State([]byte("e")))
	if states := e.deliver(e.sender.State([]byte("f"))); len(states) != 1 || string(states[0]) != "f" {
		t.Errorf("after the sender's restart: %q", states)
	}
	former := e.counted[ResultChallenged]
	e.receiver.Receive(recorded[0], e.now, func(Header, [][]byte) bool { t.Error("a recorded state is taken"); return true })
	if e.counted[ResultChallenged] != former+1 {
		t.Errorf("counted %v", e.counted)
	}
}

func TestOnlyTheReceiversOwnAnswersAreTaken(t *testing.T) {
	s := NewSender(KindPeerState, "lb-1", KeyID{9}, exampleKey)
	s.State([]byte("a"))
	good := s.header
	good.Kind, good.Parts, good.Nonce = KindPeerAnswer, 1, Nonce{7}
	for name, change := range map[string]func(*Header) Key{
		"a state of its own, reflected":   func(h *Header) Key { h.Kind = KindPeerState; return exampleKey },
		"under another key":               func(*Header) Key { return Key{2} },
		"to another secret":               func(h *Header) Key { h.KeyID = KeyID{8}; return exampleKey },
		"to a former start":               func(h *Header) Key { h.Boot++; return exampleKey },
		"to a state that was never sent":  func(h *Header) Key { h.Sequence++; return exampleKey },
		"to a state before the first one": func(h *Header) Key { h.Sequence = 0; return exampleKey },
	} {
		h := good
		key := change(&h)
		if d, _ := Parse(h.Emit(key, nil)); s.Answered(d) {
			t.Errorf("taken: %s", name)
		}
	}
	d, _ := Parse(good.Emit(exampleKey, nil))
	if !s.Answered(d) || s.header.Nonce != good.Nonce {
		t.Error("the true answer is not taken")
	}
	if s.Answered(d) {
		t.Error("the true answer is taken twice")
	}
}
