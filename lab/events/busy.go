package events

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// Whether this machine had the time to play clients, router, load balancers and servers
// at once. Where it had not, a pause is nobody's fault.

const (
	beatEvery = 10 * time.Millisecond
	// A timer that is later than this would make a message late by as much at each of
	// the five processes on its way.
	beatLateMax = 200 * time.Millisecond
	// waitingMax is the share of time in which some task waited for a processor (PSI).
	// A demo alone on two cores has about half of it.
	waitingMax = 0.95
)

// heart measures how late its own timer is, and how long tasks wait for processors.
type heart struct {
	cancel context.CancelFunc
	ended  chan struct{}
	begun  time.Time
	// waited before it began; 0 as well where the kernel does not say.
	waited time.Duration
	latest time.Duration
}

// startHeart that beats until stop.
func startHeart(ctx context.Context) *heart {
	ctx, cancel := context.WithCancel(ctx)
	h := &heart{cancel: cancel, ended: make(chan struct{}), begun: time.Now(), waited: waitedForProcessors()}
	go func() {
		defer close(h.ended)
		for last := h.begun; ctx.Err() == nil; {
			time.Sleep(beatEvery)
			now := time.Now()
			h.latest = max(h.latest, now.Sub(last)-beatEvery)
			last = now
		}
	}()
	return h
}

// stop and say why this machine was too busy; empty: it was not.
func (h *heart) stop() string {
	h.cancel()
	<-h.ended
	waiting := float64(waitedForProcessors()-h.waited) / float64(time.Since(h.begun))
	return tooBusy(h.latest, waiting)
}

func tooBusy(late time.Duration, waiting float64) string {
	if late <= beatLateMax && waiting <= waitingMax {
		return ""
	}
	return fmt.Sprintf("a timer was %d ms late, and tasks waited for a processor %.0f %% of the time", late.Milliseconds(), 100*waiting)
}

// waitedForProcessors since boot; 0 where the kernel does not say (CONFIG_PSI).
func waitedForProcessors() time.Duration {
	content, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0
	}
	return parsePressure(string(content))
}

// parsePressure of the line "some": its total is in microseconds.
func parsePressure(content string) time.Duration {
	line, _, _ := strings.Cut(content, "\n")
	var microseconds int64
	if _, total, found := strings.Cut(line, "total="); found {
		_, _ = fmt.Sscan(total, &microseconds) // 0 if it is no number
	}
	return time.Duration(microseconds) * time.Microsecond
}
