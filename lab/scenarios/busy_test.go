package scenarios_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
)

// Of busy loops, each a session of its own, with which the kernel shares processors.
const loopsPerProcessor = 8

// besideBusyLoops all machines are slow alike: whatever the routes carry, some stay at
// any time. The router is another machine, and this test looks on: both are preferred.
func besideBusyLoops(t *testing.T, running *hosts.Lab, runDir string) {
	lasts := 10 * time.Second
	if nightly {
		lasts = 10 * time.Minute
	}
	preferred(t, "self")
	for _, router := range programsNamed(t, "bird", "bgpd", "bfdd", "zebra") {
		preferred(t, router)
	}
	router, _ := routerAnd(t, running, machineUnderTest)
	defer router.Close()
	withdrawn := map[string]int{}
	for _, name := range running.LoadBalancers() {
		withdrawn[name] = withdrawals(t, filepath.Join(runDir, name, "speaker.log"))
	}
	stop := busyLoops(t, loopsPerProcessor*runtime.NumCPU())
	defer stop()
	looks, fewest := 0, len(running.LoadBalancers())
	for began := time.Now(); time.Since(began) < lasts; time.Sleep(20 * time.Millisecond) {
		routes, err := router.Routes()
		if err != nil {
			t.Fatal(err)
		}
		announcing := 0
		for _, name := range running.LoadBalancers() {
			addresses, err := running.Network.Addresses(name)
			if err != nil {
				t.Fatal(err)
			}
			if routes.Via(addresses) {
				announcing++
			}
		}
		looks, fewest = looks+1, min(fewest, announcing)
	}
	for _, name := range running.LoadBalancers() {
		log := filepath.Join(runDir, name, "speaker.log")
		t.Logf("%s withdrew its routes %d times in %v", name, withdrawals(t, log)-withdrawn[name], lasts)
	}
	t.Logf("of %d machines the router had at least %d in %d looks", len(running.LoadBalancers()), fewest, looks)
	if fewest == 0 || looks == 0 {
		t.Error("all machines had withdrawn their routes at once")
	}

	before := withdrawals(t, filepath.Join(runDir, machineUnderTest, "speaker.log"))
	resume := sync.OnceFunc(hang(t, running, machineUnderTest, "worker-0"))
	defer resume()
	began := time.Now()
	for withdrawals(t, filepath.Join(runDir, machineUnderTest, "speaker.log")) == before {
		if time.Since(began) > 5*time.Second {
			t.Fatal("its hang was not found")
		}
		time.Sleep(time.Millisecond)
	}
	t.Logf("its hang was found after %v", time.Since(began))
	stop()
	resume()
	if err := running.WaitReady(t.Context(), 60*time.Second); err != nil {
		t.Error(err)
	}
}

// busyLoops until the returned function is called.
func busyLoops(t *testing.T, count int) (stop func()) {
	t.Helper()
	var loops []*exec.Cmd
	for range count {
		loop := exec.Command("sh", "-c", "while :; do :; done")
		loop.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
		if err := loop.Start(); err != nil {
			t.Fatal(err)
		}
		loops = append(loops, loop)
	}
	stop = func() {
		for _, loop := range loops {
			_ = loop.Process.Kill()
			_ = loop.Wait()
		}
		loops = nil
	}
	t.Cleanup(stop)
	return stop
}

// preferred process, by its session where the kernel shares processors by these.
func preferred(t *testing.T, pid string) {
	t.Helper()
	_ = os.WriteFile("/proc/"+pid+"/autogroup", []byte("-15"), 0) // there may be none
	id := pid
	if pid == "self" {
		id = fmt.Sprint(os.Getpid())
	}
	if out, err := exec.Command("renice", "-n", "-15", "-p", id).CombinedOutput(); err != nil {
		t.Fatalf("renice: %v: %s", err, out)
	}
}

// programsNamed so, their process ids.
func programsNamed(t *testing.T, names ...string) (pids []string) {
	t.Helper()
	for _, name := range names {
		out, _ := exec.Command("pidof", name).Output() // one at least: none runs
		pids = append(pids, strings.Fields(string(out))...)
	}
	return pids
}
