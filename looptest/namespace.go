package looptest

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const namespaceMark = "GUIDEWAY_TEST_IN_NAMESPACE"

// InNamespace gives the test's thread a network namespace of its own, which dies with the
// thread: it is never unlocked. `setup` are commands of `ip` there.
func InNamespace(t testing.TB, setup ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a network namespace")
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	for _, line := range setup {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
}

// AllInNamespace is for a TestMain whose tests share a network namespace: the whole program runs
// again in a new one, because threads of one Go process would otherwise be in different ones. It
// returns in that.
func AllInNamespace() {
	if os.Getenv(namespaceMark) != "" {
		return
	}
	again := exec.Command("unshare", append([]string{"--net", os.Args[0]}, os.Args[1:]...)...)
	again.Env = append(os.Environ(), namespaceMark+"=1")
	again.Stdin, again.Stdout, again.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := again.Run(); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}
