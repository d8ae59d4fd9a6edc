package report

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func exampleReport() *Report {
	ms := 6.5
	return &Report{
		Agents: true,
		Events: []EventResult{{
			Name: "kill_backend", Requests: 12345, Failed: 3, FailedAllowed: 3, Connections: 500, Broken: 120, BrokenAllowed: 125,
			LongestPauseMS: 412, PauseAllowedMS: 1000,
			Packets: map[string]uint64{"lb-1": 1000, "lb-2": 2000},
		}},
		Shares:     []Share{{Backend: "be-1", Share: 0.5, Ideal: 0.5, Sigma: 0.01}},
		WithdrawMS: &ms, Machines: []string{"lb-1", "lb-2"},
	}
}

// The names are a contract with those who read the file.
func TestTheReportHasTheAgreedFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	if err := exampleReport().Write(path); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, content); err != nil {
		t.Fatal(err)
	}
	want := `{"agents":true,"events":[{"name":"kill_backend","requests":12345,"failed":3,"failed_allowed":3,"connections":500,"broken":120,"broken_allowed":125,"longest_pause_ms":412,"pause_allowed_ms":1000}],` +
		`"shares":[{"backend":"be-1","share":0.5,"ideal":0.5,"sigma":0.01}],"withdraw_ms":6.5,"unaccounted_packets":0}`
	if compact.String() != want {
		t.Errorf("report\n%s\nwant\n%s", compact.String(), want)
	}
}

func TestTheScreenNamesWhatWentWrong(t *testing.T) {
	report := exampleReport()
	var good, bad strings.Builder
	report.Print(&good)
	if !report.Good() || !strings.Contains(good.String(), "everything as expected") || !strings.Contains(good.String(), "12,345") {
		t.Errorf("screen\n%s", good.String())
	}
	report.Events[0].Problem("%d packets vanished", 7)
	report.LeftOut = []string{"generations_apart: a router has to rehash flows"}
	report.Print(&bad)
	if report.Good() || !strings.Contains(bad.String(), "FAILED kill_backend: 7 packets vanished") || !strings.Contains(bad.String(), "\nleft out: generations_apart: a router has to rehash flows\n") || !strings.Contains(bad.String(), "NOT as expected") {
		t.Errorf("screen\n%s", bad.String())
	}
	if lines := strings.Count(good.String(), "\n"); lines > 24 {
		t.Errorf("%d lines do not fit one screen", lines)
	}
}

// What matters comes first, in plain words, and breaks that are allowed have their reason.
func TestTheScreenFitsATerminalAndBeginsWithTheVerdict(t *testing.T) {
	report := exampleReport()
	report.Events[0].Words, report.Events[0].May = "a server dies", "its own connections, and requests until probes find out"
	report.Events[0].Detail = "be-3 found down after 0.6 s"
	report.Events[0].Broken = 127
	var screen, multipath strings.Builder
	report.Print(&screen)
	for _, wanted := range []string{
		"\n2 of 500 connections broken, 0 of 12,345 requests failed that did not have to:\n",
		"a server dies                                  12,345       3     127    412 ms\n",
		"    allowed: 3 requests, 125 connections (its own connections, and requests\n    until probes find out)\n",
		"packets: lb-1 1,000, lb-2 2,000; unaccounted for: 0",
	} {
		if !strings.Contains(screen.String(), wanted) {
			t.Errorf("%q is missing in\n%s", wanted, screen.String())
		}
	}
	(&Multipath{Mode: "stateless", Events: []MultipathEvent{{Name: "cut_link", Transfers: 12345, SecondSubflowBytes: 12345678901}}}).Print(&multipath)
	for line := range strings.Lines(screen.String() + multipath.String()) {
		if len(line) > width+1 || strings.Contains(line, "\x1b") {
			t.Errorf("%d columns: %q", len(line)-1, line)
		}
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -123: "-123", -1234: "-1,234"} {
		if got := thousands(n); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}

func TestSharesWithinFivePerCentOrFourSigma(t *testing.T) {
	tests := map[string]struct {
		counts map[string]int
		good   bool
	}{
		"even":                         {map[string]int{"a": 10_000, "b": 10_000}, true},
		"4.9 % off":                    {map[string]int{"a": 10_490, "b": 9_510}, true},
		"5.1 % off":                    {map[string]int{"a": 10_510, "b": 9_490}, false},
		"few, so chance has more room": {map[string]int{"a": 60, "b": 40}, true},
		"one got nothing":              {map[string]int{"a": 20_000}, false},
		"one that should not serve":    {map[string]int{"a": 10_000, "b": 10_000, "c": 1}, false},
	}
	for name, test := range tests {
		good := true
		for _, share := range NewShares(test.counts, []string{"a", "b"}) {
			good = good && share.Good()
		}
		if good != test.good {
			t.Errorf("%s: good is %v", name, good)
		}
	}
}

func TestSigmaIsThatOfABinomialShare(t *testing.T) {
	shares := NewShares(map[string]int{"a": 5_000, "b": 5_000, "c": 5_000, "d": 5_000}, []string{"a", "b", "c", "d"})
	// sqrt(0.75 / (20000 × 0.25))
	if got, want := shares[2].Sigma, 0.012247; math.Abs(got-want) > 1e-6 {
		t.Errorf("sigma %v, want %v", got, want)
	}
	if shares[0].Share != 0.25 || shares[0].Ideal != 0.25 || shares[0].Deviation() != 0 {
		t.Errorf("share %+v", shares[0])
	}
}
