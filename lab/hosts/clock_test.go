package hosts

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Run again as a child, this program prints what it takes the time for.
func TestMain(m *testing.M) {
	if os.Getenv("PRINT_CLOCKS") == "" {
		os.Exit(m.Run())
	}
	began := time.Now()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(time.Now().UnixNano(), time.Since(began).Nanoseconds())
	}
}

func TestAProcessesWallClockIsSteppedAndNobodyElses(t *testing.T) {
	if err := CanStepClocks(); err != nil {
		t.Skip(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: it writes into another process")
	}
	// This program has no libc; bash has one, which looks the functions up by itself.
	// Both print nanoseconds, of the wall clock and since their start.
	for name, command := range map[string]*exec.Cmd{
		"Go": exec.Command(os.Args[0]),
		"C":  exec.Command("bash", "-c", `while read; do printf '%(%s)T000000000 0\n' -1; done`),
	} {
		t.Run(name, func(t *testing.T) { clockIsStepped(t, command) })
	}
}

func clockIsStepped(t *testing.T, child *exec.Cmd) {
	child.Env = append(os.Environ(), "PRINT_CLOCKS=1")
	input, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Wait() }()
	defer input.Close()
	lines, began := bufio.NewReader(output), time.Now()
	for _, step := range []time.Duration{0, time.Hour, -time.Hour, 2 * time.Second, 0} {
		if err := stepClock(child.Process.Pid, step); err != nil {
			t.Fatal(err)
		}
		var wall, since int64
		fmt.Fprintln(input)
		if _, err := fmt.Fscan(lines, &wall, &since); err != nil {
			t.Fatal(err)
		}
		ahead := time.Until(time.Unix(0, wall))
		// bash has whole seconds.
		if ahead < step-3*time.Second/2 || ahead > step+time.Second/2 {
			t.Errorf("stepped by %v, its clock is %v ahead", step, ahead)
		}
		if elapsed := time.Duration(since); elapsed < 0 || elapsed > time.Since(began) {
			t.Errorf("stepped by %v, it measures %v of %v", step, elapsed, time.Since(began))
		}
	}
}
