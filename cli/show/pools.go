package show

import (
	"context"
	"fmt"
	"io"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

type shownPool struct {
	Name     string `json:"name"`
	Source   string `json:"source"`
	Backends uint32 `json:"backends"`
	// Drain because the source does not list them any more.
	Leaving uint32 `json:"leaving,omitempty"`
	// Absent: never.
	LastSuccess  string `json:"last_success,omitempty"`
	Problem      string `json:"problem,omitempty"`
	ProblemSince string `json:"problem_since,omitempty"`
	// Not listed any more, and in use for shrink_delay.
	Waiting      uint32 `json:"waiting,omitempty"`
	WaitingSince string `json:"waiting_since,omitempty"`
	WaitingUntil string `json:"waiting_until,omitempty"`

	ago string
}

func showPools(ctx context.Context, m machine.Machine, stderr io.Writer) (output.Listing, error) {
	p, err := readSnapshot(ctx, m, stderr, &controllerv1.GetStateRequest{WithoutBackends: true})
	if err != nil {
		return output.Listing{}, err
	}
	pools := []shownPool{}
	found := output.Listing{
		Header: []string{"POOL", "SOURCE", "BACKENDS", "DRAINING", "LAST SUCCESS", "REASON"}, Named: 1,
		None: "no pool has a source (`from`): all backends are listed in the config",
	}
	for _, s := range p.state.GetMemberSources() {
		pool := shownPool{
			Name: s.Pool, Source: s.Source, Backends: s.Backends, Leaving: s.Leaving, LastSuccess: output.At(s.LastSuccess), ago: output.Ago(s.LastSuccess),
			Problem: s.Problem, ProblemSince: output.At(s.ProblemSince),
			Waiting: s.Waiting, WaitingSince: output.At(s.WaitingSince), WaitingUntil: output.At(s.WaitingUntil),
		}
		pools = append(pools, pool)
		found.Rows = append(found.Rows, []string{pool.Name, pool.Source, fmt.Sprint(pool.Backends), fmt.Sprint(pool.Leaving), pool.ago, output.Dash(pool.reason())})
	}
	found.Value, found.Pick = pools, output.Picked(pools)
	found.IsTrouble = func(row int) bool { return pools[row].reason() != "" }
	return found, nil
}

func (p shownPool) reason() string {
	reason := p.Problem
	if p.Waiting > 0 {
		if reason != "" {
			reason += "; "
		}
		reason += fmt.Sprintf("%d backends are no longer listed, and stay until %s (shrink_delay)", p.Waiting, p.WaitingUntil)
	}
	return reason
}
