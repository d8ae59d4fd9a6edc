// Package etcdtest runs an etcd server for tests: one member on loopback, with its own
// directory and ports. Tests are skipped if etcd is not installed.
package etcdtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/looptest"
)

// How long a member may take to start, on a busy machine.
const startTimeout = 30 * time.Second

// Server is one member that is a cluster by itself.
type Server struct {
	t         testing.TB
	args      []string
	dir       string
	restored  int
	client    string // host and port
	peer      string
	scheme    string
	ctl       []string
	process   *exec.Cmd
	processed chan struct{} // closed when the process has ended
	log       bytes.Buffer
}

// Start a member; args are further arguments of etcd. It ends with the test.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, "http", nil, args)
}

// StartTLS one that demands client certificates of an authority.
func StartTLS(t testing.TB, ca *Authority, args ...string) *Server {
	t.Helper()
	cert, key := ca.Issue(t, "etcd")
	clientCert, clientKey := ca.Issue(t, "root")
	return start(t, "https", []string{"--cacert", ca.File, "--cert", clientCert, "--key", clientKey},
		append([]string{"--cert-file", cert, "--key-file", key, "--trusted-ca-file", ca.File, "--client-cert-auth"}, args...))
}

func start(t testing.TB, scheme string, ctl, args []string) *Server {
	t.Helper()
	for program, inPackage := range map[string]string{"etcd": "etcd-server", "etcdctl": "etcd-client"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s (Debian package %s)", program, inPackage)
		}
	}
	s := &Server{t: t, args: args, dir: looptest.Dir(t), client: looptest.FreeAddress(t), peer: looptest.FreeAddress(t), scheme: scheme, ctl: ctl}
	s.Run()
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			t.Logf("etcd's log:\n%s", s.log.String())
		}
	})
	return s
}

// URL that clients use.
func (s *Server) URL() string { return s.scheme + "://" + s.client }

// PID of the server, which runs.
func (s *Server) PID() int { return s.process.Process.Pid }

func (s *Server) data() string { return filepath.Join(s.dir, fmt.Sprintf("data-%d", s.restored)) }

// Run the server, which does not run, on the data that it has.
func (s *Server) Run() {
	s.t.Helper()
	args := append([]string{
		"--name", "m1", "--data-dir", s.data(), "--listen-client-urls", s.URL(), "--advertise-client-urls", s.URL(),
		"--listen-peer-urls", "http://" + s.peer, "--initial-advertise-peer-urls", "http://" + s.peer, "--initial-cluster", "m1=http://" + s.peer,
	}, s.args...)
	s.process = exec.Command("etcd", args...)
	s.process.Stdout, s.process.Stderr = &s.log, &s.log
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	process, ended := s.process, make(chan struct{})
	s.processed = ended
	go func() { defer close(ended); _ = process.Wait() }() // killed
	for deadline := time.Now().Add(startTimeout); ; {
		if _, err := s.try("endpoint", "health"); err == nil {
			return
		}
		select {
		case <-ended:
			s.t.Fatalf("etcd ended:\n%s", s.log.String())
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("etcd has not started after %v", startTimeout)
		}
	}
}

// Kill the server, if it runs.
func (s *Server) Kill() {
	_ = s.process.Process.Kill() // may have ended
	<-s.processed
}

// Snapshot as etcdctl makes it; returns its file.
func (s *Server) Snapshot() string {
	s.t.Helper()
	file := filepath.Join(s.dir, "snapshot")
	s.Ctl("snapshot", "save", file)
	return file
}

// Restore a snapshot in the place of the data; the server runs on it then.
func (s *Server) Restore(snapshot string) {
	s.t.Helper()
	s.Kill()
	s.restored++
	s.Ctl("snapshot", "restore", snapshot, "--data-dir", s.data(), "--name", "m1",
		"--initial-cluster", "m1=http://"+s.peer, "--initial-advertise-peer-urls", "http://"+s.peer)
	s.Run()
}

// Ctl runs etcdctl and returns what it prints.
func (s *Server) Ctl(args ...string) string {
	s.t.Helper()
	out, err := s.try(args...)
	if err != nil {
		s.t.Fatalf("etcdctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// CtlFails as Ctl, for what etcd refuses.
func (s *Server) CtlFails(args ...string) string {
	s.t.Helper()
	out, err := s.try(args...)
	if err == nil {
		s.t.Fatalf("etcdctl %s did not fail:\n%s", strings.Join(args, " "), out)
	}
	return out
}

func (s *Server) try(args ...string) (string, error) {
	command := exec.Command("etcdctl", append(append([]string{"--endpoints", s.URL()}, s.ctl...), args...)...)
	command.Env = append(os.Environ(), "ETCDCTL_API=3")
	out, err := command.CombinedOutput()
	return string(out), err
}
