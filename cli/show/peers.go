package show

import (
	"context"
	"io"
	"strings"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

func showPeers(ctx context.Context, m machine.Machine, stderr io.Writer) (output.Listing, error) {
	state, err := readState(ctx, m, stderr, &controllerv1.GetStateRequest{WithoutBackends: true})
	if err != nil {
		return output.Listing{}, err
	}
	peers := state.Peers
	found := output.Listing{
		Value: plainjson.List(peers), Named: 1,
		IsTrouble: func(row int) bool { return !peers[row].Healthy },
		Header:    []string{"PEER", "ADDRESSES", "STATE", "SINCE", "REASON"},
		None:      "no peers: fragments are brought together on this machine alone",
	}
	for _, peer := range peers {
		condition := "unhealthy"
		if peer.Healthy {
			condition = "healthy"
		}
		found.Rows = append(found.Rows, []string{peer.Name, strings.Join(peer.Addresses, ","), condition, output.Ago(peer.Since), output.Dash(peer.Reason)})
	}
	return found, nil
}
