package main

import (
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// script is a program of tests in two lines of shell.
func script(t *testing.T, name, text string) program {
	t.Helper()
	folder := t.TempDir()
	file := filepath.Join(folder, "program")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return program{name, folder, []string{"sh", file}}
}

// Fails in every third run.
const flaky = `echo >>runs
echo 'test steady ... ok'
[ $(($(wc -l <runs) % 3)) = 0 ] || { echo 'test flaky ... ok'; exit 0; }
echo 'test flaky ... FAILED'
exit 1
`

func TestWhatFailedAtTimesIsListedWithHowOftenAndItsLogs(t *testing.T) {
	var out strings.Builder
	o := options{times: 7, limit: 10 * time.Second, output: &out, logs: filepath.Join(t.TempDir(), "logs"), load: 1}
	programs := []program{
		script(t, "crate/some", flaky),
		script(t, "good", "echo '--- PASS: TestGood (0.00s)'\n"),
		script(t, "crashes", "echo '--- PASS: TestBefore (0.00s)'; kill -SEGV $$\n"),
	}
	failed, err := soak(t.Context(), programs, o)
	if err != nil || !failed {
		t.Fatalf("failed %v, %v:\n%s", failed, err, out.String())
	}
	for _, want := range []string{
		"21 runs of 3 programs in ", "2 of 5 tests failed at times:",
		"crashes (the program)  7 of 7  ",
		"crate/some flaky       2 of 7  " + filepath.Join(o.logs, "crate-some.3.log") + " " + filepath.Join(o.logs, "crate-some.6.log") + "\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	left, err := filepath.Glob(filepath.Join(o.logs, "*"))
	if err != nil || len(left) != 2+7 {
		t.Errorf("logs %v, %v", left, err)
	}
	if log, err := os.ReadFile(filepath.Join(o.logs, "crate-some.6.log")); err != nil || !strings.Contains(string(log), "flaky ... FAILED") {
		t.Errorf("log %q, %v", log, err)
	}
}

func TestWhenNothingFailsItIsSaid(t *testing.T) {
	var out strings.Builder
	o := options{times: 2, limit: 10 * time.Second, output: &out, logs: t.TempDir()}
	failed, err := soak(t.Context(), []program{script(t, "good", "echo 'test a ... ok'\n")}, o)
	if err != nil || failed || !strings.Contains(out.String(), "1 tests, none of them failed") {
		t.Errorf("failed %v, %v:\n%s", failed, err, out.String())
	}
	if _, err := soak(t.Context(), []program{script(t, "empty", "true\n")}, o); err == nil {
		t.Error("tests that find nothing to test are no success")
	}
}

func TestAProgramThatHangsIsEndedAndFails(t *testing.T) {
	var out strings.Builder
	o := options{times: 1, limit: 200 * time.Millisecond, output: &out, logs: t.TempDir()}
	begun := time.Now()
	failed, err := soak(t.Context(), []program{script(t, "hangs", "sleep 60 & wait\n")}, o)
	if err != nil || !failed || !strings.Contains(out.String(), "hangs (the program)  1 of 1") {
		t.Errorf("failed %v, %v:\n%s", failed, err, out.String())
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestWhenTheTimeIsOverNothingMoreIsStarted(t *testing.T) {
	var out strings.Builder
	o := options{times: math.MaxInt, lasting: 300 * time.Millisecond, limit: 10 * time.Second, output: &out, logs: t.TempDir()}
	if failed, err := soak(t.Context(), []program{script(t, "good", "echo 'test a ... ok'\n")}, o); err != nil || failed {
		t.Errorf("failed %v, %v:\n%s", failed, err, out.String())
	}
}

func TestResultsOfBothHarnessesAreRead(t *testing.T) {
	const output = `running 3 tests
test one ... ok
test module::two ... FAILED
test three ... ignored
=== RUN   TestAll
    a_test.go:1: chatter
--- FAIL: TestAll (0.10s)
    --- FAIL: TestAll/second (0.10s)
        --- FAIL: TestAll/second/part (0.10s)
    --- PASS: TestAll/first (0.00s)
--- SKIP: TestRoot (0.00s)
test result: FAILED. 1 passed; 1 failed
`
	want := map[string]bool{"one": true, "module::two": false, "TestAll/second/part": false, "TestAll/first": true}
	if got := resultsIn(output); !maps.Equal(got, want) {
		t.Errorf("results %v", got)
	}
}

func TestProgramsAreFoundByWhatTheirTestsDo(t *testing.T) {
	tree := fstest.MapFS{
		"agent/tests/namespaces.rs":     {Data: []byte("run(\"ip netns add\")")},
		"agent/tests/common/mod.rs":     {Data: []byte("netns")},
		"wire/tests/parse.rs":           {Data: []byte("parse()")},
		"target/debug/tests/x.rs":       {Data: []byte("netns")},
		"lab/scenarios/e2e_test.go":     {Data: []byte("netns")},
		"lab/hosts/lab.go":              {Data: []byte("netns")},
		"controller/controller_test.go": {Data: []byte("exec.Command(\"unshare\", ")},
	}
	rust, err := filesInNamespaces(tree, ".rs")
	if err != nil || !slices.Equal(rust, []string{"agent/tests/common/mod.rs", "agent/tests/namespaces.rs"}) {
		t.Errorf("Rust %v, %v", rust, err)
	}
	golang, err := filesInNamespaces(tree, "_test.go")
	if err != nil || !slices.Equal(golang, []string{"controller/controller_test.go", "lab/scenarios/e2e_test.go"}) {
		t.Errorf("Go %v, %v", golang, err)
	}
	crate := func(file string) (string, bool) { owner, _, found := strings.Cut(file, "/tests/"); return owner, found }
	if owners := ownersOf(rust, crate); !slices.Equal(owners, []string{"agent"}) {
		t.Errorf("crates %v", owners)
	}
	const messages = `{"reason":"compiler-artifact","target":{"name":"wire","kind":["lib"]},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/tree/agent/Cargo.toml","target":{"name":"namespaces","kind":["test"]},"profile":{"test":true},"executable":"/t/namespaces-1"}
{"reason":"compiler-artifact","manifest_path":"/tree/agent/Cargo.toml","target":{"name":"guideway-agent","kind":["bin"]},"profile":{"test":false},"executable":"/t/guideway-agent"}
{"reason":"compiler-artifact","manifest_path":"/tree/agent/Cargo.toml","target":{"name":"guideway-agent","kind":["bin"]},"profile":{"test":true},"executable":"/t/guideway_agent-2"}
{"reason":"compiler-artifact","manifest_path":"/tree/wire/Cargo.toml","target":{"name":"parse","kind":["test"]},"profile":{"test":true},"executable":"/t/parse-1"}
{"reason":"build-finished","success":true}
`
	programs, err := executables([]byte(messages), []string{"/tree/agent"})
	if err != nil || len(programs) != 2 || programs[0].name != "agent/namespaces" || programs[1].name != "agent/guideway-agent-bin" ||
		programs[0].args[0] != "/t/namespaces-1" || programs[0].dir != "/tree/agent" {
		t.Errorf("programs %v, %v", programs, err)
	}
}

func TestTimesAndMinutesBoundTheRun(t *testing.T) {
	if o, _, err := parse([]string{"-minutes", "60"}); err != nil || o.times < 1<<30 || o.lasting != time.Hour {
		t.Errorf("%+v, %v", o, err)
	}
	if o, only, err := parse([]string{"-times", "3", "-minutes", "1", "-only", "^lab/scenarios/"}); err != nil || o.times != 3 || !only.MatchString("lab/scenarios/TestFloods") || only.MatchString("nic/lab/") {
		t.Errorf("%+v, %v, %v", o, only, err)
	}
	for _, bad := range [][]string{{"-times", "0"}, {"-only", "("}, {"-minutes", "-1"}, {"more"}} {
		if _, _, err := parse(bad); err == nil {
			t.Errorf("%v: no error", bad)
		}
	}
}
