package show

import (
	"context"
	"fmt"
	"io"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

func showPools(ctx context.Context, m machine.Machine, stderr io.Writer) (output.Listing, error) {
	state, err := readState(ctx, m, stderr, &controllerv1.GetStateRequest{WithoutBackends: true})
	if err != nil {
		return output.Listing{}, err
	}
	pools := state.MemberSources
	found := output.Listing{
		Value: plainjson.List(pools), Named: 1,
		IsTrouble: func(row int) bool { return reasonOf(pools[row]) != "" },
		Header:    []string{"POOL", "SOURCE", "BACKENDS", "DRAINING", "LAST SUCCESS", "REASON"},
		None:      "no pool has a source (`from`): all backends are listed in the config",
	}
	for _, p := range pools {
		found.Rows = append(found.Rows, []string{p.Name, p.Source, fmt.Sprint(p.Backends), fmt.Sprint(p.Leaving), output.Ago(p.LastSuccess), output.Dash(reasonOf(p))})
	}
	return found, nil
}

func reasonOf(p *controllerv1.MemberSource) string {
	reason := p.Problem
	if p.Waiting > 0 {
		if reason != "" {
			reason += "; "
		}
		reason += fmt.Sprintf("%d backends are no longer listed, and stay until %s (shrink_delay)", p.Waiting, output.At(p.WaitingUntil))
	}
	return reason
}
