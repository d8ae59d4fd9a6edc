package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// The scripts in testdata/script run the program itself, in a process of its
// own (see TestMain), and look at what it prints and how it ends.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"ends": ends},
		Setup:               servers(t),
	})
}

// servers that scripts may try: HTTP at SERVER, UDP at ECHO,
// and none at CLOSED.
func servers(t *testing.T) func(*testscript.Env) error {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	address := server.Listener.Addr().String()
	echo, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { echo.Close() })
	go func() {
		buffer := make([]byte, 2000)
		for n, from, err := echo.ReadFrom(buffer); err == nil; n, from, err = echo.ReadFrom(buffer) {
			_, _ = echo.WriteTo(buffer[:n], from) // who sent it will notice
		}
	}()
	return func(env *testscript.Env) error {
		env.Setenv("SERVER", address)
		env.Setenv("ECHO", echo.LocalAddr().String())
		env.Setenv("CLOSED", "127.0.0.1:1")
		return nil
	}
}

// ends CODE PROGRAM ARGUMENTS...: runs it, and expects that exit code.
func ends(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: ends CODE PROGRAM ARGUMENTS...")
	}
	wanted, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if code != wanted {
		ts.Fatalf("it ended with %d, wanted %d", code, wanted)
	}
}
