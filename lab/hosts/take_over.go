package hosts

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// takeOverLimit of a hand-over from one forwarder to the next.
const takeOverLimit = 20 * time.Second

// TakeOverForwarder has a new process go on in the place of a load balancer's
// forwarder, and waits until the former one has ended.
func (lab *Lab) TakeOverForwarder(ctx context.Context, name string) (*forwarderv1.TakenOver, error) {
	n, err := lab.Network.LoadBalancer(name)
	if err != nil {
		return nil, err
	}
	predecessor, known := lab.find(name, "forwarder")
	if !known || !predecessor.alive() {
		return nil, fmt.Errorf("take over the forwarder of %s: it does not run", name)
	}
	program := filepath.Join(lab.state.Options.BinDir, "guideway-forwarder")
	if err := lab.start(n, "forwarder", program, append(lab.forwarderArgs(n), "--take-over")...); err != nil {
		return nil, err
	}
	successor, _ := lab.find(name, "forwarder")
	err = waitFor(ctx, takeOverLimit, "the end of the former forwarder of "+name, func() error {
		switch {
		case !successor.alive():
			return fmt.Errorf("its successor ended: see %s", lab.path(n, "forwarder.log"))
		case predecessor.alive():
			return fmt.Errorf("process %d still runs: see %s", predecessor.Pid, lab.path(n, "forwarder.log"))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	status, err := lab.ForwarderStatus(ctx, name)
	return status.GetTakenOver(), err
}

// ForwarderStatus of a load balancer.
func (lab *Lab) ForwarderStatus(ctx context.Context, name string) (*forwarderv1.GetStatusResponse, error) {
	return ask(ctx, lab, name, func(ctx context.Context, client forwarderv1.ForwarderClient) (*forwarderv1.GetStatusResponse, error) {
		return client.GetStatus(ctx, &forwarderv1.GetStatusRequest{})
	})
}

// KillForwarder of a load balancer at once, and start another.
func (lab *Lab) KillForwarder(name string) error {
	if err := lab.killProcesses(name, "forwarder"); err != nil {
		return err
	}
	return lab.StartForwarder(name)
}
