package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/guideway/guideway/lab/traffic/load"
)

// Screen shows people what goes on.
type Screen struct {
	output *lines
	// Begun is when the first step was taken.
	Begun time.Time

	mutex sync.Mutex
	event string
	// unfollow ends the lines about a load, and waits for the last one; nil if none is followed.
	unfollow func()
}

// NewScreen that writes there.
func NewScreen(output io.Writer) *Screen {
	return &Screen{output: newLines(output), Begun: time.Now(), event: "a data centre in network namespaces"}
}

// Begin an event: its words stand above the steps that follow.
func (s *Screen) Begin(event string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.event = event
}

// Step that is taken now.
func (s *Screen) Step(format string, args ...any) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.event != "" {
		s.output.line("")
		s.output.line("%s", s.event)
		s.event = ""
	}
	s.output.wrapped(fmt.Sprintf("%7.1f s  ", time.Since(s.Begun).Seconds()), fmt.Sprintf(format, args...))
}

// progressEvery so often a line, while a load runs.
const progressEvery = 3 * time.Second

// progresses is a load that can be asked how far it is.
type progresses interface {
	Progress() (load.Report, error)
}

// Follow a load until Unfollow. Both are for one goroutine.
func (s *Screen) Follow(running progresses) {
	stop := make(chan struct{})
	var lines sync.WaitGroup
	s.unfollow = func() {
		close(stop)
		lines.Wait()
	}
	lines.Go(func() {
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
			}
			r, err := running.Progress()
			if err != nil {
				return // the next request says so
			}
			s.Step("%s requests, %d failed; %d of %d connections open, %d broken",
				thousands(r.Requests), r.Failed, r.Open, r.Connections, r.Broken)
		}
	})
}

// Unfollow the load, if one is followed.
func (s *Screen) Unfollow() {
	if s.unfollow != nil {
		s.unfollow()
		s.unfollow = nil
	}
}

// thousands puts commas into a number.
func thousands(n int) string {
	digits := fmt.Sprint(n)
	var b strings.Builder
	for i, digit := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 && digits[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return b.String()
}

// Print the result on one screen: first what matters.
func (r *Report) Print(output io.Writer) {
	out := newLines(output)
	requests, failed, connections, broken := 0, 0, 0, 0
	for _, e := range r.Events {
		requests, failed = requests+e.Requests, failed+max(0, e.Failed-e.FailedAllowed)
		connections, broken = connections+e.Connections, broken+max(0, e.Broken-e.BrokenAllowed)
	}
	out.line("")
	out.verdict(r.Good(), "%s of %s connections broken, %s of %s requests failed that did not have to: %s",
		thousands(broken), thousands(connections), thousands(failed), thousands(requests), r.verdict(r.remarks(), asExpected))
	out.line("")
	out.line("%-43s %9s %7s %7s %9s", "what happened", "requests", "failed", "broken", "longest")
	out.line("%-43s %9s %7s %7s %9s", "", "", "", "", "wait")
	packets := map[string]uint64{}
	for _, e := range r.Events {
		out.line("%-43s %9s %7d %7d %6d ms", e.Words, thousands(e.Requests), e.Failed, e.Broken, e.LongestPauseMS)
		out.detail(e.Detail)
		if e.FailedAllowed+e.BrokenAllowed > 0 {
			out.detail(e.allowed())
		}
		for _, machine := range r.Machines {
			packets[machine] += e.Packets[machine]
		}
	}
	out.line("")
	r.printShares(out)
	r.printRest(out, packets)
}

// allowed breaks, and why.
func (e *EventResult) allowed() string {
	text := fmt.Sprintf("allowed: %d requests, %d connections", e.FailedAllowed, e.BrokenAllowed)
	if e.May != "" {
		text += " (" + e.May + ")"
	}
	return text
}

func (r *Report) printShares(out *lines) {
	if len(r.Shares) == 0 {
		return
	}
	least := slices.MinFunc(r.Shares, func(a, b Share) int { return cmp.Compare(a.Deviation(), b.Deviation()) })
	most := slices.MaxFunc(r.Shares, func(a, b Share) int { return cmp.Compare(a.Deviation(), b.Deviation()) })
	out.line("%s new connections were spread evenly but for %+.1f %% (%s) to %+.1f %% (%s); %.1f %% are allowed",
		thousands(r.NewConnections), 100*least.Deviation(), least.Backend, 100*most.Deviation(), most.Backend, 100*most.Tolerance())
	out.line("of %d flows that were looked up %d were on more than one machine or worker", r.FlowsLookedUp, r.FlowsSeenTwice)
}

func (r *Report) printRest(out *lines, packets map[string]uint64) {
	if r.WithdrawMS != nil {
		out.line("traffic had left a killed load balancer after %.1f ms", *r.WithdrawMS)
	}
	var each []string
	for _, machine := range r.Machines {
		each = append(each, machine+" "+thousands(int(packets[machine])))
	}
	out.line("packets: %s; unaccounted for: %d; wrong checksums: %d", strings.Join(each, ", "), r.UnaccountedPackets, r.ChecksumErrors)
	r.print(out, r.remarks())
}
