package report

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/guideway/guideway/lab/traffic/load"
)

// Screen shows people what goes on.
type Screen struct {
	output io.Writer
	// Begun is when the first step was taken.
	Begun time.Time

	mutex sync.Mutex
	event string
	// unfollow ends the lines about a load, and waits for the last one; nil if none is followed.
	unfollow func()
}

// NewScreen that writes there.
func NewScreen(output io.Writer) *Screen {
	return &Screen{output: output, Begun: time.Now(), event: "lab"}
}

// Begin an event: its name stands before the steps that follow.
func (s *Screen) Begin(event string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.event = event
}

// Step that is taken now.
func (s *Screen) Step(format string, args ...any) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	fmt.Fprintf(s.output, "%5.1f s  %-32s %s\n", time.Since(s.Begun).Seconds(), s.event, fmt.Sprintf(format, args...))
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
			s.Step("  %s requests, %d failed; %d of %d connections open, %d broken; %s messages",
				thousands(r.Requests), r.Failed, r.Open, r.Connections, r.Broken, thousands(r.Messages))
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

// Print the result on one screen.
func (r *Report) Print(output io.Writer) {
	fmt.Fprintln(output)
	table := tabwriter.NewWriter(output, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "event\trequests\tfailed\tallowed\tconnections\tbroken\tallowed\tpause max\t")
	for _, machine := range r.Machines {
		fmt.Fprintf(table, "pkts %s\t", machine)
	}
	fmt.Fprintln(table, "\t")
	for _, e := range r.Events {
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d ms\t", e.Name, thousands(e.Requests), e.Failed, e.FailedAllowed,
			e.Connections, e.Broken, e.BrokenAllowed, e.LongestPauseMS)
		for _, machine := range r.Machines {
			fmt.Fprintf(table, "%s\t", thousands(int(e.Packets[machine])))
		}
		fmt.Fprintf(table, "%s\t\n", e.verdict())
	}
	_ = table.Flush()
	printDetails(output, r.remarks())
	r.printShares(output)
	r.printRest(output)
}

func (r *Report) printShares(output io.Writer) {
	if len(r.Shares) == 0 {
		return
	}
	fmt.Fprintf(output, "\nshares of %s new connections (share, ideal, difference, sigma, allowed)\n", thousands(r.NewConnections))
	for _, s := range r.Shares {
		fmt.Fprintf(output, "  %-8s %.4f  %.4f  %+6.2f %%  %.2f %%  %.1f %%\n",
			s.Backend, s.Share, s.Ideal, 100*s.Deviation(), 100*s.Sigma, 100*s.Tolerance())
	}
	fmt.Fprintf(output, "flows looked up %d, on more than one machine or worker %d; wrong checksums %d\n",
		r.FlowsLookedUp, r.FlowsSeenTwice, r.ChecksumErrors)
}

func (r *Report) printRest(output io.Writer) {
	if r.WithdrawMS != nil {
		fmt.Fprintf(output, "from kill to the route's deletion at the router: %.1f ms\n", *r.WithdrawMS)
	}
	fmt.Fprintf(output, "unaccounted packets: %d\n", r.UnaccountedPackets)
	r.print(output, r.remarks(), asExpected)
}
