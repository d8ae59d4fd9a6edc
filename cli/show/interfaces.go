package show

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

// showInterfaces says how frames come from each interface, and why so.
func showInterfaces(ctx context.Context, m machine.Machine, _ io.Writer) (output.Listing, error) {
	var status *forwarderv1.GetStatusResponse
	err := m.AskForwarder(ctx, func(ctx context.Context, client forwarderv1.ForwarderClient) (err error) {
		status, err = client.GetStatus(ctx, &forwarderv1.GetStatusRequest{})
		return err
	})
	if err != nil {
		return output.Listing{}, err
	}
	found := output.Listing{
		Value:  plainjson.List(status.GetDevices()),
		Header: []string{"INTERFACE", "DRIVER", "MODE", "QUEUES", "STATE", "MTU", "WHY THIS DRIVER"},
		None:   "no plan yet: nothing is forwarded",
	}
	for _, d := range status.GetDevices() {
		found.Rows = append(found.Rows, []string{
			d.Interface, d.Driver, output.Dash(ModeOf(d)), fmt.Sprint(d.Queues), stateOf(d), fmt.Sprint(d.Mtu), output.Dash(d.DriverReason),
		})
	}
	return found, nil
}

// ModeOf an interface, and whether it has zero-copy; empty: its driver has no modes.
func ModeOf(d *forwarderv1.Device) string {
	mode := strings.TrimPrefix(d.Mode, "-")
	if d.ZeroCopy {
		mode += ", zero-copy"
	}
	return mode
}

func stateOf(d *forwarderv1.Device) string {
	switch {
	case d.Gone:
		return "gone"
	case d.Up:
		return "up"
	}
	return "down"
}
