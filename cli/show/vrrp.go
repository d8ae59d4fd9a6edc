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
	// Hosts by which it is found whether the link receives.
	Probes []probedHost `json:"probes"`
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

type probedHost struct {
	Address string `json:"address"`
	// A next hop of routes, which no config names.
	Gateway    bool   `json:"gateway"`
	Answers    bool   `json:"answers"`
	AnsweredAt string `json:"answered_at,omitempty"`
}

// saidByVRRP is what the controller and the speaker alike say of it.
type saidByVRRP interface {
	GetVrrp() []*speakerv1.VirtualRouter
	GetVrrpCounts() *speakerv1.VrrpCounts
	GetVrrpProbes() []*speakerv1.VrrpProbe
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
		return listVRRP(state), nil
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
	return listVRRP(speaker), nil
}

func listVRRP(said saidByVRRP) output.Listing {
	shown := shownVRRP{Routers: []shownRouter{}, Probes: []probedHost{}, SecondOwners: said.GetVrrpCounts().GetSecondOwners()}
	list := output.Listing{
		Header: []string{"VRID", "FAMILY", "STATE", "SINCE", "PRIORITY", "OWNER", "VIPS", "REASON"},
		None:   "no VIP is owned by VRRP: it is not configured, or no service here has a VIP to own",
	}
	for _, r := range said.GetVrrp() {
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
	for _, p := range said.GetVrrpProbes() {
		shown.Probes = append(shown.Probes, probedHost{Address: p.GetAddress(), Gateway: p.GetGateway(), Answers: p.GetAnswers(), AnsweredAt: output.At(p.GetAnsweredAt())})
		list.Notes = append(list.Notes, noteOfProbe(p))
	}
	list.Value = shown
	return list
}

func noteOfProbe(p *speakerv1.VrrpProbe) string {
	what := "probe " + p.GetAddress()
	if p.GetGateway() {
		what += " (gateway)"
	}
	switch {
	case p.GetAnswers():
		return what + ": answers"
	case p.GetAnsweredAt() != nil:
		return what + ": no answer for " + output.Ago(p.GetAnsweredAt())
	case p.GetGateway():
		return what + ": never answered, so it does not count"
	}
	return what + ": never answered"
}
