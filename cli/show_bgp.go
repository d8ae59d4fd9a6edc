package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
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
	Reason     string   `json:"reason,omitempty"`
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

func showBGP(ctx context.Context, m machine, stderr io.Writer) (listing, error) {
	var state *controllerv1.GetStateResponse
	err := m.askController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) (err error) {
		state, err = client.GetState(ctx, &controllerv1.GetStateRequest{WithoutBackends: true})
		return err
	})
	if err != nil {
		return listing{}, fmt.Errorf("%w\n(without a controller nothing is announced)", err)
	}
	warnAboutState(state, stderr)
	shown := shownBGP{Neighbors: []shownNeighbor{}, Routes: []shownRoute{}}
	found := listing{
		header: []string{"KIND", "NAME", "STATE", "SINCE", "DETAIL", "REASON"},
		none:   "BGP is not configured, and no service has a VIP of this cluster's prefixes",
	}
	for _, n := range state.Neighbors {
		shown.Neighbors = append(shown.Neighbors, shownNeighbor{
			Address: n.Address, ASN: n.Asn, State: n.State, Since: at(n.Since), AnnouncedPrefixes: n.AnnouncedPrefixes, Attributes: n.Attributes, Reason: n.Reason,
		})
		found.rows = append(found.rows, []string{
			"neighbor", n.Address, n.State, ago(n.Since), strings.Join(append([]string{fmt.Sprintf("AS %d, %d prefixes", n.Asn, n.AnnouncedPrefixes)}, n.Attributes...), ", "), dash(n.Reason),
		})
	}
	for _, r := range state.Routes {
		shown.Routes = append(shown.Routes, shownRoute{
			Prefix: r.Prefix, NextHop: r.NextHop, Announced: r.Announced, GracefulShutdown: r.GracefulShutdown,
			Since: at(r.Since), Reason: r.Reason, Services: r.Services, Communities: r.Communities,
		})
		detail := "for " + strings.Join(r.Services, ",")
		if len(r.Communities) > 0 {
			detail += ", communities " + strings.Join(r.Communities, " ")
		}
		found.rows = append(found.rows, []string{"route", r.Prefix, routeState(r), ago(r.Since), detail, dash(r.Reason)})
	}
	found.value = shown
	return found, nil
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
