package main

import (
	"strings"
	"testing"
)

// One event per line, as `go test -json` writes them.
const events = `{"Action":"start","Package":"github.com/guideway/guideway/a"}
{"Action":"run","Package":"github.com/guideway/guideway/a","Test":"TestGood"}
{"Action":"output","Package":"github.com/guideway/guideway/a","Test":"TestGood","Output":"    a_test.go:3: chatter of a good test\n"}
{"Action":"attr","Package":"github.com/guideway/guideway/a","Test":"TestGood","Key":"lab_seconds","Value":"7.5"}
{"Action":"attr","Package":"github.com/guideway/guideway/a","Test":"TestGood/more","Key":"lab_seconds","Value":"12.0"}
{"Action":"pass","Package":"github.com/guideway/guideway/a","Test":"TestGood/more"}
{"Action":"pass","Package":"github.com/guideway/guideway/a","Test":"TestGood"}
{"Action":"run","Package":"github.com/guideway/guideway/a","Test":"TestRoot"}
{"Action":"output","Package":"github.com/guideway/guideway/a","Test":"TestRoot","Output":"=== RUN   TestRoot\n"}
{"Action":"output","Package":"github.com/guideway/guideway/a","Test":"TestRoot","Output":"    a_test.go:7: needs root: builds namespaces\n"}
{"Action":"output","Package":"github.com/guideway/guideway/a","Test":"TestRoot","Output":"--- SKIP: TestRoot (0.00s)\n"}
{"Action":"skip","Package":"github.com/guideway/guideway/a","Test":"TestRoot"}
{"Action":"output","Package":"github.com/guideway/guideway/a","Test":"TestBad","Output":"    a_test.go:9: got 1, want 2\n        more of it\n"}
{"Action":"fail","Package":"github.com/guideway/guideway/a","Test":"TestBad"}
{"Action":"output","Package":"github.com/guideway/guideway/a","Output":"PASS\n"}
{"Action":"output","Package":"github.com/guideway/guideway/a","Output":"FAIL\tgithub.com/guideway/guideway/a\t0.1s\n"}
{"Action":"output","Package":"github.com/guideway/guideway/b","Test":"TestHangs","Output":"panic: test timed out\n"}
not json at all
{"Action":"build-output","ImportPath":"c","Output":"c/c.go:1:1: expected 'package'\n"}
`

func TestReportShowsFailuresAndSkipsAndHidesTheRest(t *testing.T) {
	var out strings.Builder
	seen, err := report(strings.NewReader(events), &out)
	if err != nil {
		t.Fatal(err)
	}
	if len(seen.skipped) != 1 || seen.skipped[0] != "a TestRoot: needs root: builds namespaces" {
		t.Errorf("skipped = %q", seen.skipped)
	}
	if got := seen.results; got["pass"] != 1 || got["fail"] != 1 || got["skip"] != 1 {
		t.Errorf("results %v", got)
	}
	var labs strings.Builder
	printLabs(&labs, seen.labs)
	if want := "seconds of 2 labs, 20 in all:\n   12.0  TestGood/more\n    7.5  TestGood\n"; labs.String() != want {
		t.Errorf("labs:\n%s", labs.String())
	}
	var said strings.Builder
	printSaid(&said, seen.said)
	if want := "said by failed tests:\nTestBad: a_test.go:9: got 1, want 2\n"; said.String() != want {
		t.Errorf("said:\n%s", said.String())
	}
	for _, want := range []string{
		"got 1, want 2", "FAIL\tgithub.com", "skip a TestRoot", "test timed out", "not json at all", "expected 'package'",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
	for _, unwanted := range []string{"chatter", "PASS\n", "=== RUN"} {
		if strings.Contains(out.String(), unwanted) {
			t.Errorf("output has %q:\n%s", unwanted, out.String())
		}
	}
}

func TestExitStatusIsThatOfGoTest(t *testing.T) {
	var out strings.Builder
	status, err := run([]string{"./no/such/package"}, &out, "", "")
	if err != nil || status == 0 {
		t.Fatalf("status %d, error %v, output:\n%s", status, err, out.String())
	}
}
