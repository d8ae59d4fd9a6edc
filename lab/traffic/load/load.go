package load

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Spec of a load. All rates are per second and over all clients.
type Spec struct {
	Seed    uint64       `json:"seed"`
	Sources []netip.Addr `json:"sources"`
	// Web and Echo: where the services are, one per family or more.
	Web  []netip.AddrPort `json:"web"`
	Echo []netip.AddrPort `json:"echo"`

	FreshRate            float64 `json:"fresh_rate"`
	KeepAliveConnections int     `json:"keep_alive_connections"`
	KeepAliveRate        float64 `json:"keep_alive_rate"`
	Connections          int     `json:"connections"`
	// MessageRate of each long-lived connection.
	MessageRate float64 `json:"message_rate"`
	// TimeLimit of connecting, of a request, and of a message's way there and
	// back. A lost SYN is sent again after 1 s, then 3 s, then 7 s.
	TimeLimit time.Duration `json:"time_limit"`
}

func (s Spec) check() error {
	switch {
	case len(s.Sources) == 0:
		return errors.New("no source addresses")
	case s.TimeLimit <= 0:
		return errors.New("time limit is not positive")
	case (s.FreshRate > 0 || s.KeepAliveConnections > 0) && len(s.Web) == 0:
		return errors.New("requests, but no web address")
	case s.Connections > 0 && (len(s.Echo) == 0 || s.MessageRate <= 0):
		return errors.New("connections, but no echo address or no message rate")
	case s.KeepAliveConnections > 0 && s.KeepAliveRate <= 0:
		return errors.New("keep-alive connections, but no rate for them")
	}
	return nil
}

// Kinds of what can fail.
const (
	KindFresh     = "fresh"
	KindKeepAlive = "keep-alive"
	KindEcho      = "echo"
)

// Failure of one request, or the end of one long-lived connection.
type Failure struct {
	Kind string `json:"kind"`
	Flow Flow   `json:"flow"`
	// Backend that served the connection; empty if none ever answered on it.
	Backend string    `json:"backend,omitempty"`
	Reason  string    `json:"reason"`
	Begun   time.Time `json:"begun"`
	Failed  time.Time `json:"failed"`
}

// Live is a connection that lasts: keep-alive or echo.
type Live struct {
	Kind    string `json:"kind"`
	Flow    Flow   `json:"flow"`
	Backend string `json:"backend"`
}

// Report of a load, while it runs or after it. Requests count when they have
// ended.
type Report struct {
	Requests    int `json:"requests"`
	Failed      int `json:"failed"`
	Connections int `json:"connections"`
	Open        int `json:"open"`
	Broken      int `json:"broken"`
	Messages    int `json:"messages"`
	// LongestPause of any message that did come back.
	LongestPause time.Duration `json:"longest_pause"`
	// LongestRequest that was answered, with its handshake if it had one.
	LongestRequest time.Duration `json:"longest_request"`
	// Fresh counts new connections of the last mark by backend.
	Fresh map[string]int `json:"fresh"`
	// Failures and Recent (the last fresh flows) come with the last report.
	Failures []Failure `json:"failures,omitempty"`
	Recent   []Flow    `json:"recent,omitempty"`
}

const recentMax = 2_000

// Load that runs.
type Load struct {
	spec    Spec
	sources *sources

	// stopping ends new work; what has begun is finished.
	stopping context.Context
	stop     context.CancelFunc
	work     sync.WaitGroup

	mutex  sync.Mutex
	report Report
	live   map[Flow]Live
	// mark counts up; a fresh request counts for the mark it began under.
	mark int
}

// Start a load. It runs until Stop.
func Start(spec Spec) (*Load, error) {
	if err := spec.check(); err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	stopping, stop := context.WithCancel(context.Background())
	l := &Load{
		spec: spec, sources: newSources(spec.Seed, spec.Sources),
		stopping: stopping, stop: stop,
		live: map[Flow]Live{}, report: Report{Fresh: map[string]int{}, Connections: spec.Connections},
	}
	l.work.Go(l.openConversations)
	for i := range spec.KeepAliveConnections {
		l.work.Go(func() { l.keepAlive(i) })
	}
	if spec.FreshRate > 0 {
		l.work.Go(l.freshRequests)
	}
	return l, nil
}

// Stop begins nothing new, lets everything end that has begun, with a last
// message on each long-lived connection, and reports.
func (l *Load) Stop() Report {
	l.stop()
	l.work.Wait()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.copyReport(true)
}

// Progress so far.
func (l *Load) Progress() Report {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.copyReport(false)
}

func (l *Load) copyReport(all bool) Report {
	report := l.report
	report.Fresh = maps.Clone(report.Fresh)
	report.Failures = slices.Clone(report.Failures)
	report.Recent = slices.Clone(report.Recent)
	if !all {
		report.Recent = nil
	}
	return report
}

// Mark begins a new count of fresh connections by backend: only those count
// that begin from now on.
func (l *Load) Mark() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.mark++
	l.report.Fresh = map[string]int{}
}

// Live connections now, with the backend of each.
func (l *Load) Live() []Live {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return slices.Collect(maps.Values(l.live))
}

// paced calls do at a fixed rate until stopping. A late wake-up is made up for
// by several calls at once.
func (l *Load) paced(rate float64, do func()) {
	begun, done := time.Now(), 0
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		for due := int(time.Since(begun).Seconds() * rate); done < due; done++ {
			do()
		}
		select {
		case <-l.stopping.Done():
			return
		case <-ticker.C:
		}
	}
}

// sleep between repeated work; false when stopping.
func (l *Load) sleep(duration time.Duration) bool {
	select {
	case <-l.stopping.Done():
		return false
	case <-time.After(duration):
		return true
	}
}

// dial from exactly the flow's source.
func (l *Load) dial(flow Flow) (net.Conn, error) {
	dialer := net.Dialer{
		Timeout:   l.spec.TimeLimit,
		LocalAddr: net.TCPAddrFromAddrPort(flow.Source),
		KeepAlive: -1, // our messages are frequent; probes would only blur the counts
	}
	return dialer.Dial("tcp", flow.Destination.String())
}

// began to use a lasting connection.
func (l *Load) began(live Live) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.live[live.Flow] = live
	if live.Kind == KindEcho {
		l.report.Open++
	}
}

// ended the use of a lasting connection, in whatever way.
func (l *Load) ended(live Live) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	delete(l.live, live.Flow)
	if live.Kind == KindEcho {
		l.report.Open--
	}
}

// broke: a long-lived connection did not last.
func (l *Load) broke(failure Failure) {
	failure.Failed = time.Now()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.report.Broken++
	l.report.Failures = append(l.report.Failures, failure)
}

// requested: a request has ended, well if the failure has no reason.
func (l *Load) requested(mark int, failure Failure) {
	failure.Failed = time.Now()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.report.Requests++
	if failure.Reason != "" {
		l.report.Failed++
		l.report.Failures = append(l.report.Failures, failure)
		return
	}
	l.report.LongestRequest = max(l.report.LongestRequest, failure.Failed.Sub(failure.Begun))
	if failure.Kind != KindFresh {
		return
	}
	if mark == l.mark {
		l.report.Fresh[failure.Backend]++
	}
	l.report.Recent = append(l.report.Recent, failure.Flow)
	if len(l.report.Recent) > 2*recentMax {
		l.report.Recent = slices.Clone(l.report.Recent[recentMax:])
	}
}

func (l *Load) currentMark() int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.mark
}

// reasonOf an error, short enough for a table: without addresses, which the
// flow has.
func reasonOf(err error) string {
	var operation *net.OpError
	if !errors.As(err, &operation) {
		return err.Error()
	}
	reason := operation.Op + ": " + operation.Err.Error()
	if operation.Timeout() {
		reason = operation.Op + ": time limit"
	}
	return strings.Replace(err.Error(), operation.Error(), reason, 1)
}
