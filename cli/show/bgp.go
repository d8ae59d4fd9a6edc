package show

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/api"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

func showBGP(ctx context.Context, m machine.Machine, stderr io.Writer) (output.Listing, error) {
	var state *controllerv1.GetStateResponse
	err := m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) (err error) {
		state, err = client.GetState(ctx, &controllerv1.GetStateRequest{WithoutBackends: true})
		return err
	})
	if err != nil && m.Remote.Server != "" {
		return output.Listing{}, err
	}
	if err != nil {
		fallback, speakerErr := bgpOfSpeaker(ctx, m)
		if speakerErr != nil {
			return output.Listing{}, errors.Join(err, speakerErr)
		}
		fmt.Fprintf(stderr, "guideway: %v\n(this is what the speaker announces without it)\n", err)
		return fallback, nil
	}
	warnAboutState(state, stderr)
	warnAboutSpeaker(state.GetSpeaker(), len(state.Neighbors) > 0, stderr)
	return listBGP(state), nil
}

func listBGP(state *controllerv1.GetStateResponse) output.Listing {
	found := output.Listing{
		Header: []string{"KIND", "NAME", "STATE", "SINCE", "DETAIL", "REASON"}, Named: 2,
		None: "BGP is not configured, and no service has a VIP of this cluster's prefixes",
	}
	for _, n := range state.Neighbors {
		detail := append([]string{fmt.Sprintf("AS %d, %d prefixes", n.Asn, n.AnnouncedPrefixes)}, n.Attributes...)
		if n.Bfd != "" {
			detail = append(detail, "BFD "+n.Bfd)
		}
		found.Rows = append(found.Rows, []string{"neighbor", n.Address, n.State, output.Ago(n.Since), strings.Join(detail, ", "), output.Dash(n.Reason)})
	}
	for _, r := range state.Routes {
		detail := "for " + output.Dash(strings.Join(r.Services, ","))
		if len(r.Communities) > 0 {
			detail += ", communities " + strings.Join(r.Communities, " ")
		}
		found.Rows = append(found.Rows, []string{"route", r.Prefix, routeState(r), output.Ago(r.Since), detail, output.Dash(r.Reason)})
	}
	valueOf := func(state *controllerv1.GetStateResponse) any {
		return plainjson.Value{Message: state, Fields: []protoreflect.Name{"neighbors", "routes"}}
	}
	found.Value = valueOf(state)
	found.Pick = func(rows []int) any {
		picked := &controllerv1.GetStateResponse{}
		for _, row := range rows {
			if route := row - len(state.Neighbors); route >= 0 {
				picked.Routes = append(picked.Routes, state.Routes[route])
			} else {
				picked.Neighbors = append(picked.Neighbors, state.Neighbors[row])
			}
		}
		return valueOf(picked)
	}
	found.IsTrouble = func(row int) bool {
		if route := row - len(state.Neighbors); route >= 0 {
			return routeState(state.Routes[route]) != "announced"
		}
		return state.Neighbors[row].State != "established"
	}
	return found
}

func warnAboutSpeaker(s *controllerv1.SpeakerState, wanted bool, stderr io.Writer) {
	switch {
	case !wanted || s == nil: // or an older controller
	case !s.GetAnswers():
		fmt.Fprintf(stderr, "guideway: the speaker %s\n", s.GetReason())
	case s.GetWithheld() != "":
		fmt.Fprintf(stderr, "guideway: the speaker announces nothing: %s\n", s.GetWithheld())
	case s.GetSlow() != "":
		fmt.Fprintf(stderr, "guideway: the machine is slow, and the speaker announces its routes as worse ones: %s\n", s.GetSlow())
	case s.GetProblem() != "":
		fmt.Fprintf(stderr, "guideway: the speaker could not announce everything: %s\n", s.GetProblem())
	}
}

// bgpOfSpeaker is what the speaker itself knows.
func bgpOfSpeaker(ctx context.Context, m machine.Machine) (output.Listing, error) {
	var state *speakerv1.State
	var desired *speakerv1.Desired
	err := m.AskSpeaker(ctx, func(ctx context.Context, client speakerv1.SpeakerClient) (err error) {
		if state, err = client.GetState(ctx, &speakerv1.GetStateRequest{}); err != nil {
			return err
		}
		desired, err = client.GetDesired(ctx, &speakerv1.GetDesiredRequest{})
		return err
	})
	if err != nil {
		return output.Listing{}, err
	}
	as := &controllerv1.GetStateResponse{}
	withheld := cmp.Or(state.GetWithheld(), api.NoSession)
	for _, n := range state.GetNeighbors() {
		neighbor := &controllerv1.Neighbor{Address: n.GetAddress(), Asn: n.GetAsn(), State: n.GetState(), Reason: n.GetReason(), Since: n.GetSince(), Attributes: n.GetAttributes(), Bfd: n.GetBfd()}
		if n.GetState() == "established" {
			neighbor.AnnouncedPrefixes, withheld = state.GetRoutesAnnounced(), state.GetWithheld()
		}
		as.Neighbors = append(as.Neighbors, neighbor)
	}
	for _, r := range desired.GetRoutes() {
		as.Routes = append(as.Routes, &controllerv1.Route{
			Prefix: r.GetPrefix(), NextHop: r.GetNextHop(), Announced: withheld == "", GracefulShutdown: withheld == "" && r.GetGracefulShutdown(), Reason: withheld,
		})
	}
	return listBGP(as), nil
}

func routeState(r *controllerv1.Route) string {
	switch {
	case r.GracefulShutdown:
		return "leaving"
	case r.Announced:
		return "announced"
	}
	return "withdrawn"
}
