package run

// Continues with the installed programs. The forwarder executes its own new program, as
// this process may not; then this process ends, so that its new program is executed.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/api"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// ErrRestart of Run: execute the installed program.
var ErrRestart = errors.New("restart")

const (
	// To decode a large plan takes the successor seconds; as long again for its start.
	takeOverTimeout = 60 * time.Second
	// How often it is looked whether the successor answers.
	takeOverInterval = 50 * time.Millisecond
	// For the answer to reach the client before the connection ends.
	restartDelay = 200 * time.Millisecond
)

// Restart the forwarder by take-over, and then this process.
func (c *Controller) Restart(ctx context.Context) (*controllerv1.RestartResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, takeOverTimeout)
	defer cancel()
	before, err := c.forwarder.Client().GetStatus(ctx, &forwarderv1.GetStatusRequest{})
	if err != nil {
		return nil, api.Unmetf("the forwarder at %s: %s", forwarderSocket(c.options.RunDir), status.Convert(err).Message())
	}
	_, err = c.forwarder.Client().TakeOver(ctx, &forwarderv1.TakeOverRequest{})
	switch status.Code(err) {
	case codes.OK, codes.Unavailable: // it may end before the answer
	case codes.Unimplemented:
		return nil, api.Unmetf("the forwarder runs version %s, which cannot be restarted by request: `systemctl reload guideway-forwarder` and `systemctl restart guideway-controller` on the machine, this once", before.GetVersion())
	default:
		return nil, api.Unmetf("the forwarder goes on as it is: %s", status.Convert(err).Message())
	}
	after, err := c.awaitSuccessor(ctx, before.GetPid())
	if err != nil {
		return nil, err
	}
	c.log.Info("restarting: the forwarder was taken over from", "version", after.GetVersion(), "pause_us", after.GetTakenOver().GetPauseUs())
	time.AfterFunc(restartDelay, func() {
		c.restartedBy = api.UserOf(ctx)
		c.restarted.Store(true)
		c.restart()
	})
	return &controllerv1.RestartResponse{
		ForwarderVersionBefore: before.GetVersion(), ForwarderVersion: after.GetVersion(),
		PauseUs: after.GetTakenOver().GetPauseUs(), Emptied: after.GetTakenOver().GetEmptied(),
	}, nil
}

// awaitSuccessor of a forwarder's process.
func (c *Controller) awaitSuccessor(ctx context.Context, process uint32) (*forwarderv1.GetStatusResponse, error) {
	for {
		found, err := c.forwarder.Client().GetStatus(ctx, &forwarderv1.GetStatusRequest{})
		switch {
		case err == nil && found.GetPid() != process && found.GetTakenOver().GetPredecessorPid() == process:
			return found, nil
		case err == nil && found.GetPid() != process:
			return nil, fmt.Errorf("the forwarder has another process (%d), which did not take over: see its log", found.GetPid())
		case ctx.Err() != nil:
			return nil, fmt.Errorf("the forwarder has no successor after %v: see its log", takeOverTimeout)
		}
		select {
		case <-time.After(takeOverInterval):
		case <-ctx.Done():
		}
	}
}
