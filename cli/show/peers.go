package show

import (
	"context"
	"io"
	"strings"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
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

func showPeers(ctx context.Context, m machine.Machine, stderr io.Writer) (output.Listing, error) {
	p, err := readSnapshot(ctx, m, stderr, &controllerv1.GetStateRequest{WithoutBackends: true})
	if err != nil {
		return output.Listing{}, err
	}
	peers := p.peers()
	found := output.Listing{
		Value: peers, Pick: output.Picked(peers), Named: 1,
		IsTrouble: func(row int) bool { return !peers[row].Healthy },
		Header:    []string{"PEER", "ADDRESSES", "STATE", "SINCE", "REASON"},
		None:      "no peers: fragments are brought together on this machine alone",
	}
	for _, peer := range peers {
		state := "unhealthy"
		if peer.Healthy {
			state = "healthy"
		}
		found.Rows = append(found.Rows, []string{peer.Name, strings.Join(peer.Addresses, ","), state, peer.ago, output.Dash(peer.Reason)})
	}
	return found, nil
}

func (p snapshot) peers() []shownPeer {
	peers := []shownPeer{}
	for _, peer := range p.state.GetPeers() {
		peers = append(peers, shownPeer{
			Name: peer.Name, Addresses: peer.Addresses, Healthy: peer.Healthy, Since: output.At(peer.Since), Reason: peer.Reason, ago: output.Ago(peer.Since),
		})
	}
	for _, peer := range p.plan.GetPeers() {
		peers = append(peers, shownPeer{Name: peer.Name, Addresses: peer.Addresses, Healthy: peer.Healthy, ago: "-"})
	}
	return peers
}
