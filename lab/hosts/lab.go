package hosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/guideway/guideway/lab/topology"
)

// Lab is a running (or half-built, or crashed) lab. Its methods may be called
// from several goroutines.
type Lab struct {
	Network topology.Network

	mutex sync.Mutex
	state state
	// weights of the backends that the load balancers' config has now, and its
	// settings.
	weights  map[string]uint32
	settings topology.Settings
	// stranger is a backend that the other backends' agents are not told of; empty: none.
	stranger string
	// reaping waits for the programs that this process started.
	reaping sync.WaitGroup
	// smallDisks names the load balancer that has some; empty: none.
	smallDisks string
}

// Programs that the lab runs besides our own.
var neededPrograms = []string{"ip", "ethtool", "nginx"}

// Up builds a lab and waits until traffic flows through all of it. On an
// error everything built so far is removed; the logs stay in the run
// directory. With owned set, the lab is a left-over when this process ends.
func Up(ctx context.Context, o topology.Options, owned bool) (*Lab, error) {
	o, err := complete(o)
	if err != nil {
		return nil, fmt.Errorf("lab %s: %w", o.Name, err)
	}
	if there, err := exists(o); err != nil {
		return nil, err
	} else if there {
		return nil, fmt.Errorf("lab %s: it is there already: `guideway-lab down --name %s` removes it, or give another --name", o.Name, o.Name)
	}
	lab, err := create(o, owned)
	if err != nil {
		return nil, fmt.Errorf("lab %s: %w", o.Name, err)
	}
	if err := lab.build(ctx); err != nil {
		what := keepLogs
		if ctx.Err() != nil {
			what = removeLogs // cancelled by a person: nothing to look into
		}
		return nil, errors.Join(fmt.Errorf("lab %s: %w", o.Name, err), lab.remove(what))
	}
	return lab, nil
}

// socketPathMax: sun_path has 108 bytes, the last one zero (unix(7)).
const socketPathMax = 107

// complete fills in defaults and checks what the machine offers.
func complete(o topology.Options) (topology.Options, error) {
	if o.RunDir == "" {
		o.RunDir = DefaultRunDir(o.Name)
	}
	if o.Queues == 0 {
		o.Queues = topology.DefaultQueues
	}
	if err := o.Check(); err != nil {
		return o, err
	}
	longest := filepath.Join(o.RunDir, fmt.Sprintf("lb-%d", topology.MachinesMax), "run", "controller", "controller-view.sock")
	if len(longest) > socketPathMax {
		return o, fmt.Errorf("run directory %s: a socket in it would have a path of %d bytes, and %d is the most: give a shorter one", o.RunDir, len(longest), socketPathMax)
	}
	if os.Geteuid() != 0 {
		return o, errors.New("namespaces need root: run it with sudo")
	}
	if o.BinDir == "" {
		self, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("find own program: %w", err)
		}
		o.BinDir = filepath.Dir(self)
	}
	for _, name := range slices.Concat(neededPrograms, routerPrograms(o), etcdPrograms(o)) {
		if _, err := exec.LookPath(name); err != nil {
			return o, fmt.Errorf("program %s is missing: tools/install-deps.sh installs it", name)
		}
	}
	for _, name := range []string{"guideway", "guideway-forwarder", "guideway-agent", labProgram} {
		if _, err := os.Stat(filepath.Join(o.BinDir, name)); err != nil {
			return o, fmt.Errorf("program %s is not in %s: `make build` makes it", name, o.BinDir)
		}
	}
	return o, nil
}

// create the run directory and the state file, and nothing else yet.
func create(o topology.Options, owned bool) (*Lab, error) {
	lab := &Lab{Network: topology.New(o), state: state{Options: o}}
	if owned {
		owner, err := identify("owner", os.Getpid())
		if err != nil {
			return nil, err
		}
		lab.state.Owner = &owner
	}
	directories := []string{o.RunDir, lab.path(lab.router(), "")}
	for _, n := range lab.Network.Nodes() {
		directories = append(directories, lab.path(n, ""))
	}
	for _, n := range lab.Network.LoadBalancers {
		directories = append(directories, lab.path(n, "run"), lab.path(n, "state"))
	}
	for _, directory := range directories {
		if err := os.MkdirAll(directory, 0o755); err != nil {
			return nil, fmt.Errorf("make run directory: %w", err)
		}
	}
	lab.weights, lab.settings = lab.baseWeights(), o.Settings
	// Always the same, so that the same flows find the same backends.
	if err := writeWhole(lab.SecretFile(), []byte("guideway lab: known to everybody\n"), 0o600); err != nil {
		return nil, err
	}
	return lab, lab.state.write()
}

func (lab *Lab) build(ctx context.Context) error {
	if err := lab.Network.Build(ctx); err != nil {
		return err
	}
	if err := lab.routing().start(); err != nil {
		return err
	}
	for _, n := range lab.Network.Backends {
		if err := lab.startBackend(n); err != nil {
			return err
		}
	}
	if err := lab.writeConfigs(); err != nil {
		return err
	}
	if agrees(lab.Network, lab.settings) {
		if err := lab.startEtcd(ctx); err != nil {
			return err
		}
	}
	for _, n := range lab.Network.LoadBalancers {
		if err := lab.startLoadBalancer(n); err != nil {
			return err
		}
	}
	return lab.WaitReady(ctx, readyLimit)
}

// Open finds a lab that runs.
func Open(name, runDir string) (*Lab, error) {
	if runDir == "" {
		runDir = DefaultRunDir(name)
	}
	s, err := readState(runDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("lab %s: there is none (no %s): `guideway-lab up --name %s` builds it", name, filepath.Join(runDir, stateFile), name)
	}
	if err != nil {
		return nil, fmt.Errorf("lab %s: %w", name, err)
	}
	lab := &Lab{Network: topology.New(s.Options), state: s}
	lab.weights, lab.settings = lab.baseWeights(), s.Options.Settings
	return lab, nil
}

// Options the lab was built with, completed.
func (lab *Lab) Options() topology.Options { return lab.state.Options }

// path of a file of one node in the run directory.
func (lab *Lab) path(n topology.Node, name string) string {
	return filepath.Join(lab.state.Options.RunDir, n.Name, name)
}

const secretFile = "cluster.key"

// SecretFile is the clusters' secret.
func (lab *Lab) SecretFile() string { return filepath.Join(lab.state.Options.RunDir, secretFile) }

type logs bool

const (
	keepLogs   logs = true
	removeLogs logs = false
)

// Down removes a lab by name, whatever is left of it. Removing nothing is no
// error.
func Down(name, runDir string) error {
	if runDir == "" {
		runDir = DefaultRunDir(name)
	}
	if !topology.ValidName(name) {
		return fmt.Errorf("lab %q: not a name of a lab", name)
	}
	// Without a state file (or with a broken one) namespaces say the rest.
	s, _ := readState(runDir)
	s.Options.Name, s.Options.RunDir = name, runDir
	return (&Lab{state: s}).remove(removeLogs)
}

// Exists: a lab of that name runs, or something of it is left.
func Exists(name, runDir string) bool {
	if runDir == "" {
		runDir = DefaultRunDir(name)
	}
	if _, err := os.Stat(filepath.Join(runDir, stateFile)); err == nil {
		return true
	}
	namespaces, err := topology.ListNamespaces(name)
	return err != nil || len(namespaces) > 0 // in doubt, look closer
}

// Names of the labs that keep their files where they do by default.
func Names() []string {
	states, _ := filepath.Glob(filepath.Join(DefaultRunDir("*"), stateFile)) // the pattern is good
	var names []string
	for _, file := range states {
		names = append(names, filepath.Base(filepath.Dir(file)))
	}
	return names
}

// Down removes the lab.
func (lab *Lab) Down() error { return lab.remove(removeLogs) }

// DownKeepingLogs removes the lab but for configs and logs.
func (lab *Lab) DownKeepingLogs() error { return lab.remove(keepLogs) }

// remove processes, namespaces (with them all links, addresses and routes)
// and files, in this order, going on after errors.
func (lab *Lab) remove(what logs) error {
	lab.mutex.Lock()
	defer lab.mutex.Unlock()
	var errs []error
	for _, p := range lab.state.Processes {
		// Nothing of a lab is worth a graceful end.
		errs = append(errs, p.kill(syscall.SIGKILL))
	}
	errs = append(errs, removeNamespaces(lab.state.Options.Name))
	lab.reaping.Wait()
	errs = append(errs, unmountPins(lab.state.Options.RunDir))
	errs = append(errs, removeFiles(lab.state.Options, what))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove lab %s: %w", lab.state.Options.Name, err)
	}
	return nil
}

// removeNamespaces until there are none: who built the lab may have been killed
// while its last command still made one.
func removeNamespaces(instance string) error {
	const passes = 5
	var errs []error
	for range passes {
		namespaces, err := topology.ListNamespaces(instance)
		if err != nil || len(namespaces) == 0 {
			return errors.Join(append(errs, err)...)
		}
		for _, namespace := range namespaces {
			errs = append(errs, emptyNamespace(namespace))
			errs = append(errs, topology.Run(context.Background(), "", "ip", "netns", "delete", namespace), topology.ForgetResolver(namespace))
		}
	}
	return errors.Join(errs...)
}

// emptyNamespace ends what still runs in a namespace of ours: started just
// before a crash, so not recorded, or put there by a person. It would keep the
// namespace alive without a name.
func emptyNamespace(namespace string) error {
	for range 50 {
		out, err := topology.Output(context.Background(), "", "ip", "netns", "pids", namespace)
		if err != nil {
			return err
		}
		self := strconv.Itoa(os.Getpid())
		pids := slices.DeleteFunc(strings.Fields(out), func(pid string) bool { return pid == self })
		if len(pids) == 0 {
			return nil
		}
		for _, text := range pids {
			if pid, err := strconv.Atoi(text); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("processes in namespace %s do not end", namespace)
}

// removeFiles that a lab made, and nothing else: the run directory may be one
// that a person chose.
func removeFiles(o topology.Options, what logs) error {
	if what == keepLogs {
		return os.RemoveAll(filepath.Join(o.RunDir, stateFile))
	}
	if o.RunDir == DefaultRunDir(o.Name) {
		err := os.RemoveAll(o.RunDir)
		_ = os.Remove(filepath.Dir(o.RunDir)) // only if this was the last lab
		return err
	}
	network := topology.New(o)
	paths := []string{stateFile, secretFile, network.RouterName()}
	for _, n := range network.Nodes() {
		paths = append(paths, n.Name)
	}
	var errs []error
	for _, path := range paths {
		errs = append(errs, os.RemoveAll(filepath.Join(o.RunDir, path)))
	}
	_ = os.Remove(o.RunDir) // only if nothing else is in it
	return errors.Join(errs...)
}

// RemoveLeftovers takes down labs below the directory whose owner is gone.
func RemoveLeftovers(directory string) error {
	files, err := filepath.Glob(filepath.Join(directory, "*", stateFile))
	if err != nil {
		return fmt.Errorf("look for left-over labs: %w", err)
	}
	var errs []error
	for _, file := range files {
		s, err := readState(filepath.Dir(file))
		if err == nil && s.Owner != nil && !s.Owner.alive() {
			errs = append(errs, (&Lab{state: s}).remove(removeLogs))
		}
	}
	return errors.Join(errs...)
}

// NodeStatus is what `guideway-lab status` shows of one node.
type NodeStatus struct {
	Node      string          `json:"node"`
	Namespace string          `json:"namespace"`
	Addresses []string        `json:"addresses"`
	Processes []ProcessStatus `json:"processes"`
}

// ProcessStatus of one recorded process.
type ProcessStatus struct {
	Name  string `json:"name"`
	Pid   int    `json:"pid"`
	Alive bool   `json:"alive"`
}

// Status of all nodes, in the order of the picture.
func (lab *Lab) Status() []NodeStatus {
	list := []NodeStatus{{Node: lab.Network.RouterName(), Namespace: lab.Network.Router}}
	for _, n := range lab.Network.Nodes() {
		status := NodeStatus{Node: n.Name, Namespace: n.Namespace}
		for _, address := range n.Addresses {
			status.Addresses = append(status.Addresses, address.Addr().String())
		}
		list = append(list, status)
	}
	lab.mutex.Lock()
	defer lab.mutex.Unlock()
	for _, p := range lab.state.Processes {
		nodeName, what, _ := strings.Cut(p.Name, "/")
		i := slices.IndexFunc(list, func(s NodeStatus) bool { return s.Node == nodeName })
		if i >= 0 {
			list[i].Processes = append(list[i].Processes, ProcessStatus{Name: what, Pid: p.Pid, Alive: p.alive()})
		}
	}
	return list
}
