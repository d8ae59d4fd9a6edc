package scenarios_test

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/looptest"
)

// How labs share a machine. A lab mostly waits, for timers of BGP, health checks and
// TCP, so two of them take hardly longer than one. A test is alone if it measures time, or
// sends floods.

// built labs, by name: their run directories.
var built sync.Map

// TestMain takes all labs down when it is interrupted: nobody else would. Whatever tests began
// is to end with them.
func TestMain(m *testing.M) {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		if _, isOpen := <-interrupted; !isOpen {
			return
		}
		built.Range(func(name, runDir any) bool {
			_ = hosts.Down(name.(string), runDir.(string)) // of one that is not there: nothing to do
			if runDir != "" {
				_ = os.RemoveAll(filepath.Dir(runDir.(string)))
			}
			return true
		})
		os.Exit(130)
	}()
	code := m.Run()
	signal.Stop(interrupted)
	close(interrupted)
	if left := goleak.Find(); left != nil && code == 0 {
		fmt.Fprintln(os.Stderr, left)
		code = 1
	}
	os.Exit(code)
}

// nightly: scenarios have all their variants; else one of those that show the same.
// With another router they are run by LAB_ROUTER=frr.
var nightly = os.Getenv("GUIDEWAY_NIGHTLY") != ""

// emulated: tools/vms.sh has booted this machine, as its kernel's command line says. Nobody else uses
// it, and it is slow: 500 million instructions are a second of its clock.
var emulated = func() bool {
	commandLine, _ := os.ReadFile("/proc/cmdline") // of every Linux
	return strings.Contains(string(commandLine), " rdinit=/init guideway=/")
}()

// places for labs that run at once.
var places = make(chan struct{}, 2)

// options of a small lab whose name no other test run has. Another may run beside it.
func options(t *testing.T, what string) topology.Options {
	t.Helper()
	bin := needLab(t)
	shareMachine(t)
	return smallLab(t, what, bin)
}

// optionsAlone of a lab beside which no other runs.
func optionsAlone(t *testing.T, what string) topology.Options {
	t.Helper()
	bin := needLab(t)
	timeLab(t)
	return smallLab(t, what, bin)
}

// shareMachine with one more lab: the test goes on when there is a place. Tests that do
// not call it are run before, one by one.
func shareMachine(t *testing.T) {
	t.Helper()
	t.Parallel()
	takePlace(t)
}

func takePlace(t *testing.T) {
	t.Helper()
	places <- struct{}{}
	t.Cleanup(func() { <-places })
	timeLab(t)
}

// multipath: two labs with Multipath TCP do not run at once. All namespaces have one secret
// for SYN cookies and one table of joins.
var multipath sync.Mutex

// shareMachineButMultipath with a lab that has no Multipath TCP.
func shareMachineButMultipath(t *testing.T) {
	t.Helper()
	t.Parallel()
	multipath.Lock()
	t.Cleanup(multipath.Unlock)
	takePlace(t)
}

// timeLab for the table of tools/gotest: a test's own time has its wait for a place.
func timeLab(t *testing.T) {
	t.Helper()
	begun := time.Now()
	t.Cleanup(func() { t.Attr("lab_seconds", fmt.Sprintf("%.1f", time.Since(begun).Seconds())) })
}

// needLab skips where no lab can be built, and returns where the programs are.
func needLab(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: a lab is made of network namespaces")
	}
	for _, name := range []string{"guideway", "guideway-forwarder", "guideway-agent", "guideway-lab"} {
		looptest.Program(t, name)
	}
	for _, name := range []string{"bird", "vtysh", "nginx", "ethtool", "ip", "nft"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("a lab needs %s: tools/install-deps.sh lab installs it", name)
		}
	}
	return looptest.Programs(t)
}

func smallLab(t *testing.T, what, bin string) topology.Options {
	t.Helper()
	directory := looptest.Dir(t)
	// FRR's daemons enter it as their own user.
	if err := os.Chmod(directory, 0o711); err != nil {
		t.Fatal(err)
	}
	runDir := filepath.Join(directory, "lab")
	return topology.Options{
		Name: labName(what, runDir), BinDir: bin, RunDir: runDir,
		LoadBalancers: 2, Backends: 2, Spares: 1, Router: cmp.Or(os.Getenv("LAB_ROUTER"), "bird"),
	}
}

// labName that no other test run has; an empty directory is the name's own.
func labName(what, runDir string) string {
	name := fmt.Sprintf("test-%s-%d", what, os.Getpid())
	built.Store(name, runDir)
	return name
}
