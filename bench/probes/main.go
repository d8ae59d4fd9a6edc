// Probes measures what health checks cost and how punctual they are: the real
// controller checks 5,000 backends each second, by TCP and then by HTTP, against
// a server of its own at every address, in a network namespace. As root:
//
//	make build && go run ./bench/probes
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

type settings struct {
	backends      int
	warmUp, while time.Duration
	bin           string
}

// Roles of this program, by its first argument: itself starts the others.
const (
	insideRole  = "inside"  // in the namespace
	serversRole = "servers" // that answer probes
)

func main() {
	log.SetFlags(0)
	var s settings
	flag.IntVar(&s.backends, "backends", 5000, "backends, each checked once a second")
	flag.DurationVar(&s.warmUp, "warm-up", 5*time.Second, "time before the measurement")
	flag.DurationVar(&s.while, "while", 30*time.Second, "time of the measurement")
	flag.StringVar(&s.bin, "bin", "bin", "directory of guideway")
	flag.Parse()
	var err error
	switch flag.Arg(0) {
	case insideRole:
		err = measureAll(s)
	case serversRole:
		err = serve()
	default:
		err = enter()
	}
	if err != nil {
		log.Fatal(err)
	}
}

// enter starts this program again in a network namespace that ends with it.
func enter() error {
	command := role(insideRole)
	command.Stdout = os.Stdout
	command.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET
	return command.Run()
}

// role is this program in another one; it ends with its parent's thread at the
// latest.
func role(name string) *exec.Cmd {
	args := os.Args[1 : len(os.Args)-flag.NArg()]
	command := exec.Command("/proc/self/exe", append(args[:len(args):len(args)], name)...)
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return command
}

func measureAll(s settings) error {
	if err := errors.Join(
		run("ip", "link", "set", "lo", "up"),
		run("ip", "address", "add", "10.0.0.1/32", "dev", "lo"),
		run("ip", "route", "add", "local", "10.64.0.0/12", "dev", "lo"),
		run("sysctl", "-qw", "net.core.somaxconn=65535"),
	); err != nil {
		return err
	}
	servers := role(serversRole)
	stdin, err := servers.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := servers.StdoutPipe()
	if err != nil {
		return err
	}
	if err := servers.Start(); err != nil {
		return err
	}
	defer func() { _ = servers.Process.Kill(); _ = servers.Wait() }()
	var ready string
	if _, err := fmt.Fscanln(stdout, &ready); err != nil {
		return fmt.Errorf("the servers did not start: %w", err)
	}
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("%d backends, a probe of each every second, %v; load of the machine before: %s\n", s.backends, s.while, strings.Join(strings.Fields(string(load))[:3], " "))
	for _, kind := range []string{"tcp: {port: 80}", "http: {port: 8080, path: /healthz}"} {
		if err := measure(s, kind, servers, stdin, stdout); err != nil {
			return err
		}
	}
	return nil
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func writeConfig(s settings, path, kind string) error {
	var t strings.Builder
	t.WriteString("machine: {name: lb, addresses: [10.0.0.1]}\n" +
		"health_checks: [{name: c, " + kind + ", interval: 1s, timeout: 500ms}]\n" +
		"services: [{name: s, vips: [{address: 198.18.0.1}], pools: [p], table_size: 655373}]\npools:\n- name: p\n  health_checks: [c]\n  backends:\n")
	for n := range s.backends {
		fmt.Fprintf(&t, "  - {address: 10.%d.%d.%d}\n", 64+(n+1)>>16, (n+1)>>8&255, (n+1)&255)
	}
	return os.WriteFile(path, []byte(t.String()), 0o644)
}

// startController in a directory of its own.
func startController(s settings, dir string) (stop func(), pid int, err error) {
	logFile, err := os.Create(filepath.Join(dir, "controller.log"))
	if err != nil {
		return nil, 0, err
	}
	defer logFile.Close()
	command := exec.Command(filepath.Join(s.bin, "guideway"), "controller", "--config", filepath.Join(dir, "config.yaml"),
		"--run-dir", filepath.Join(dir, "run"), "--state-dir", filepath.Join(dir, "state"))
	command.Stdout, command.Stderr = logFile, logFile
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		return nil, 0, err
	}
	stop = func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
	}
	return stop, command.Process.Pid, nil
}
