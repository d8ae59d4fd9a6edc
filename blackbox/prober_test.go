package blackbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/guideway/guideway/controller/check"
)

var web = Target{
	Name: "http://203.0.113.10:80/", Service: "web", Address: netip.MustParseAddr("203.0.113.10"), Port: 80, Protocol: "tcp",
	Check: check.HTTP{Port: 80},
}

// sixtyFour source ports are all that there are: each is drawn in each round.
var sixtyFour = Settings{SourcePorts: 64, Interval: 10 * time.Second, Timeout: 2 * time.Second, Ports: PortRange{30000, 30063}}

// record is a log that tests read.
type record struct {
	sync.Mutex
	bytes.Buffer
}

func (r *record) Write(line []byte) (int, error) {
	r.Lock()
	defer r.Unlock()
	return r.Buffer.Write(line)
}

func (r *record) take() string {
	r.Lock()
	defer r.Unlock()
	defer r.Reset()
	return r.String()
}

// proberOf one target whose attempts answer says how they end.
func proberOf(to io.Writer, settings Settings, answer func(port uint16) error) *Prober {
	p := New(slog.New(slog.NewTextHandler(to, nil)), settings, []Target{web}, NewMetrics("1", []Target{web}))
	p.try = func(ctx context.Context, _ Target, port uint16) (check.Answer, error) {
		err := answer(port)
		if errors.Is(err, context.DeadlineExceeded) {
			<-ctx.Done()
			return check.Answer{}, ctx.Err()
		}
		time.Sleep(3 * time.Millisecond)
		return check.Answer{Text: "status 200"}, err
	}
	return p
}

// The clock is the test's own (synctest).
func TestWhatChangesIsLoggedOnceAndInWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log record
		var broken atomic.Uint32 // ports that this divides fail
		p := proberOf(&log, sixtyFour, func(port uint16) error {
			if divisor := broken.Load(); divisor != 0 && uint32(port)%divisor == 0 {
				return context.DeadlineExceeded
			}
			return nil
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go p.Run(ctx)
		rounds := func(n int) string {
			time.Sleep(time.Duration(n) * sixtyFour.Interval)
			return log.take()
		}
		for _, step := range []struct {
			broken uint32
			want   []string
		}{
			{0, []string{"every source port is answered", "target=http://203.0.113.10:80/", "service=web", "median=3ms"}},
			{3, []string{"level=WARN", "a share of the source ports fails", "22 of 64", "no answer within 2s", "about 1/3", "1 of 3 load balancers, or 1 of 3 backends", "--sport 30000"}},
			{1, []string{"level=ERROR", "no source port is answered", "reason=\"no answer within 2s\"", "does its service serve"}},
			{2, []string{"32 of 64", "about 1/2"}},
			{0, []string{"every source port is answered again", "failed_for=1m28s"}},
		} {
			broken.Store(step.broken)
			said := rounds(3)
			for _, want := range step.want {
				if !strings.Contains(said, want) {
					t.Errorf("with every %dth port broken it lacks %q: %s", step.broken, want, said)
				}
			}
			if strings.Count(said, "\n") != 1 {
				t.Errorf("said more than once: %s", said)
			}
		}
		stop()
		synctest.Wait()
	})
}

func TestARoundTriesEachSourcePortOnceAndRoundsKeepTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		tried := map[uint16]int{}
		p := proberOf(io.Discard, sixtyFour, func(port uint16) error {
			mu.Lock()
			defer mu.Unlock()
			tried[port]++
			return context.DeadlineExceeded
		})
		ctx, stop := context.WithTimeout(t.Context(), 5*sixtyFour.Interval)
		defer stop()
		p.Run(ctx)
		if len(tried) != 64 {
			t.Errorf("%d ports", len(tried))
		}
		for port, times := range tried {
			if times != 5 {
				t.Errorf("port %d was tried %d times in five rounds", port, times)
			}
		}
	})
}

func TestASourcePortThatIsTakenIsDrawnAgain(t *testing.T) {
	settings := sixtyFour
	settings.SourcePorts = 1
	taken := 0
	p := proberOf(io.Discard, settings, func(uint16) error {
		if taken++; taken < 3 {
			return &net.OpError{Err: syscall.EADDRINUSE}
		}
		return nil
	})
	rounds, err := p.Once(t.Context())
	if err != nil || rounds[0].Failed() != 0 || taken != 3 {
		t.Errorf("%+v, %v after %d draws", rounds, err, taken)
	}
}

// listen on the loopback, and note where connections come from.
func listen(t *testing.T) (at netip.AddrPort, from func() []uint16) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var ports []uint16
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			ports = append(ports, netip.MustParseAddrPort(conn.RemoteAddr().String()).Port())
			conn.Close()
		}
	}()
	return netip.MustParseAddrPort(listener.Addr().String()), func() []uint16 {
		listener.Close()
		<-ended
		return ports
	}
}

func TestRealConnectionsComeFromSixtyFourPorts(t *testing.T) {
	at, from := listen(t)
	target := Target{Name: "tcp://" + at.String(), Address: at.Addr(), Port: at.Port(), Protocol: "tcp", Check: check.TCP{Port: at.Port()}}
	settings := Settings{SourcePorts: 64, Interval: 10 * time.Second, Timeout: 2 * time.Second, Ports: LocalPorts()}
	metrics := NewMetrics("1", []Target{target})
	p := New(slog.New(slog.DiscardHandler), settings, []Target{target}, metrics)
	rounds, err := p.Once(t.Context())
	if err != nil || len(rounds) != 1 || rounds[0].Failed() != 0 || rounds[0].Tried != 64 {
		t.Fatalf("%+v, %v", rounds, err)
	}
	ports := from()
	slices.Sort(ports)
	// A connection that was reset before it was accepted may be missing.
	if n := len(slices.Compact(ports)); n < 60 || n > 64 || len(ports) > 64 {
		t.Errorf("%d connections from %d ports", len(ports), n)
	}
	rounds, err = p.Once(t.Context())
	if err != nil || len(rounds[0].Failures) != 1 || rounds[0].Failures[0].Reason != "connection refused" || len(rounds[0].Failures[0].SourcePorts) != 64 {
		t.Errorf("%+v, %v", rounds, err)
	}
	checkPage(t, metrics, rounds[0].Target)
}

// checkPage after one good round and a bad one.
func checkPage(t *testing.T, metrics *Metrics, target Target) {
	t.Helper()
	page, err := metrics.Page(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	if _, err := parser.TextToMetricFamilies(bytes.NewReader(page)); err != nil {
		t.Error(err)
	}
	port := slices.Collect(strings.SplitSeq(target.Name, ":"))[2]
	labels := `port="` + port + `",protocol="tcp"`
	for _, want := range []string{
		`guideway_probe_answered_ratio{` + labels + `,service="",target="` + target.Name + `",vip="127.0.0.1"} 0`,
		`guideway_probe_attempts_total{` + labels + `,result="pass",service="",target="` + target.Name + `",vip="127.0.0.1"} 64`,
		`guideway_probe_attempts_total{` + labels + `,result="fail",service="",target="` + target.Name + `",vip="127.0.0.1"} 64`,
		`guideway_probe_duration_seconds_count{` + labels + `,service="",target="` + target.Name + `",vip="127.0.0.1"} 64`,
		`guideway_probe_last_round_timestamp_seconds{` + labels,
		`guideway_build_info{goversion=`,
	} {
		if !strings.Contains(string(page), "\n"+want) {
			t.Errorf("the page lacks %s\n%s", want, page)
		}
	}
}

func TestSharesAreNamedAsFractions(t *testing.T) {
	for _, one := range []struct{ failed, tried, a, b int }{
		{32, 64, 1, 2}, {28, 64, 1, 2}, {21, 64, 1, 3}, {22, 64, 1, 3}, {43, 64, 2, 3}, {16, 64, 1, 4}, {13, 64, 1, 5}, {48, 64, 3, 4}, {4, 64, 1, 8}, {63, 64, 7, 8},
	} {
		if a, b := fractionOf(one.failed, one.tried); a != one.a || b != one.b {
			t.Errorf("%d of %d is called %d/%d, wanted %d/%d", one.failed, one.tried, a, b, one.a, one.b)
		}
	}
	for failed, want := range map[int]string{0: "", 1: "single attempts", 2: "single attempts", 64: "no source port"} {
		round := Round{Tried: 64, Latencies: make([]time.Duration, 64-failed)}
		if got := round.Hint(); !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("%d of 64: %q", failed, got)
		}
	}
}

func TestSettingsThatCannotWorkAreRefused(t *testing.T) {
	for want, change := range map[string]func(*Settings){
		"--source-ports is 0":                    func(s *Settings) { s.SourcePorts = 0 },
		"--source-ports is 65, and this machine": func(s *Settings) { s.SourcePorts = 65 },
		"--interval is 100ms":                    func(s *Settings) { s.Interval = 100 * time.Millisecond },
		"--timeout is 6s":                        func(s *Settings) { s.Timeout = 6 * time.Second },
		"--timeout is 0s":                        func(s *Settings) { s.Timeout = 0 },
		"give fewer targets":                     func(s *Settings) { s.Timeout = 5 * time.Second },
	} {
		settings := sixtyFour
		if err := settings.Check(160); err != nil {
			t.Fatal(err)
		}
		change(&settings)
		if err := settings.Check(160); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, wanted %q", err, want)
		}
	}
}
