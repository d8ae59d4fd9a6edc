package show

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
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
	// The latest first; a few.
	Latest []shownSample `json:"latest"`
}

type shownSample struct {
	AgeMs      uint64 `json:"age_ms"`
	Worker     uint32 `json:"worker"`
	Packet     string `json:"packet"`
	FrameBytes uint32 `json:"frame_bytes"`
	// Hex of its beginning, from Ethernet on.
	Start string `json:"start"`
}

func showDrops(ctx context.Context, m machine.Machine, _ io.Writer) (output.Listing, error) {
	var counters *forwarderv1.GetCountersResponse
	var samples *forwarderv1.GetDropSamplesResponse
	err := m.AskPackets(ctx, func(ctx context.Context, client machine.Packets) (err error) {
		if counters, err = client.GetCounters(ctx, &forwarderv1.GetCountersRequest{}); err != nil {
			return err
		}
		samples, err = client.GetDropSamples(ctx, &forwarderv1.GetDropSamplesRequest{})
		if status.Code(err) == codes.Unimplemented {
			return nil // an older forwarder counts only
		}
		return err
	})
	if err != nil {
		return output.Listing{}, err
	}
	shown := DropsOf(counters, samples.GetSamples())
	found := output.Listing{
		Value:   shown,
		Header:  []string{"REASON", "PACKETS", "MEANING, USUAL CAUSE, LATEST PACKETS"},
		Wrapped: true, Named: 1, Counters: []output.Counter{{Name: "packets", Column: 1}},
		None: fmt.Sprintf("nothing dropped of %d packets", counters.Received),
	}
	for _, drop := range shown.Dropped {
		found.Rows = append(found.Rows, []string{drop.Reason, fmt.Sprint(drop.Packets), drop.Meaning}, []string{"", "", "usually: " + drop.UsualCause})
		for _, s := range drop.Latest {
			age := (time.Duration(s.AgeMs) * time.Millisecond).Round(100 * time.Millisecond)
			found.Rows = append(found.Rows, []string{"", "", fmt.Sprintf("%v ago: %s, %d bytes", age, s.Packet, s.FrameBytes)})
		}
	}
	return found, nil
}

// Per reason; each worker keeps a few; this bounds how many are printed.
const samplesShown = 4

// DropsOf counters, with the latest samples of each reason.
func DropsOf(c *forwarderv1.GetCountersResponse, samples []*forwarderv1.DropSample) shownDrops {
	latest := map[string][]shownSample{}
	for _, s := range samples {
		if len(latest[s.Reason]) < samplesShown {
			latest[s.Reason] = append(latest[s.Reason], shownSample{
				AgeMs: s.AgeMs, Worker: s.Worker, Packet: output.DescribeFrame(s.Start), FrameBytes: s.FrameBytes, Start: hex.EncodeToString(s.Start),
			})
		}
	}
	shown := shownDrops{
		Received: c.Received, Sent: c.Sent, Passed: c.Passed, Replied: c.Replied, Redirected: c.Redirected,
		Held: c.Held, Unaccounted: c.Unaccounted, Dropped: []shownDrop{},
	}
	for _, drop := range c.Dropped {
		if drop.Packets > 0 {
			shown.Dropped = append(shown.Dropped, shownDrop{Reason: drop.Reason, Packets: drop.Packets, Meaning: drop.Meaning, UsualCause: drop.UsualCause, Latest: latest[drop.Reason]})
		}
	}
	slices.SortFunc(shown.Dropped, func(a, b shownDrop) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Reason, b.Reason))
	})
	return shown
}
