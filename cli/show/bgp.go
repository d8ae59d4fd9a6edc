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
	"github.com/guideway/guideway/controller/api"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

type shownBGP struct {
	Neighbors []shownNeighbor `json:"neighbors"`
	Routes    []shownRoute    `json:"routes"`
}

type shownNeighbor struct {
	Address           string `json:"address"`
	ASN               uint32 `json:"asn"`
	State             string `json:"state"`
	Since             string `json:"since,omitempty"`
	AnnouncedPrefixes uint32 `json:"announced_prefixes"`
	// What routes to it carry, like `med 10`.
	Attributes []string `json:"attributes,omitempty"`
	// up, down
	BFD    string `json:"bfd,omitempty"`
	Reason string `json:"reason,omitempty"`
}

type shownRoute struct {
	Prefix           string   `json:"prefix"`
	NextHop          string   `json:"next_hop,omitempty"`
	Announced        bool     `json:"announced"`
	GracefulShutdown bool     `json:"graceful_shutdown"`
	Since            string   `json:"since,omitempty"`
	Reason           string   `json:"reason,omitempty"`
	Services         []string `json:"services"`
	Communities      []string `json:"communities,omitempty"`
}

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
	shown := shownBGP{Neighbors: []shownNeighbor{}, Routes: []shownRoute{}}
	found := output.Listing{
		Header: []string{"KIND", "NAME", "STATE", "SINCE", "DETAIL", "REASON"}, Named: 2,
		None: "BGP is not configured, and no service has a VIP of this cluster's prefixes",
	}
	for _, n := range state.Neighbors {
		shown.Neighbors = append(shown.Neighbors, shownNeighbor{
			Address: n.Address, ASN: n.Asn, State: n.State, Since: output.At(n.Since), AnnouncedPrefixes: n.AnnouncedPrefixes, Attributes: n.Attributes, BFD: n.Bfd, Reason: n.Reason,
		})
		detail := append([]string{fmt.Sprintf("AS %d, %d prefixes", n.Asn, n.AnnouncedPrefixes)}, n.Attributes...)
		if n.Bfd != "" {
			detail = append(detail, "BFD "+n.Bfd)
		}
		found.Rows = append(found.Rows, []string{"neighbor", n.Address, n.State, output.Ago(n.Since), strings.Join(detail, ", "), output.Dash(n.Reason)})
	}
	for _, r := range state.Routes {
		shown.Routes = append(shown.Routes, shownRoute{
			Prefix: r.Prefix, NextHop: r.NextHop, Announced: r.Announced, GracefulShutdown: r.GracefulShutdown,
			Since: output.At(r.Since), Reason: r.Reason, Services: r.Services, Communities: r.Communities,
		})
		detail := "for " + output.Dash(strings.Join(r.Services, ","))
		if len(r.Communities) > 0 {
			detail += ", communities " + strings.Join(r.Communities, " ")
		}
		found.Rows = append(found.Rows, []string{"route", r.Prefix, routeState(r), output.Ago(r.Since), detail, output.Dash(r.Reason)})
	}
	found.Value = shown
	found.Pick = func(rows []int) any {
		picked := shownBGP{Neighbors: []shownNeighbor{}, Routes: []shownRoute{}}
		for _, row := range rows {
			if route := row - len(shown.Neighbors); route >= 0 {
				picked.Routes = append(picked.Routes, shown.Routes[route])
			} else {
				picked.Neighbors = append(picked.Neighbors, shown.Neighbors[row])
			}
		}
		return picked
	}
	found.IsTrouble = func(row int) bool {
		if route := row - len(shown.Neighbors); route >= 0 {
			return !shown.Routes[route].Announced || shown.Routes[route].GracefulShutdown
		}
		return shown.Neighbors[row].State != "established"
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
