package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/guideway/guideway/controller/forwarder"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// What one answer may take; a large plan is some 20 MiB.
const askTimeout = 10 * time.Second

// machine is the pair of processes behind a run directory.
type machine struct{ runDir string }

// askController calls f with a client of the controller.
func (m machine) askController(ctx context.Context, f func(context.Context, controllerv1.ControllerClient) error) error {
	return m.ask(ctx, "controller", "guideway-controller", "guideway controller --config FILE", func(ctx context.Context, conn *grpc.ClientConn) error {
		return f(ctx, controllerv1.NewControllerClient(conn))
	})
}

// askForwarder calls f with a client of the forwarder.
func (m machine) askForwarder(ctx context.Context, f func(context.Context, forwarderv1.ForwarderClient) error) error {
	return m.ask(ctx, "forwarder", "guideway-forwarder", "guideway-forwarder", func(ctx context.Context, conn *grpc.ClientConn) error {
		return f(ctx, forwarderv1.NewForwarderClient(conn))
	})
}

// streamForwarder is askForwarder without a limit of time.
func (m machine) streamForwarder(ctx context.Context, f func(context.Context, forwarderv1.ForwarderClient) error) error {
	return m.askWithin(ctx, 0, "forwarder", "guideway-forwarder", "guideway-forwarder", func(ctx context.Context, conn *grpc.ClientConn) error {
		return f(ctx, forwarderv1.NewForwarderClient(conn))
	})
}

func (m machine) ask(ctx context.Context, process, unit, program string, f func(context.Context, *grpc.ClientConn) error) error {
	return m.askWithin(ctx, askTimeout, process, unit, program, f)
}

// askWithin: limit 0 is none.
func (m machine) askWithin(ctx context.Context, limit time.Duration, process, unit, program string, f func(context.Context, *grpc.ClientConn) error) error {
	socket := filepath.Join(m.runDir, process+".sock")
	cure := fmt.Sprintf("start it: systemctl start %s, or %s --run-dir %s; another directory: --run-dir", unit, program, m.runDir)
	if err := answers(socket); err != nil {
		return fmt.Errorf("the %s does not answer at %s (%w): %s", process, socket, err, cure)
	}
	conn, err := forwarder.Dial(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	if err := f(ctx, conn); err != nil {
		return fmt.Errorf("the %s at %s: %s", process, socket, status.Convert(err).Message())
	}
	return nil
}

// answers tries the socket first: gRPC's own errors tell less.
func answers(socket string) error {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	switch {
	case err == nil:
		return conn.Close()
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("no such socket")
	case errors.Is(err, os.ErrPermission):
		return errors.New("permission denied: be root, or a member of the group guideway")
	}
	var inner *net.OpError
	if errors.As(err, &inner) {
		return inner.Err
	}
	return err
}
