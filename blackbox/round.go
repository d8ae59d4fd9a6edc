package blackbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/guideway/guideway/controller/check"
)

// Round is what became of one attempt from each source port.
type Round struct {
	Target Target
	Tried  int
	// How long each attempt took that was answered, sorted.
	Latencies []time.Duration
	// By reason, the most frequent first.
	Failures []Failure
	// What will make attempts fail later, for people; empty: nothing known.
	Warning string
	Ended   time.Time
}

// Failure is a reason, and the source ports that met it, sorted.
type Failure struct {
	Reason      string   `json:"reason"`
	SourcePorts []uint16 `json:"source_ports"`
}

// Failed attempts of the round.
func (r Round) Failed() int { return r.Tried - len(r.Latencies) }

// Quantile of the latencies; zero if there are none.
func (r Round) Quantile(q float64) time.Duration {
	if len(r.Latencies) == 0 {
		return 0
	}
	return r.Latencies[min(int(q*float64(len(r.Latencies))), len(r.Latencies)-1)]
}

// Reason of most failures, and how many have others; empty: none failed.
func (r Round) Reason() string {
	switch len(r.Failures) {
	case 0:
		return ""
	case 1:
		return r.Failures[0].Reason
	}
	others := r.Failed() - len(r.Failures[0].SourcePorts)
	return fmt.Sprintf("%s (and %d for other reasons: %s)", r.Failures[0].Reason, others, r.Failures[1].Reason)
}

// attempt is one try.
type attempt struct {
	port   uint16
	answer check.Answer
	took   time.Duration
	err    error
}

func makeRound(target Target, attempts []attempt, timeout time.Duration, ended time.Time) Round {
	round := Round{Target: target, Tried: len(attempts), Ended: ended}
	byReason := map[string][]uint16{}
	for _, a := range attempts {
		if a.err != nil {
			reason := check.Reason(a.err, timeout)
			byReason[reason] = append(byReason[reason], a.port)
			continue
		}
		round.Latencies = append(round.Latencies, a.took)
		round.Warning = cmp.Or(round.Warning, a.answer.Warning)
	}
	for reason, ports := range byReason {
		slices.Sort(ports)
		round.Failures = append(round.Failures, Failure{reason, ports})
	}
	slices.Sort(round.Latencies)
	slices.SortFunc(round.Failures, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(len(b.SourcePorts), len(a.SourcePorts)), cmp.Compare(a.Reason, b.Reason))
	})
	return round
}

// spacing of a round's attempts: all at once they would wait for one another
// here, and their latency would be this machine's.
const spacing = 10 * time.Millisecond

// round tries the target from each of as many source ports.
func (p *Prober) round(ctx context.Context, target Target) (Round, error) {
	ports := drawPorts(p.settings.SourcePorts, p.settings.Ports)
	done := make(chan attempt, len(ports))
	begin := time.NewTicker(min(spacing, p.settings.Interval/time.Duration(4*len(ports))))
	defer begin.Stop()
	for _, port := range ports {
		select {
		case <-ctx.Done():
			return Round{}, ctx.Err()
		case p.slots <- struct{}{}:
		}
		go func() {
			a := p.attempt(ctx, target, port)
			<-p.slots
			done <- a
		}()
		select {
		case <-ctx.Done():
			return Round{}, ctx.Err()
		case <-begin.C:
		}
	}
	var attempts []attempt
	for range ports {
		a := <-done
		attempts = append(attempts, a)
	}
	if ctx.Err() != nil { // failures are our own doing
		return Round{}, ctx.Err()
	}
	for _, a := range attempts {
		p.metrics.attempted(target, a)
	}
	round := makeRound(target, attempts, p.settings.Timeout, time.Now())
	p.metrics.ended(round)
	return round, nil
}

// drawsMax of a source port that another connection of this machine has.
const drawsMax = 16

func (p *Prober) attempt(ctx context.Context, target Target, port uint16) (a attempt) {
	for range drawsMax {
		a = p.once(ctx, target, port)
		if !errors.Is(a.err, syscall.EADDRINUSE) && !errors.Is(a.err, syscall.EADDRNOTAVAIL) {
			break
		}
		port = drawPorts(1, p.settings.Ports)[0]
	}
	return a
}

func (p *Prober) once(ctx context.Context, target Target, port uint16) attempt {
	ctx, cancel := context.WithTimeout(ctx, p.settings.Timeout)
	defer cancel()
	started := time.Now()
	answer, err := p.try(ctx, target, port)
	return attempt{port, answer, time.Since(started), err}
}

// try it as a client does. Connections end by RST: their source ports could not
// be drawn again for a minute (TIME_WAIT).
func try(ctx context.Context, target Target, port uint16) (check.Answer, error) {
	return target.Check.Probe(ctx, check.Dialer{Address: target.Address, From: netip.AddrPortFrom(netip.Addr{}, port), Reset: true})
}

// PortRange is inclusive.
type PortRange struct{ First, Last uint16 }

func (r PortRange) size() int { return int(r.Last) - int(r.First) + 1 }

// LocalPorts are those that clients on this machine get from the kernel.
func LocalPorts() PortRange {
	ports := PortRange{32768, 60999} // ip(7)
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		var read PortRange
		if n, _ := fmt.Sscan(string(text), &read.First, &read.Last); n == 2 && 0 < read.First && read.First <= read.Last {
			ports = read
		}
	}
	return ports
}

// drawPorts that differ; as many as the range has at most.
func drawPorts(count int, from PortRange) []uint16 {
	drawn := map[uint16]bool{}
	ports := make([]uint16, 0, count)
	for len(ports) < min(count, from.size()) {
		port := from.First + uint16(rand.IntN(from.size()))
		if !drawn[port] {
			drawn[port] = true
			ports = append(ports, port)
		}
	}
	return ports
}
