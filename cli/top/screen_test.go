package top

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/rates"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

var at = time.Date(2026, 11, 29, 3, 16, 27, 0, time.UTC)

func rate(service, backend string, packets float64) *controllerv1.Rate {
	return &controllerv1.Rate{Service: service, Backend: backend, Packets: packets, Bytes: 1000 * packets, NewConnections: packets / 20}
}

// ratesOf so many busy services, of which the API has sent some.
func ratesOf(services int) *controllerv1.Rates {
	r := &controllerv1.Rates{
		Machine: "lb-1", Time: timestamppb.New(at), Seconds: 1, ServicesBusy: uint32(services), BackendsBusy: uint32(2 * services),
		Workers: []*controllerv1.WorkerLoad{{Name: "worker-0", BusyRatio: 0.12}, {Name: "worker-1", BusyRatio: 0.97}},
	}
	for i := range min(services, rates.RowsUsual) {
		packets := 1_234_567.0 / float64(i*i+1)
		r.Services = append(r.Services, rate(fmt.Sprintf("web-%d", i), "", packets))
		r.Backends = append(r.Backends, rate(fmt.Sprintf("web-%d", i), "a", packets/2), rate(fmt.Sprintf("web-%d", i), "b", packets/2))
		r.Sent += packets
		r.Bytes += 1000 * packets
		r.NewConnections += packets / 20
	}
	r.Received = r.Sent
	return r
}

func withDrops(r *controllerv1.Rates) *controllerv1.Rates {
	for i, reason := range []string{"no_service", "too_big", "no_backend", "queue_full"} {
		r.Dropped = append(r.Dropped, &controllerv1.DropRate{
			Reason: reason, Packets: float64(3400 / (i + 1)),
			Meaning: "The packet of " + reason + " is for nobody here, which takes a long sentence to say.", UsualCause: "Scans of the network, or a service that is not configured yet.",
		})
	}
	return r
}

// withAnswers of each second backend: agents measure them.
func withAnswers(r *controllerv1.Rates) *controllerv1.Rates {
	for i, backend := range r.Backends {
		if i%2 == 0 {
			backend.Answers = &controllerv1.Answers{Measured: 900, P99Seconds: proto.Float64(0.0143 * float64(i*i*i*i+1)), Open: 1.25 * float64(i)}
		}
	}
	r.Backends[4].Answers.P99Seconds = nil // none was measured
	return r
}

// heard is a model that has heard of machines a while ago.
func heard(ago time.Duration, machines ...watched) *model {
	m := &model{sort: "packets", limit: rates.RowsUsual, now: observation{at: at, machines: map[string]watched{}}}
	for _, w := range machines {
		w.heard = at.Add(-ago)
		m.now.machines[w.name] = w
		m.isFleet = w.name != ""
	}
	return m
}

func pressed(m *model, keys ...string) *model {
	for _, key := range keys {
		m.press(key)
	}
	return m
}

// scrolled by keys, on a terminal that shows each step.
func scrolled(m *model, keys ...string) *model {
	m.width, m.height = 80, 24
	for _, key := range keys {
		m.screen()
		m.press(key)
	}
	return m
}

func strangers() *controllerv1.Rates {
	r := ratesOf(0)
	r.Machine = "lb\x1b[2J-1"
	r.Services = []*controllerv1.Rate{
		rate(strings.Repeat("a-long-name-", 12), "", 5), rate("web\x1b]0;owned\a\n\u009b31m", "", 4), rate("größer-日本", "", 3), rate("\xff\xfe", "", 2),
	}
	r.Dropped = []*controllerv1.DropRate{{Reason: "a\rb", Packets: 1, Meaning: "x\x1b[Hy"}}
	return r
}

func aFleet() *model {
	away := errors.New("lb-3: the controller at 10.0.0.3:9471 does not answer (connection refused): does it run, with `api: {listen: …}` in its config, and may this machine connect there?; trying again")
	second := withDrops(ratesOf(3))
	second.Machine = "lb-2"
	return heard(time.Second, watched{name: "lb-1", rates: ratesOf(20)}, watched{name: "lb-2", rates: second}, watched{name: "lb-3", rates: ratesOf(9), trouble: away.Error()}, watched{name: "lb-4"})
}

func screens() map[string]*model {
	manyWorkers := ratesOf(1)
	manyWorkers.Workers = nil
	for i := range 64 {
		manyWorkers.Workers = append(manyWorkers.Workers, &controllerv1.WorkerLoad{Name: fmt.Sprintf("worker-%d", i), BusyRatio: float64((i*37)%64) / 64})
	}
	incomplete := aFleet()
	incomplete.now.incomplete = "etcd is unreachable: machines are those of a minute ago"
	return map[string]*model{
		"services":                     heard(0, watched{rates: withDrops(ratesOf(10_000))}),
		"services by new connections":  pressed(heard(0, watched{rates: ratesOf(30)}), "n"),
		"backends":                     pressed(heard(0, watched{rates: ratesOf(10_000)}), "b"),
		"backends with answers":        pressed(heard(0, watched{rates: withAnswers(ratesOf(3))}), "b"),
		"services scrolled":            scrolled(heard(0, watched{rates: ratesOf(10_000)}), pageDown, down, down, up),
		"services at the end":          scrolled(heard(0, watched{rates: ratesOf(30)}), pageDown, pageDown, pageDown, pageDown, pageDown, up),
		"drops":                        pressed(heard(0, watched{rates: withDrops(ratesOf(1))}), "d"),
		"nothing dropped":              pressed(heard(0, watched{rates: ratesOf(1)}), "d"),
		"no traffic":                   heard(0, watched{rates: ratesOf(0)}),
		"strange names":                heard(0, watched{rates: strangers()}),
		"64 workers":                   heard(0, watched{rates: manyWorkers}),
		"filter":                       pressed(heard(0, watched{rates: ratesOf(30)}), "/", "b", "-", "1", enter),
		"filter being typed":           pressed(heard(0, watched{rates: ratesOf(30)}), "/", "b", "\x1b", "x", backspace, "-"),
		"filter that fits nothing":     pressed(heard(0, watched{rates: ratesOf(30)}), "/", "\"", enter),
		"help":                         pressed(heard(0, watched{rates: ratesOf(30)}), "?"),
		"waiting":                      heard(0, watched{}),
		"waiting for long":             heard(20*time.Second, watched{}),
		"silent":                       heard(7*time.Second, watched{rates: ratesOf(30)}),
		"forwarder down":               heard(0, watched{rates: &controllerv1.Rates{Machine: "lb-1", Problem: "the forwarder at /run/guideway/forwarder.sock: connection refused"}}),
		"controller away":              heard(time.Second, watched{rates: ratesOf(30), trouble: "lb-1: the controller does not answer at /run/guideway/controller/controller-view.sock (connection refused): start it; trying again"}),
		"fleet":                        aFleet(),
		"fleet by machine":             pressed(aFleet(), "m"),
		"fleet that may be incomplete": pressed(incomplete, "m"),
	}
}

// What screens show at three sizes; UPDATE_GOLDEN=1 rewrites it.
func Test_screens_are_as_reviewed(t *testing.T) {
	for name, m := range screens() {
		var got bytes.Buffer
		for _, size := range []struct{ width, height int }{{80, 24}, {40, 10}, {132, 43}} {
			m.width, m.height = size.width, size.height
			fmt.Fprintf(&got, "%d x %d\n", size.width, size.height)
			for _, l := range m.screen() {
				if l.isTitle {
					fmt.Fprintf(&got, "[%-*s]\n", size.width, l.text)
				} else {
					fmt.Fprintf(&got, "|%-*s|\n", size.width, l.text)
				}
			}
		}
		file := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".txt")
		if os.Getenv("UPDATE_GOLDEN") != "" {
			if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		reviewed, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(reviewed, got.Bytes()) {
			t.Errorf("%s: %v: UPDATE_GOLDEN=1, and read the difference:\n%s", name, err, got.String())
		}
	}
}

// Whatever the size is: no line is longer, there are no more lines, and no character is a
// command.
func Test_screens_fit_every_terminal(t *testing.T) {
	for name, m := range screens() {
		for _, size := range []struct{ width, height int }{{0, 0}, {1, 1}, {1, 60}, {200, 1}, {7, 3}, {33, 12}, {1000, 300}} {
			m.width, m.height = size.width, size.height
			lines := m.screen()
			if len(lines) != size.height {
				t.Errorf("%s: %d lines on %v", name, len(lines), size)
			}
			for _, l := range lines {
				if len([]rune(l.text)) > size.width || strings.ContainsFunc(l.text, unicode.IsControl) {
					t.Errorf("%s: %q on %v", name, l.text, size)
				}
			}
		}
	}
}

// What is not of now is not shown, on any view.
func Test_numbers_that_are_not_current_are_not_shown(t *testing.T) {
	for name, wrong := range map[string]*model{
		"silent":  heard(staleAfter+time.Second, watched{rates: ratesOf(30)}),
		"trouble": heard(0, watched{rates: ratesOf(30), trouble: "away"}),
		"problem": heard(0, watched{rates: &controllerv1.Rates{Problem: "down", Received: 1_234_567}}),
	} {
		wrong.width, wrong.height = 80, 24
		for range wrong.views() {
			for _, l := range wrong.screen() {
				if strings.Contains(l.text, "1.2M") || strings.Contains(l.text, "web-") {
					t.Errorf("%s: %q", name, l.text)
				}
			}
			wrong.press(tab)
		}
	}
}

func Test_a_pause_keeps_what_was_shown(t *testing.T) {
	m := heard(0, watched{rates: ratesOf(30)})
	m.width, m.height = 80, 24
	before := fmt.Sprint(m.screen()[1:])
	m.press(" ")
	m.now.at = at.Add(time.Hour)
	m.now.take(update{rates: ratesOf(0)}, false)
	if after := m.screen(); fmt.Sprint(after[1:]) != before || !strings.Contains(after[0].text, "PAUSED, of 03:16:27") {
		t.Errorf("%v", after)
	}
	m.press(" ")
	if lines := m.screen(); strings.Contains(lines[0].text, "PAUSED") || !strings.Contains(lines[1].text, "received 0/s") {
		t.Errorf("%v", lines)
	}
}

func Test_keys(t *testing.T) {
	for keys, want := range map[string]string{
		"":                "packets  0 ",
		"i":               "bytes  0 ",
		"right":           "bytes  0 ",
		"left":            "new_connections  0 ",
		"left right":      "packets  0 ",
		"tab tab":         "packets  2 ",
		"tab tab tab":     "packets  0 ",
		"m":               "packets  0 ", // no fleet
		"/ w q enter":     "packets wq 0 ",
		"/ w enter / x":   "packets w 0 wx",
		"/ w enter esc":   "packets  0 w",
		"/ backspace esc": "packets  0 ",
	} {
		m := pressed(heard(0, watched{rates: ratesOf(1)}), strings.Fields(keys)...)
		typed := m.typed
		if !m.isTyping && m.filter == m.typed {
			typed = ""
		}
		if got := fmt.Sprint(m.sort, " ", m.filter, " ", int(m.view), " ", typed); got != want {
			t.Errorf("%s: %q, want %q", keys, got, want)
		}
	}
	m := pressed(heard(0, watched{}), "/", "q")
	if m.press("x") || !m.press(ctrlC) {
		t.Error("a filter is typed until Ctrl-C")
	}
	if !heard(0).press("q") {
		t.Error("q")
	}
	for range 10_000 {
		m.press("a")
	}
	if len(m.typed) != filterMax {
		t.Error(len(m.typed))
	}
}

func Test_keys_of_terminals(t *testing.T) {
	for sent, want := range map[string]string{
		"q":                     `["q"] ""`,
		"\x03":                  `["ctrl-c"] ""`,
		"ab\r\x7f\t ":           `["a" "b" "enter" "backspace" "tab" " "] ""`,
		"\x1b[C\x1bOD\x1b[A":    `["right" "left" "up"] ""`,
		"\x1b[6~\x1b[5~\x1b[3~": `["page down" "page up" ""] ""`,
		"\x1b[1;5Cq":            `["right" "q"] ""`,
		"\x1b[24~q":             `["" "q"] ""`,
		"\x1b":                  `[] "\x1b"`,
		"x\x1b[1":               `["x"] "\x1b[1"`,
		"\x1bq":                 `["esc" "q"] ""`,
		"\x1b\x1b[C":            `["esc" "right"] ""`,
	} {
		keys, rest := parseKeys(sent, false)
		if got := fmt.Sprintf("%q %q", keys, rest); got != want {
			t.Errorf("%q: %s, want %s", sent, got, want)
		}
	}
	if keys, rest := parseKeys("\x1b", true); fmt.Sprint(keys, rest) != "[esc]" {
		t.Error(keys, rest)
	}
}

func FuzzKeys(f *testing.F) {
	f.Add("\x1b[1;5Cq", true)
	f.Add("/\x1b\x1bO", false)
	f.Fuzz(func(t *testing.T, sent string, isAll bool) {
		m := heard(0, watched{rates: ratesOf(3)})
		keys, rest := parseKeys(sent, isAll)
		if len(keys) > len(sent) || isAll && rest != "" || !strings.HasSuffix(sent, rest) {
			t.Errorf("%q %q", keys, rest)
		}
		pressed(m, keys...).screen()
	})
}

func Test_numbers_are_compact(t *testing.T) {
	for n, want := range map[float64]string{
		-5: "0", 0: "0", 0.04: "0", 0.06: "0.1", 1: "1.0", 9.94: "9.9", 9.96: "10", 34: "34", 999.4: "999", 999.6: "1.0k", 1234: "1.2k", 34_000: "34k",
		999_600: "1.0M", 1_234_567: "1.2M", 9.6e9: "9.6G", 1e15: "1.0P", 1e30: "much",
	} {
		if got := compact(n); got != want || len(got) > 5 {
			t.Errorf("%v: %s, want %s", n, got, want)
		}
	}
}

func TestMain(m *testing.M) {
	flag.Parse()
	time.Local = time.UTC
	os.Exit(m.Run())
}
