package show

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

func showBackends(ctx context.Context, m machine.Machine, stderr io.Writer) (output.Listing, error) {
	state, err := readState(ctx, m, stderr, &controllerv1.GetStateRequest{WithCounters: true})
	if err != nil {
		return output.Listing{}, err
	}
	return listBackends(state.Backends), nil
}

func listBackends(backends []*controllerv1.Backend) output.Listing {
	found := output.Listing{
		Value:     plainjson.List(backends),
		IsTrouble: func(row int) bool { return isTrouble(backends[row]) },
		Header:    []string{"SERVICE", "BACKEND", "ADDRESS", "WEIGHT", "STATE", "SINCE", "REASON", "PACKETS", "BYTES", "NEW CONNECTIONS", "99 % WITHIN", "OPEN", "LOAD", "POOLS"},
		WideFrom:  8, Named: 2, Counters: []output.Counter{{Name: "packets", Column: 7}, {Name: "bytes", Column: 8}, {Name: "new_connections", Column: 9}},
		None: "no backends",
	}
	for _, b := range backends {
		reason := b.Reason
		if b.Unresolved != "" {
			reason += "; next hop: " + b.Unresolved
		}
		found.Rows = append(found.Rows, []string{
			servicesText(b), b.Name, b.Address, fmt.Sprint(b.Weight), b.State, output.Ago(b.Since), output.Dash(reason),
			number(b.Packets), number(b.Bytes), number(b.NewConnections), within(b.Answers.GetP99Seconds()), open(b.Answers), load(b), output.Dash(strings.Join(b.Pools, ",")),
		})
	}
	return found
}

// within which time backends answer; "-": that is not known.
func within(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return briefly(seconds)
}

func briefly(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(10 * time.Microsecond).String()
}

// open requests, on average.
func open(a *controllerv1.Answers) string {
	if a == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f", a.Open)
}

// load relative to the mean of the backends beside it.
func load(b *controllerv1.Backend) string {
	if b.Load == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f", *b.Load)
}

func isTrouble(b *controllerv1.Backend) bool {
	return b.State != "active" && b.State != "standby" || b.Unresolved != ""
}

func servicesText(b *controllerv1.Backend) string {
	if b.Service == "" && b.Services > 0 {
		return output.Counted(int(b.Services), "service") + " of " + b.Group
	}
	return b.Service
}
