// Control measures what a large config costs the control side: the real
// controller and forwarder with 10,000 services over 100 pools of 200 backends,
// in network namespaces of their own. As root:
//
//	make build && go run ./bench/control
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

type sizes struct{ services, pools, backends int }

// Roles of this program, by its first argument: itself starts the others.
const (
	insideRole   = "inside"   // in the namespace of the load balancer
	backendsRole = "backends" // in that of the backends
)

func main() {
	log.SetFlags(0)
	var s sizes
	var bin string
	flag.IntVar(&s.services, "services", 10_000, "services")
	flag.IntVar(&s.pools, "pools", 100, "pools, of which services take one in turn")
	flag.IntVar(&s.backends, "backends", 200, "backends of each pool; those of the first pool are checked")
	flag.StringVar(&bin, "bin", "bin", "directory of guideway and guideway-forwarder")
	flag.Parse()
	var err error
	switch flag.Arg(0) {
	case insideRole:
		err = measure(s, bin)
	case backendsRole:
		err = serveBackends()
	default:
		err = enter()
	}
	if err != nil {
		log.Fatal(err)
	}
}

// enter starts this program again in a network namespace that ends with it.
func enter() error {
	command := role(os.Args[1:], insideRole)
	command.Stdout = os.Stdout
	return command.Run()
}

// role is this program in another one, in a network namespace of its own. It
// ends with its parent's thread at the latest.
func role(args []string, name string) *exec.Cmd {
	command := exec.Command("/proc/self/exe", append(args[:len(args):len(args)], name)...)
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	return command
}

// connect makes the backends' namespace: all their addresses are behind a veth.
func connect() (stop func(), control net.Conn, err error) {
	directory, err := os.MkdirTemp("", "control")
	if err != nil {
		return nil, nil, err
	}
	listener, err := net.Listen("unix", filepath.Join(directory, "s"))
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	args := flag.CommandLine.Args()
	command := role(append(os.Args[1:len(os.Args)-len(args)], "-bin", listener.Addr().String()), backendsRole)
	if err := command.Start(); err != nil {
		return nil, nil, err
	}
	stop = func() { command.Process.Kill(); command.Wait(); os.RemoveAll(directory) }
	err = errors.Join(
		run("ip", "link", "set", "lo", "up"),
		run("ip", "link", "add", "gw0", "type", "veth", "peer", "name", "gw1", "netns", fmt.Sprint(command.Process.Pid)),
		run("ip", "address", "add", "10.0.0.1/24", "dev", "gw0"),
		run("ip", "link", "set", "gw0", "up"),
		run("ip", "route", "add", "10.64.0.0/12", "via", "10.0.0.2"),
	)
	if err == nil {
		control, err = listener.Accept()
	}
	if err == nil {
		_, err = fmt.Fscanln(control, new(string)) // ready
	}
	if err != nil {
		stop()
	}
	return stop, control, err
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// process is one that is measured.
type process struct {
	command *exec.Cmd
	log     string
}

func start(log, name string, args ...string) (*process, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	command := exec.Command(name, args...)
	command.Stdout, command.Stderr = file, file
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return &process{command, log}, command.Start()
}

func (p *process) stop() {
	p.command.Process.Signal(syscall.SIGTERM)
	done := make(chan struct{})
	go func() { p.command.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		p.command.Process.Kill()
	}
}

// memory is the most that it had in memory so far, in MB.
func (p *process) memory() string {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	for line := range strings.Lines(string(status)) {
		var kilobytes int
		if n, _ := fmt.Sscanf(line, "VmHWM: %d", &kilobytes); n == 1 {
			return fmt.Sprintf("%d MB", kilobytes>>10)
		}
	}
	return "unknown"
}

func (p *process) logged(what string) int {
	text, _ := os.ReadFile(p.log)
	return strings.Count(string(text), what)
}
