package tracer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// fakeLink is a road with load balancers that report as told.
type fakeLink struct {
	sent    [][]byte
	reports chan []byte
	// Called for each packet that has a mark.
	onMark func(l *fakeLink, nonce uint64)
	fails  error
}

func newFakeLink(onMark func(l *fakeLink, nonce uint64)) *fakeLink {
	return &fakeLink{reports: make(chan []byte, 100), onMark: onMark}
}

func (l *fakeLink) Send(packet []byte) error {
	l.sent = append(l.sent, packet)
	if mark := packet[max(0, len(packet)-MarkBytes):]; strings.HasPrefix(string(mark), magic) {
		l.onMark(l, binary.BigEndian.Uint64(mark[28:]))
	}
	return l.fails
}

func (l *fakeLink) Receive(ctx context.Context) ([]byte, error) {
	select {
	case report := <-l.reports:
		return report, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// later reports what a machine says, after that long.
func (l *fakeLink) later(after time.Duration, nonce uint64, machine, verdict string, budget int) {
	text := fmt.Sprintf(`{"nonce":"%016x","machine":"%s","generation":3,"worker":1,"budget":%d,"table":"miss","verdict":"%s"}`, nonce, machine, budget, verdict)
	time.AfterFunc(after, func() { l.reports <- []byte(text) })
}

func request(count int) Request {
	return Request{Receiver: netip.MustParseAddrPort("192.0.2.1:7777"), Flow: flow4, Count: count, Timeout: 2 * time.Second}
}

func TestHopsAreInOrderOfTheWayAndItEndsSoonAfterTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := newFakeLink(func(l *fakeLink, nonce uint64) {
			l.later(30*time.Millisecond, nonce, "lb-1", "redirected", 7)
			l.later(20*time.Millisecond, nonce, "lb-2", "sent", 1)
			l.later(40*time.Millisecond, nonce, "lb-2", "slow", 1)
		})
		began := time.Now()
		q := request(3)
		q.Fragment, q.SpreadPorts = true, true
		result, err := Run(t.Context(), link, q)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 2*interval+20*time.Millisecond+grace {
			t.Errorf("it took %v", took)
		}
		if len(link.sent) != 6 || result.Answered() != 3 || result.LostOnTheWay() != 0 {
			t.Errorf("%d sent, %+v", len(link.sent), result)
		}
		for i, packet := range result.Packets {
			var said []string
			for _, hop := range packet.Hops {
				said = append(said, hop.Machine+" "+hop.Verdict)
			}
			if got := strings.Join(said, ", "); got != "lb-1 redirected, lb-2 slow, lb-2 sent" {
				t.Errorf("packet %d: %s", i, got)
			}
			if port := packet.Source.Port(); port != 40000+uint16(i) {
				t.Errorf("packet %d is from port %d", i, port)
			}
			if packet.Hops[2].AfterMicroseconds != 20_000 {
				t.Errorf("packet %d: last hop after %d µs", i, packet.Hops[2].AfterMicroseconds)
			}
		}
	})
}

func TestSilenceEndsAtTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		result, err := Run(t.Context(), newFakeLink(func(*fakeLink, uint64) {}), request(1))
		if took := time.Since(began); err != nil || took != 2*time.Second || result.Answered() != 0 {
			t.Errorf("%v after %v: %+v", err, took, result)
		}
	})
}

func TestWhoWasHandedAPacketAndSaysNothingIsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := newFakeLink(func(l *fakeLink, nonce uint64) { l.later(time.Millisecond, nonce, "lb-1", "redirected", 7) })
		result, err := Run(t.Context(), link, request(2))
		if err != nil || result.LostOnTheWay() != 2 || result.Answered() != 2 {
			t.Errorf("%v: %+v", err, result)
		}
	})
}

func TestDatagramsOfStrangersAreCountedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := newFakeLink(func(l *fakeLink, nonce uint64) {
			l.later(time.Millisecond, nonce+1, "liar", "sent", 7)
			l.reports <- []byte("hello")
			l.later(2*time.Millisecond, nonce, "lb-1", "sent", 7)
		})
		result, err := Run(t.Context(), link, request(1))
		if err != nil || result.Strange != 2 || len(result.Packets[0].Hops) != 1 {
			t.Errorf("%v: %+v", err, result)
		}
	})
}

func TestAFailureToSendNamesTheFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := newFakeLink(func(*fakeLink, uint64) {})
		link.fails = errors.New("the wire is cut")
		_, err := Run(t.Context(), link, request(5))
		if err == nil || !strings.Contains(err.Error(), "send tcp 192.0.2.1:40000 → 203.0.113.10:80: the wire is cut") {
			t.Error(err)
		}
	})
}

func TestCtrlCEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := Run(ctx, newFakeLink(func(*fakeLink, uint64) {}), request(1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestPortsGoRoundAndLeaveOutZero(t *testing.T) {
	for _, one := range []struct {
		first uint16
		index int
		want  uint16
	}{{40000, 0, 40000}, {40000, 999, 40999}, {65535, 1, 1}, {1, 65535, 1}} {
		if got := nextPort(one.first, one.index); got != one.want {
			t.Errorf("%+v: %d", one, got)
		}
	}
}

func TestReportsAreRead(t *testing.T) {
	nonce, report, err := ParseReport([]byte(`{"nonce":"00000000000000ff","machine":"lb-1","generation":5,"worker":0,"budget":7,"service":"web","matched":"203.0.113.10 tcp 80","table":"miss","slot":0,"backend":"web-1","verdict":"sent","to_come":1}`))
	if err != nil || nonce != 255 || report.Slot == nil || *report.Slot != 0 || report.Backend != "web-1" || report.Matched != "203.0.113.10 tcp 80" || report.Generation != 5 {
		t.Errorf("%d %+v %v", nonce, report, err)
	}
	_, report, err = ParseReport([]byte(`{"nonce":"00000000000000ff","machine":"lb\u001b[2J","verdict":"sent\n","backend":"` + strings.Repeat("a", 1000) + `"}`))
	if err != nil || report.Machine != `lb\x1b[2J` || report.Verdict != `sent\n` || len(report.Backend) > 300 {
		t.Errorf("%+v %v", report, err)
	}
	for _, bad := range []string{"", "{", `{"nonce":"ff","machine":"a","verdict":"sent"}`, `{"nonce":"00000000000000gg","machine":"a","verdict":"sent"}`,
		`{"nonce":"00000000000000ff","verdict":"sent"}`, `{"nonce":"00000000000000ff","machine":"a"}`, `{"nonce":"00000000000000ff","machine":"a","verdict":"sent","worker":"x"}`} {
		if _, _, err := ParseReport([]byte(bad)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func TestRequestsThatCannotBeSentAreRefused(t *testing.T) {
	for says, change := range map[string]func(*Request){
		"count 0":            func(q *Request) { q.Count = 0 },
		"count 1001":         func(q *Request) { q.Count = 1001 },
		"different families": func(q *Request) { q.Flow.Source = flow6.Source },
		"timeout 0s":         func(q *Request) { q.Timeout = 0 },
	} {
		q := request(1)
		change(&q)
		if err := q.Check(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	if err := request(1).Check(); err != nil {
		t.Error(err)
	}
}
