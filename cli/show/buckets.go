package show

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// shownBuckets are those of one service at one backend.
type shownBuckets struct {
	Service string `json:"service"`
	Backend string `json:"backend"`
	// In charge of; of all that the service has.
	Buckets uint32  `json:"buckets"`
	Share   float64 `json:"share"`
	// About to get; named, since connections may live there.
	Next    uint32 `json:"next,omitempty"`
	Earlier uint32 `json:"earlier,omitempty"`
	// How often the service's map has changed, and as of which change the forwarder has it.
	Generation             uint64 `json:"generation"`
	GenerationAcknowledged uint64 `json:"generation_acknowledged"`
	// Of several load balancers, the one that assigns the service's buckets, and those
	// that do not have the agreed map.
	Leader  string   `json:"leader,omitempty"`
	Waiting []string `json:"waiting_for,omitempty"`
	Problem string   `json:"problem,omitempty"`
}

func showBuckets(ctx context.Context, m machine.Machine, _ io.Writer) (output.Listing, error) {
	services, err := StatelessServices(ctx, m)
	if err != nil {
		return output.Listing{}, err
	}
	shown := []shownBuckets{} // an empty list is [] in JSON
	found := output.Listing{
		Header: []string{"SERVICE", "BACKEND", "BUCKETS", "SHARE", "NEXT", "EARLIER"}, WideFrom: 6, Named: 2,
		None: "no stateless services",
	}
	for _, s := range services {
		for _, use := range s.Buckets.Backends {
			one := shownBuckets{
				Service: s.Name, Backend: use.Backend, Buckets: use.Owned, Share: float64(use.Owned) / float64(s.Buckets.Count),
				Next: use.Next, Earlier: use.Earlier, Generation: s.Buckets.Generation, GenerationAcknowledged: s.Buckets.GenerationAcknowledged,
				Leader: s.Buckets.Agreement.GetLeader(), Waiting: lagging(s.Buckets), Problem: s.Buckets.Agreement.GetProblem(),
			}
			shown = append(shown, one)
			found.Rows = append(found.Rows, []string{
				one.Service, one.Backend, fmt.Sprint(one.Buckets), fmt.Sprintf("%.1f %%", 100*one.Share), orDash(one.Next), orDash(one.Earlier),
			})
		}
	}
	found.Value, found.Notes, found.Pick = shown, agreementNotes(services), func(rows []int) any { return output.Picked(shown, rows) }
	found.IsTrouble = func(row int) bool {
		return shown[row].Problem != "" || len(shown[row].Waiting) > 0 || shown[row].Generation != shown[row].GenerationAcknowledged
	}
	return found, nil
}

// lagging machines, and what they have: moves wait for them.
func lagging(b *controllerv1.Buckets) (machines []string) {
	for _, lag := range b.Agreement.GetLags() {
		machines = append(machines, lag.Machine)
	}
	return machines
}

// agreementNotes say who assigns the buckets of services that several load balancers
// have, and what moves wait for: the others, or the own forwarder.
func agreementNotes(services []*controllerv1.Service) (notes []string) {
	for _, s := range services {
		for _, unknown := range s.Buckets.GetUnknown() {
			notes = append(notes, s.Name+": "+unknown)
		}
		if s.Buckets.GetGeneration() != s.Buckets.GetGenerationAcknowledged() {
			notes = append(notes, s.Name+": the forwarder of this machine does not have the latest bucket map yet")
		}
		a := s.Buckets.GetAgreement()
		if a == nil {
			continue
		}
		note := s.Name + ": " + leaderWords(a.Leader) + " assigns the buckets"
		for _, lag := range a.Lags {
			note += fmt.Sprintf("; moves wait for %s, which %s", lag.Machine, lagWords(lag))
		}
		if a.Problem != "" {
			note += "; " + a.Problem
		}
		if a.MadeAlone {
			note += "; this machine has moved buckets of dead backends by itself"
		}
		notes = append(notes, note)
	}
	return notes
}

func leaderWords(leader string) string {
	if leader == "" {
		return "no machine"
	}
	return leader
}

func lagWords(lag *controllerv1.BucketLag) string {
	if lag.Silent {
		return "has said nothing in etcd"
	}
	return "has not acknowledged the latest map"
}

func orDash(n uint32) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// shownMove of a service's buckets, or those that wait.
type shownMove struct {
	Service string `json:"service"`
	From    string `json:"from,omitempty"`
	To      string `json:"to,omitempty"`
	Buckets uint32 `json:"buckets"`
	// prepared, moved, or waiting until a former move closes.
	Step  string `json:"step"`
	Since string `json:"since,omitempty"`
	// When it closes at the latest.
	Closes string `json:"closes,omitempty"`
	// That the old backend's agent counts; absent: it has not.
	Connections *uint64 `json:"connections,omitempty"`

	ago, left string
}

func showMoves(ctx context.Context, m machine.Machine, _ io.Writer) (output.Listing, error) {
	services, err := StatelessServices(ctx, m)
	if err != nil {
		return output.Listing{}, err
	}
	shown := []shownMove{}
	for _, s := range services {
		for _, move := range s.Buckets.Moves {
			shown = append(shown, newShownMove(s, move))
		}
		if s.Buckets.Waiting > 0 {
			shown = append(shown, shownMove{Service: s.Name, Buckets: s.Buckets.Waiting, Step: "waiting", ago: "-", left: "-"})
		}
	}
	found := output.Listing{
		Value: shown, Pick: func(rows []int) any { return output.Picked(shown, rows) }, Named: 3,
		IsTrouble: func(row int) bool { return shown[row].Step == "waiting" },
		Header:    []string{"SERVICE", "FROM", "TO", "BUCKETS", "STEP", "SINCE", "CONNECTIONS", "CLOSES WITHIN"},
		None:      "no bucket moves",
	}
	found.Notes = agreementNotes(services)
	for _, one := range shown {
		found.Rows = append(found.Rows, []string{
			one.Service, output.Dash(one.From), output.Dash(one.To), fmt.Sprint(one.Buckets), one.Step, one.ago, number(one.Connections), one.left,
		})
	}
	return found, nil
}

func newShownMove(s *controllerv1.Service, move *controllerv1.BucketMove) shownMove {
	one := shownMove{Service: s.Name, From: move.From, To: move.To, Buckets: move.Buckets, Step: "prepared", ago: "-", left: "-"}
	if !move.Moved {
		return one
	}
	closes := move.Since.AsTime().Add(s.Buckets.MoveAgeMax.AsDuration())
	one.Step, one.Since, one.ago, one.Connections = "moved", output.At(move.Since), output.Ago(move.Since), move.Connections
	one.Closes, one.left = closes.UTC().Format(time.RFC3339), max(0, time.Until(closes)).Round(time.Second).String()
	return one
}

// StatelessServices that have a bucket map.
func StatelessServices(ctx context.Context, m machine.Machine) (services []*controllerv1.Service, err error) {
	state, err := StateOf(ctx, m)
	for _, s := range state.GetServices() {
		if s.Buckets != nil {
			services = append(services, s)
		}
	}
	return services, err
}

// StateOf the controller, without its backends.
func StateOf(ctx context.Context, m machine.Machine) (state *controllerv1.GetStateResponse, err error) {
	err = m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) error {
		state, err = client.GetState(ctx, &controllerv1.GetStateRequest{WithoutBackends: true})
		return err
	})
	return state, err
}
