package hosts

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/guideway/guideway/lab/topology"
)

// What can happen to a whole load balancer.

// RebootLoadBalancer as its service manager does: processes end by SIGTERM, what was
// started last first; the run directory is emptied; all start again.
func (lab *Lab) RebootLoadBalancer(name string) error {
	n, err := lab.Network.LoadBalancer(name)
	if err != nil {
		return err
	}
	for i := range processes {
		if err := lab.Stop(name, processes[len(processes)-1-i]); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(lab.path(n, "run"))
	if err != nil {
		return fmt.Errorf("reboot %s: %w", name, err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(lab.path(n, filepath.Join("run", entry.Name()))); err != nil {
			return fmt.Errorf("reboot %s: %w", name, err)
		}
	}
	return lab.startLoadBalancer(n)
}

// stateDirectories of a load balancer's processes.
var stateDirectories = map[string]string{"controller": "state", "speaker": "state-speaker", "forwarder": "state-forwarder"}

// SmallDisks for a load balancer, which restarts on them: in each process's own mount
// namespace a small tmpfs lies over its state directory and has the same files. The
// next restart after the returned function is called is on the usual one again: what
// was written meanwhile is lost.
func (lab *Lab) SmallDisks(name string) (end func(), err error) {
	lab.mutex.Lock()
	lab.smallDisks = name
	lab.mutex.Unlock()
	if err := lab.Kill(name, processes...); err != nil {
		return nil, err
	}
	end = func() {
		lab.mutex.Lock()
		defer lab.mutex.Unlock()
		lab.smallDisks = ""
	}
	return end, lab.RestoreLoadBalancer(name)
}

// onDisk is the command that starts a program on its small disk, if it is to have one.
func (lab *Lab) onDisk(n topology.Node, what string, command []string) []string {
	lab.mutex.Lock()
	defer lab.mutex.Unlock()
	directory, known := stateDirectories[what]
	if !known || lab.smallDisks != n.Name {
		return command
	}
	// The working directory is the one below the tmpfs. `ip netns exec` has made a
	// mount namespace, in which nothing that is mounted is seen from outside.
	const script = `cd "$0"; mount -t tmpfs -o size=64m guideway-lab "$0"; cp -a . "$0"; cd /; exec "$@"`
	return append([]string{"sh", "-ec", script, lab.path(n, directory)}, command...)
}

// FillDisks that are small; the returned function makes room again.
func (lab *Lab) FillDisks(ctx context.Context, name string) (makeRoom func() error, err error) {
	if err := lab.onSmallDisks(ctx, name, `dd if=/dev/zero of="$0/full" bs=4k status=none 2>/dev/null || true`); err != nil {
		return nil, err
	}
	return func() error { return lab.onSmallDisks(context.WithoutCancel(ctx), name, `rm "$0/full"`) }, nil
}

// onSmallDisks runs a script that finds the state directory as $0.
func (lab *Lab) onSmallDisks(ctx context.Context, name, script string) error {
	n, err := lab.Network.LoadBalancer(name)
	if err != nil {
		return err
	}
	for what, directory := range stateDirectories {
		p, known := lab.find(name, what)
		if !known || !p.alive() {
			return fmt.Errorf("the disk of %s/%s: it does not run", name, what)
		}
		if err := topology.Run(ctx, "", "nsenter", "--mount", "--target", strconv.Itoa(p.Pid), "sh", "-ec", script, lab.path(n, directory)); err != nil {
			return fmt.Errorf("the disk of %s/%s: %w", name, what, err)
		}
	}
	return nil
}
