package show

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

// showCache is the kernel flow cache, and which share of all packets it sent.
func showCache(ctx context.Context, m machine.Machine, _ io.Writer) (output.Listing, error) {
	var status *forwarderv1.GetStatusResponse
	var counters *forwarderv1.GetCountersResponse
	err := m.AskForwarder(ctx, func(ctx context.Context, client forwarderv1.ForwarderClient) (err error) {
		if status, err = client.GetStatus(ctx, &forwarderv1.GetStatusRequest{}); err != nil {
			return err
		}
		counters, err = client.GetCounters(ctx, &forwarderv1.GetCountersRequest{})
		return err
	})
	if err != nil {
		return output.Listing{}, err
	}
	cache := status.GetKernelCache()
	found := output.Listing{
		Value:  plainjson.Value{Message: cmp.Or(cache, &forwarderv1.KernelCache{State: "none"})},
		Header: []string{"STATE", "PACKETS", "OF ALL SENT", "ENTRIES", "TARGETS", "REASON"},
		None:   "no plan yet: nothing is forwarded",
	}
	if cache != nil {
		share := min(1, float64(cache.Packets)/float64(max(1, counters.GetSent())))
		found.Rows = [][]string{{
			cache.State, fmt.Sprint(cache.Packets), fmt.Sprintf("%.1f %%", 100*share),
			fmt.Sprintf("%d of %d", cache.Entries, cache.EntriesMax), fmt.Sprintf("%d of %d", cache.Targets, cache.TargetsMax),
			output.Dash(whyNotCached(cache)),
		}}
	}
	for _, n := range cache.GetNotCached() {
		found.Notes = append(found.Notes, fmt.Sprintf("not cached: service %s, %s: %s", n.Service, output.Counted(int(n.Backends), "backend"), n.Reason))
	}
	return found, nil
}

func whyNotCached(cache *forwarderv1.KernelCache) string {
	switch {
	case cache.State == "paused":
		return "packets are captured: workers get them all"
	case cache.State == "off":
		return "forwarder.kernel_cache is off"
	case cache.TargetsRefused > 0:
		return fmt.Sprintf("%d more targets found no room: flows to them are not cached", cache.TargetsRefused)
	}
	return cache.Reason
}
