package show

import (
	"context"
	"fmt"
	"io"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

type shownCache struct {
	State          string  `json:"state"`
	Reason         string  `json:"reason,omitempty"`
	Packets        uint64  `json:"packets"`
	SentShare      float64 `json:"sent_share"`
	Entries        uint64  `json:"entries"`
	EntriesMax     uint64  `json:"entries_max"`
	Targets        uint64  `json:"targets"`
	TargetsMax     uint64  `json:"targets_max"`
	TargetsRefused uint64  `json:"targets_refused"`
	// Whose packets user space sends all.
	NotCached []shownNotCached `json:"not_cached,omitempty"`
}

type shownNotCached struct {
	Service  string `json:"service"`
	Backends uint32 `json:"backends"`
	Reason   string `json:"reason"`
}

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
	shown := cacheOf(status.GetKernelCache(), counters.GetSent())
	found := output.Listing{
		Value:  shown,
		Header: []string{"STATE", "PACKETS", "OF ALL SENT", "ENTRIES", "TARGETS", "REASON"},
		None:   "no plan yet: nothing is forwarded",
	}
	if status.GetKernelCache() != nil {
		found.Rows = [][]string{{
			shown.State, fmt.Sprint(shown.Packets), fmt.Sprintf("%.1f %%", 100*shown.SentShare),
			fmt.Sprintf("%d of %d", shown.Entries, shown.EntriesMax), fmt.Sprintf("%d of %d", shown.Targets, shown.TargetsMax),
			output.Dash(shown.Reason),
		}}
	}
	for _, n := range shown.NotCached {
		found.Notes = append(found.Notes, fmt.Sprintf("not cached: service %s, %s: %s", n.Service, output.Counted(int(n.Backends), "backend"), n.Reason))
	}
	return found, nil
}

func cacheOf(cache *forwarderv1.KernelCache, sent uint64) shownCache {
	shown := shownCache{
		State: cache.GetState(), Reason: cache.GetReason(), Packets: cache.GetPackets(),
		Entries: cache.GetEntries(), EntriesMax: cache.GetEntriesMax(),
		Targets: cache.GetTargets(), TargetsMax: cache.GetTargetsMax(), TargetsRefused: cache.GetTargetsRefused(),
	}
	for _, n := range cache.GetNotCached() {
		shown.NotCached = append(shown.NotCached, shownNotCached{Service: n.GetService(), Backends: n.GetBackends(), Reason: n.GetReason()})
	}
	if sent > 0 {
		shown.SentShare = min(1, float64(shown.Packets)/float64(sent))
	}
	switch {
	case cache == nil:
		shown.State = "none"
	case shown.State == "paused":
		shown.Reason = "packets are captured: workers get them all"
	case shown.State == "off":
		shown.Reason = "forwarder.kernel_cache is off"
	case shown.TargetsRefused > 0:
		shown.Reason = fmt.Sprintf("%d more targets found no room: flows to them are not cached", shown.TargetsRefused)
	}
	return shown
}
