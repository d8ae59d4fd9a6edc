package show

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

// saidByVRRP is what the controller and the speaker alike say of it.
type saidByVRRP interface {
	proto.Message
	GetVrrp() []*speakerv1.VirtualRouter
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
	list := output.Listing{
		Value:  plainjson.Value{Message: said, Fields: []protoreflect.Name{"vrrp", "vrrp_counts", "vrrp_probes"}},
		Header: []string{"VRID", "FAMILY", "STATE", "SINCE", "PRIORITY", "OWNER", "VIPS", "REASON"},
		None:   "no VIP is owned by VRRP: it is not configured, or no service here has a VIP to own",
	}
	for _, r := range said.GetVrrp() {
		owner := r.GetOwner()
		if r.GetState() == "active" {
			owner = "this machine"
		}
		list.Rows = append(list.Rows, []string{
			fmt.Sprint(r.GetVrid()), r.GetFamily(), r.GetState(), output.Ago(r.GetSince()), fmt.Sprint(r.GetPriority()),
			output.Dash(owner), output.Dash(strings.Join(r.GetVips(), " ")), output.Dash(r.GetReason()),
		})
	}
	for _, p := range said.GetVrrpProbes() {
		list.Notes = append(list.Notes, noteOfProbe(p))
	}
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
