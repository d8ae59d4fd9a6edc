package main

import (
	"context"
	"io"
	"strings"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

type shownPeer struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"`
	Healthy   bool     `json:"healthy"`
	Since     string   `json:"since,omitempty"`
	Reason    string   `json:"reason,omitempty"`

	ago string
}

func showPeers(ctx context.Context, m machine, stderr io.Writer) (listing, error) {
	p, err := readSnapshot(ctx, m, stderr, &controllerv1.GetStateRequest{WithoutBackends: true})
	if err != nil {
		return listing{}, err
	}
	peers := p.peers()
	found := listing{
		value:  peers,
		header: []string{"PEER", "ADDRESSES", "STATE", "SINCE", "REASON"},
		none:   "no peers: fragments are brought together on this machine alone",
	}
	for _, peer := range peers {
		state := "unhealthy"
		if peer.Healthy {
			state = "healthy"
		}
		found.rows = append(found.rows, []string{peer.Name, strings.Join(peer.Addresses, ","), state, peer.ago, dash(peer.Reason)})
	}
	return found, nil
}

func (p snapshot) peers() []shownPeer {
	peers := []shownPeer{}
	for _, peer := range p.state.GetPeers() {
		peers = append(peers, shownPeer{
			Name: peer.Name, Addresses: peer.Addresses, Healthy: peer.Healthy, Since: at(peer.Since), Reason: peer.Reason, ago: ago(peer.Since),
		})
	}
	for _, peer := range p.plan.GetPeers() {
		peers = append(peers, shownPeer{Name: peer.Name, Addresses: peer.Addresses, Healthy: peer.Healthy, ago: "-"})
	}
	return peers
}
