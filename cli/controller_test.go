package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// mainVariable makes the test's program the one under test.
const mainVariable = "GUIDEWAY_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		main()
		return
	}
	testscript.Main(m, map[string]func(){"guideway": main})
}

// The config is a pipe, so the controller waits for it, long before it is
// ready to reload.
func TestAHangupBeforeTheConfigIsReadDoesNotEndTheController(t *testing.T) {
	folder := t.TempDir()
	pipe := filepath.Join(folder, "config.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(os.Args[0], "controller", "--config", pipe, "--run-dir", folder, "--state-dir", folder)
	command.Env = append(os.Environ(), mainVariable+"=1")
	var said bytes.Buffer
	command.Stderr = &said
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer command.Process.Kill() //nolint:errcheck // it has ended unless the test failed
	config, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if _, err := config.WriteString("nonsense: true\n"); err != nil {
		t.Fatal(err)
	}
	if err := config.Close(); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait() // with 1, because of the nonsense
	if state := command.ProcessState; state.ExitCode() != 1 || !strings.Contains(said.String(), "nonsense") {
		t.Errorf("%v, and it said\n%s", state, said.String())
	}
}
