// Gotest runs `go test` with its arguments and shortens its output, but keeps what `go test`
// hides: the names of skipped tests.
//
// It prints what `go test` prints without -v (one line per package, the whole output of failed
// tests), a line per skipped test, the duration of each lab that reported one (the attribute
// lab_seconds), and last the messages of failed tests, one line each. It appends the skipped
// tests to the file SKIPPED_FILE, and the numbers of passed, failed and skipped tests, without
// subtests, to the file COUNTS_FILE. Its exit status is that of go test.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func main() {
	status, err := run(os.Args[1:], os.Stdout, os.Getenv("SKIPPED_FILE"), os.Getenv("COUNTS_FILE"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(2)
	}
	os.Exit(status)
}

func run(args []string, out io.Writer, skippedFile, countsFile string) (status int, err error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return 0, fmt.Errorf("pipe from go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start go test: %w", err)
	}
	seen, readErr := report(events, out)
	waitErr := cmd.Wait()
	printLabs(out, seen.labs)
	printSaid(out, seen.said)
	counts := fmt.Sprintf("%d %d %d", seen.results["pass"], seen.results["fail"], seen.results["skip"])
	if err := errors.Join(readErr, appendLines(skippedFile, seen.skipped), appendLines(countsFile, []string{counts})); err != nil {
		return 0, err
	}
	var exit *exec.ExitError
	if errors.As(waitErr, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, waitErr
}

// event is one line of test2json (see `go doc test2json`).
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Key     string
	Value   string
}

// summary of a run.
type summary struct {
	// skipped: a line for each test.
	skipped []string
	// labs and how long each took.
	labs []lab
	// said by failed tests: the first line of each message.
	said []string
	// results of tests that are no subtests: how many there are of each action.
	results map[string]int
}

type lab struct {
	name    string
	seconds float64
}

// report copies what people need to see from events to out.
func report(events io.Reader, out io.Writer) (seen summary, err error) {
	seen.results = map[string]int{}
	held := map[string]*strings.Builder{} // output of tests not yet finished
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			// Output of a test binary that died can run into ours.
			fmt.Fprintln(out, lines.Text())
			continue
		}
		key := e.Package + " " + e.Test
		seen.enter(e, held[key])
		switch {
		case e.Action == "build-output":
			fmt.Fprint(out, e.Output)
		case e.Action == "output" && e.Test == "":
			if !isNoise(e.Output) {
				fmt.Fprint(out, e.Output)
			}
		case e.Action == "output":
			if held[key] == nil {
				held[key] = &strings.Builder{}
			}
			held[key].WriteString(e.Output)
		case e.Action == "fail" && held[key] != nil:
			fmt.Fprint(out, held[key])
			seen.enterSaid(e.Test, held[key].String())
			delete(held, key)
		case e.Action == "skip" && e.Test != "":
			fmt.Fprintln(out, "skip", seen.skipped[len(seen.skipped)-1])
			delete(held, key)
		case e.Action == "pass":
			delete(held, key)
		}
	}
	if err := lines.Err(); err != nil {
		return seen, fmt.Errorf("read go test's events: %w", err)
	}
	for key, rest := range held { // never finished: a crash or a timeout
		fmt.Fprint(out, rest)
		seen.enterSaid(key, rest.String())
	}
	return seen, nil
}

// enter what an event says of a test; output is the test's until now.
func (s *summary) enter(e event, output *strings.Builder) {
	if e.Test == "" {
		return
	}
	if !strings.Contains(e.Test, "/") {
		s.results[e.Action]++
	}
	switch {
	case e.Action == "skip":
		s.skipped = append(s.skipped, fmt.Sprintf("%s %s: %s", shortPackage(e.Package), e.Test, skipReason(output)))
	case e.Action == "attr" && e.Key == "lab_seconds":
		if seconds, err := strconv.ParseFloat(e.Value, 64); err == nil {
			s.labs = append(s.labs, lab{e.Test, seconds})
		}
	}
}

// One of a test's messages begins with its file and line.
var message = regexp.MustCompile(`(?m)^ +\w+_test\.go:\d+: .*`)

// enterSaid what a failed test said. The reason is among the last: a failure ends most tests.
func (s *summary) enterSaid(test, output string) {
	const linesMax, bytesMax = 12, 300
	said := message.FindAllString(output, -1)
	for _, line := range said[max(0, len(said)-linesMax):] {
		line = strings.TrimSpace(line)
		s.said = append(s.said, test+": "+line[:min(len(line), bytesMax)])
	}
}

func printSaid(out io.Writer, said []string) {
	if len(said) > 0 {
		fmt.Fprintf(out, "said by failed tests:\n%s\n", strings.Join(said, "\n"))
	}
}

// printLabs, the longest first.
func printLabs(out io.Writer, labs []lab) {
	if len(labs) == 0 {
		return
	}
	slices.SortStableFunc(labs, func(a, b lab) int { return cmp.Compare(b.seconds, a.seconds) })
	sum := 0.0
	for _, l := range labs {
		sum += l.seconds
	}
	fmt.Fprintf(out, "seconds of %d labs, %.0f in all:\n", len(labs), sum)
	for _, l := range labs {
		fmt.Fprintf(out, "%7.1f  %s\n", l.seconds, l.name)
	}
}

// isNoise reports package-level lines that `go test` without -v does not show.
func isNoise(line string) bool {
	return line == "PASS\n" || strings.HasPrefix(line, "?   ") || strings.Contains(line, "no tests to run")
}

func shortPackage(path string) string {
	const module = "github.com/guideway/guideway/"
	return strings.TrimPrefix(path, module)
}

// skipReason is the text given to t.Skip: the output's line between the
// test's start and its result, without file and line.
func skipReason(output *strings.Builder) string {
	if output == nil {
		return "no reason given"
	}
	for line := range strings.Lines(output.String()) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---") {
			continue
		}
		if _, reason, found := strings.Cut(line, ": "); found {
			return reason
		}
		return line
	}
	return "no reason given"
}

func appendLines(file string, lines []string) error {
	if file == "" || len(lines) == 0 {
		return nil
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("list of skipped tests: %w", err)
	}
	_, err = f.WriteString(strings.Join(lines, "\n") + "\n")
	return errors.Join(err, f.Close())
}
