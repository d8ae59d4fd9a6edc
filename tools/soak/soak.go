package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

type options struct {
	times int
	// lasting: no program is started later than that after the first; 0: no
	// limit.
	lasting time.Duration
	// limit of one run of a program.
	limit  time.Duration
	load   int
	output io.Writer
	logs   string
}

// tally of one test.
type tally struct {
	runs   int
	failed []string // the logs
}

// soak runs the programs in rounds, prints what failed, and whether any did.
func soak(ctx context.Context, programs []program, o options) (failed bool, err error) {
	if err := os.RemoveAll(o.logs); err != nil {
		return false, err
	}
	if err := os.MkdirAll(o.logs, 0o755); err != nil {
		return false, err
	}
	loading, unload := context.WithCancel(ctx)
	defer unload()
	for range o.load {
		go func() {
			for loading.Err() == nil {
			}
		}()
	}
	begun, runs, tallies := time.Now(), 0, map[string]*tally{}
rounds:
	for round := 1; round <= o.times; round++ {
		for _, p := range programs {
			if ctx.Err() != nil || o.lasting > 0 && time.Since(begun) > o.lasting {
				break rounds
			}
			log := filepath.Join(o.logs, fmt.Sprintf("%s.%d.log", strings.ReplaceAll(p.name, "/", "-"), round))
			results, err := p.run(ctx, o.limit, log)
			if err != nil {
				return false, err
			}
			if ctx.Err() != nil {
				break // it was cut short, which says nothing
			}
			runs++
			o.enter(p, results, log, tallies)
		}
	}
	fmt.Fprintf(o.output, "\n%d runs of %d programs in %v\n", runs, len(programs), time.Since(begun).Round(time.Second))
	if len(tallies) == 0 {
		return false, errors.New("no test was run")
	}
	return report(o.output, tallies), nil
}

// enter the results of one run; only logs of failures are kept.
func (o options) enter(p program, results map[string]bool, log string, tallies map[string]*tally) {
	var bad []string
	for _, test := range slices.Sorted(maps.Keys(results)) {
		name := p.name + " " + test
		if tallies[name] == nil {
			tallies[name] = &tally{}
		}
		tallies[name].runs++
		if !results[test] {
			bad = append(bad, test)
			tallies[name].failed = append(tallies[name].failed, log)
		}
	}
	if len(bad) == 0 {
		_ = os.Remove(log) // what stays is only more to read
		return
	}
	fmt.Fprintf(o.output, "%s FAILED %s: %s: see %s\n", time.Now().Format("15:04:05"), p.name, strings.Join(bad, ", "), log)
}

// report what failed, the most frequent first.
func report(output io.Writer, tallies map[string]*tally) (failed bool) {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(tallies)), func(name string) bool { return len(tallies[name].failed) == 0 })
	if len(names) == 0 {
		fmt.Fprintf(output, "%d tests, none of them failed\n", len(tallies))
		return false
	}
	slices.SortStableFunc(names, func(a, b string) int { return len(tallies[b].failed) - len(tallies[a].failed) })
	fmt.Fprintf(output, "%d of %d tests failed at times:\n", len(names), len(tallies))
	table := tabwriter.NewWriter(output, 0, 0, 2, ' ', 0)
	for _, name := range names {
		t := tallies[name]
		fmt.Fprintf(table, "  %s\t%d of %d\t%s\n", name, len(t.failed), t.runs, strings.Join(t.failed, " "))
	}
	_ = table.Flush()
	return true
}

// Results as Rust's harness and Go's write them; subtests are indented.
var (
	rustResult = regexp.MustCompile(`(?m)^test (\S+)(?: - should panic)? \.\.\. (?:.*\b)?(ok|FAILED)$`)
	goResult   = regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL): (\S+)`)
)

// whole is the name under which a program fails that names no failed test.
const whole = "(the program)"

// run a program once: which tests passed. Its output is in log. It leads a
// process group, so that nothing outlives its limit.
func (p program) run(ctx context.Context, limit time.Duration, log string) (map[string]bool, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	command := exec.CommandContext(limited, p.args[0], p.args[1:]...)
	command.Dir, command.Stdout, command.Stderr = p.dir, file, file
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = time.Second
	ended := command.Run()
	if limited.Err() != nil {
		fmt.Fprintf(file, "\nsoak: killed: %v after %v\n", limited.Err(), limit)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		return nil, err
	}
	results := resultsIn(string(text))
	if ended != nil && !slices.Contains(slices.Collect(maps.Values(results)), false) {
		fmt.Fprintf(file, "\nsoak: %v\n", ended)
		results[whole] = false
	}
	return results, nil
}

// resultsIn the output of a test program. A parent of a failed subtest fails
// because of it, and is left out.
func resultsIn(text string) map[string]bool {
	results := map[string]bool{}
	for _, match := range rustResult.FindAllStringSubmatch(text, -1) {
		results[match[1]] = match[2] == "ok"
	}
	for _, match := range goResult.FindAllStringSubmatch(text, -1) {
		results[match[2]] = match[1] == "PASS"
	}
	failed := slices.DeleteFunc(slices.Collect(maps.Keys(results)), func(test string) bool { return results[test] })
	for _, parent := range failed {
		if slices.ContainsFunc(failed, func(test string) bool { return strings.HasPrefix(test, parent+"/") }) {
			delete(results, parent)
		}
	}
	return results
}
