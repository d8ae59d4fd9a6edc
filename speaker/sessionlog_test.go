package speaker

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/guideway/guideway/speaker/bgp"
)

func TestTheLogSaysOnceWhyASessionDoesNotComeUp(t *testing.T) {
	var lines strings.Builder
	log := &sessionLog{log: slog.New(slog.NewTextHandler(&lines, nil)), said: map[netip.Addr]string{}}
	heard := func(state, reason string) {
		log.heard(bgp.NeighborState{Address: netip.MustParseAddr("192.0.2.254"), State: state, Reason: reason})
	}
	heard("idle", "not connected yet")
	for range 100 { // attempts
		heard("active", "wrong AS")
		heard("openconfirm", "wrong AS")
		heard("idle", "wrong AS")
	}
	heard("active", "connection refused")
	heard("established", "")
	heard("idle", "hold-timer-expired")
	heard("active", "hold-timer-expired")
	for text, want := range map[string]int{"wrong AS": 1, "connection refused": 1, "established": 1, "hold-timer-expired": 1, "level=WARN": 4} {
		if got := strings.Count(lines.String(), text); got != want {
			t.Errorf("%q stands there %d times, want %d:\n%s", text, got, want, &lines)
		}
	}
}
