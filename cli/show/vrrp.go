package show

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

type shownVRRP struct {
	Routers []shownRouter `json:"routers"`
	// Claims of other machines to what this one owned, since the speaker's start.
	SecondOwners uint64 `json:"second_owners"`
}

type shownRouter struct {
	VRID     uint32   `json:"vrid"`
	Family   string   `json:"family"`
	State    string   `json:"state"`
	Since    string   `json:"since,omitempty"`
	Priority uint32   `json:"priority"`
	Owner    string   `json:"owner,omitempty"`
	VIPs     []string `json:"vips"`
	Reason   string   `json:"reason,omitempty"`
}

// showVRRP as the controller has it from the speaker, or without it as the speaker says.
func showVRRP(ctx context.Context, m machine.Machine, stderr io.Writer) (output.Listing, error) {
	var state *controllerv1.GetStateResponse
	err := m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) (err error) {
		state, err = client.GetState(ctx, &controllerv1.GetStateRequest{WithoutBackends: true})
		return err
	})
	if err == nil {
		warnAboutState(state, stderr)
		warnAboutSpeaker(state.GetSpeaker(), true, stderr)
		return listVRRP(state.GetVrrp(), state.GetVrrpCounts()), nil
	}
	if m.Remote.Server != "" {
		return output.Listing{}, err
	}
	var speaker *speakerv1.State
	speakerErr := m.AskSpeaker(ctx, func(ctx context.Context, client speakerv1.SpeakerClient) (err error) {
		speaker, err = client.GetState(ctx, &speakerv1.GetStateRequest{})
		return err
	})
	if speakerErr != nil {
		return output.Listing{}, errors.Join(err, speakerErr)
	}
	fmt.Fprintf(stderr, "guideway: %v\n(this is what the speaker does without it)\n", err)
	return listVRRP(speaker.GetVrrp(), speaker.GetVrrpCounts()), nil
}

func listVRRP(routers []*speakerv1.VirtualRouter, counts *speakerv1.VrrpCounts) output.Listing {
	shown := shownVRRP{Routers: []shownRouter{}, SecondOwners: counts.GetSecondOwners()}
	list := output.Listing{
		Header: []string{"VRID", "FAMILY", "STATE", "SINCE", "PRIORITY", "OWNER", "VIPS", "REASON"},
		None:   "no VIP is owned by VRRP: it is not configured, or no service here has a VIP to own",
	}
	for _, r := range routers {
		owner := r.GetOwner()
		if r.GetState() == "active" {
			owner = "this machine"
		}
		shown.Routers = append(shown.Routers, shownRouter{
			VRID: r.GetVrid(), Family: r.GetFamily(), State: r.GetState(), Since: output.At(r.GetSince()), Priority: r.GetPriority(),
			Owner: r.GetOwner(), VIPs: append([]string{}, r.GetVips()...), Reason: r.GetReason(),
		})
		list.Rows = append(list.Rows, []string{
			fmt.Sprint(r.GetVrid()), r.GetFamily(), r.GetState(), output.Ago(r.GetSince()), fmt.Sprint(r.GetPriority()),
			output.Dash(owner), cmp.Or(strings.Join(r.GetVips(), " "), "-"), output.Dash(r.GetReason()),
		})
	}
	list.Value = shown
	return list
}
