package show

import (
	"context"
	"fmt"
	"io"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

type shownInterface struct {
	Name     string `json:"name"`
	Driver   string `json:"driver"`
	Reason   string `json:"reason"`
	Mode     string `json:"mode,omitempty"`
	ZeroCopy bool   `json:"zero_copy"`
	Queues   uint32 `json:"queues"`
	State    string `json:"state"`
	MTU      uint32 `json:"mtu"`
}

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
	shown := []shownInterface{}
	found := output.Listing{
		Header: []string{"INTERFACE", "DRIVER", "MODE", "QUEUES", "STATE", "MTU", "WHY THIS DRIVER"},
		None:   "no plan yet: nothing is forwarded",
	}
	for _, d := range status.GetDevices() {
		one := interfaceOf(d)
		shown = append(shown, one)
		found.Rows = append(found.Rows, []string{
			one.Name, one.Driver, output.Dash(ModeOf(d)), fmt.Sprint(one.Queues), one.State, fmt.Sprint(one.MTU), output.Dash(one.Reason),
		})
	}
	found.Value = shown
	return found, nil
}

// ModeOf an interface, and whether it has zero-copy; empty: its driver has no modes.
func ModeOf(d *forwarderv1.Device) string {
	mode := interfaceOf(d).Mode
	if d.ZeroCopy {
		mode += ", zero-copy"
	}
	return mode
}

func interfaceOf(d *forwarderv1.Device) shownInterface {
	shown := shownInterface{
		Name: d.Interface, Driver: d.Driver, Reason: d.DriverReason, ZeroCopy: d.ZeroCopy, Queues: d.Queues, State: "down", MTU: d.Mtu,
	}
	if d.Mode != "-" {
		shown.Mode = d.Mode
	}
	switch {
	case d.Gone:
		shown.State = "gone"
	case d.Up:
		shown.State = "up"
	}
	return shown
}
