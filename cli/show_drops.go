package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

type shownDrops struct {
	// received = sent + passed + replied + redirected + held + dropped
	Received    uint64 `json:"received"`
	Sent        uint64 `json:"sent"`
	Passed      uint64 `json:"passed"`
	Replied     uint64 `json:"replied"`
	Redirected  uint64 `json:"redirected"`
	Held        uint64 `json:"held"`
	Unaccounted int64  `json:"unaccounted"`
	// Most first; reasons that never happened are left out.
	Dropped []shownDrop `json:"dropped"`
}

type shownDrop struct {
	Reason     string `json:"reason"`
	Packets    uint64 `json:"packets"`
	Meaning    string `json:"meaning"`
	UsualCause string `json:"usual_cause"`
}

func showDrops(ctx context.Context, m machine, _ io.Writer) (listing, error) {
	var counters *forwarderv1.GetCountersResponse
	err := m.askForwarder(ctx, func(ctx context.Context, client forwarderv1.ForwarderClient) (err error) {
		counters, err = client.GetCounters(ctx, &forwarderv1.GetCountersRequest{})
		return err
	})
	if err != nil {
		return listing{}, err
	}
	shown := dropsOf(counters)
	found := listing{
		value:    shown,
		header:   []string{"REASON", "PACKETS", "MEANING", "USUAL CAUSE"},
		wideFrom: 0,
		none:     fmt.Sprintf("nothing dropped of %d packets", counters.Received),
	}
	for _, drop := range shown.Dropped {
		found.rows = append(found.rows, []string{drop.Reason, fmt.Sprint(drop.Packets), drop.Meaning, drop.UsualCause})
	}
	return found, nil
}

func dropsOf(c *forwarderv1.GetCountersResponse) shownDrops {
	shown := shownDrops{
		Received: c.Received, Sent: c.Sent, Passed: c.Passed, Replied: c.Replied, Redirected: c.Redirected,
		Held: c.Held, Unaccounted: c.Unaccounted, Dropped: []shownDrop{},
	}
	for _, drop := range c.Dropped {
		if drop.Packets > 0 {
			shown.Dropped = append(shown.Dropped, shownDrop{Reason: drop.Reason, Packets: drop.Packets, Meaning: drop.Meaning, UsualCause: drop.UsualCause})
		}
	}
	slices.SortFunc(shown.Dropped, func(a, b shownDrop) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Reason, b.Reason))
	})
	return shown
}
