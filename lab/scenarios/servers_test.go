package scenarios_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/looptest"
)

const (
	stopSignal     = syscall.SIGSTOP
	continueSignal = syscall.SIGCONT
)

// needServers of the distribution's packages.
func needServers(t *testing.T) {
	t.Helper()
	for _, name := range []string{"dnsmasq", "socat"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("a lab needs %s: tools/install-deps.sh lab installs it", name)
		}
	}
}

// server is a host of a lab on which real servers run, and fail.
type server struct {
	host *topology.Host
	dir  string

	mu       sync.Mutex
	programs map[string]*exec.Cmd
}

func (s *server) path(name string) string { return filepath.Join(s.dir, name) }

// start a program that leads its own group, by a name.
func (s *server) start(name, program string, args ...string) error {
	log, err := os.OpenFile(s.path(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	command := exec.Command("ip", append([]string{"netns", "exec", s.host.Namespace(), program}, args...)...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.programs == nil {
		s.programs = map[string]*exec.Cmd{}
	}
	s.programs[name] = command
	return nil
}

func (s *server) program(name string) *exec.Cmd {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.programs[name]
}

// signal a program and what it started.
func (s *server) signal(name string, signal syscall.Signal) error {
	return syscall.Kill(-s.program(name).Process.Pid, signal)
}

// end a program at once.
func (s *server) end(name string) error {
	if err := s.signal(name, syscall.SIGKILL); err != nil {
		return fmt.Errorf("end %s: %w", name, err)
	}
	_ = s.program(name).Wait() // it was killed
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.programs, name)
	return nil
}

func (s *server) stopAll() {
	s.mu.Lock()
	var names []string
	for name := range s.programs {
		names = append(names, name)
	}
	s.mu.Unlock()
	for _, name := range names {
		_ = s.end(name) // ends with the lab at the latest
	}
}

// filter what comes in by one nftables rule; none: let everything in.
func (s *server) filter(rule string) func() error {
	return func() error {
		script := "table inet faults\ndelete table inet faults\n"
		if rule != "" {
			script += "table inet faults {\n chain input { type filter hook input priority 0; " + rule + "; }\n}\n"
		}
		command := exec.Command("ip", "netns", "exec", s.host.Namespace(), "nft", "-f", "-")
		command.Stdin = strings.NewReader(script)
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("filter %q: %w: %s", rule, err, out)
		}
		return nil
	}
}

// configureNginx, and have it read that if it runs.
func (s *server) configureNginx(status int, body string) error {
	temporary := ""
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temporary += fmt.Sprintf("\t%s_temp_path %s/nginx-%s;\n", kind, s.dir, kind)
	}
	config := fmt.Sprintf(`daemon off;
user root;
worker_processes 1;
pid %[1]s/nginx.pid;
events { worker_connections 512; }
http {
	access_log off;
%[2]s	server {
		listen 80;
		listen 443 ssl;
		ssl_certificate %[1]s/certificate.pem;
		ssl_certificate_key %[1]s/key.pem;
		default_type text/plain;
		location = /healthz { return %[3]d "%[4]s\n"; }
	}
}
`, s.dir, temporary, status, body)
	if err := os.WriteFile(s.path("nginx.conf"), []byte(config), 0o644); err != nil {
		return err
	}
	if s.program("nginx") == nil {
		return nil
	}
	return syscall.Kill(s.program("nginx").Process.Pid, syscall.SIGHUP)
}

// newAuthority, whose certificate is ca.pem beside the config of lb-1.
func newAuthority(t *testing.T, dir string) *looptest.Authority {
	t.Helper()
	a := looptest.NewAuthority(t)
	dir = filepath.Join(dir, "lb-1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	looptest.WriteFile(t, filepath.Join(dir, "ca.pem"), a.Certificate)
	return a
}

// certify a server's name for that long from now; less than nothing: it expired.
func certify(t *testing.T, a *looptest.Authority, dir, name string, lifetime time.Duration) {
	t.Helper()
	template := looptest.Named(name)
	template.DNSNames, template.NotAfter = []string{name}, time.Now().Add(lifetime)
	certificate, key := a.Issue(template)
	looptest.WriteFile(t, filepath.Join(dir, "certificate.pem"), certificate)
	looptest.WriteFile(t, filepath.Join(dir, "key.pem"), key)
}
