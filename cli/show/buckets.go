package show

import (
	"context"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

func showBuckets(ctx context.Context, m machine.Machine, _ io.Writer) (output.Listing, error) {
	return listBuckets(ctx, m, output.Listing{
		Header: []string{"SERVICE", "BACKEND", "BUCKETS", "SHARE", "NEXT", "EARLIER"}, Named: 2,
		None: "no stateless services",
	}, func(s *controllerv1.Service) (rows [][]string) {
		for _, use := range s.Buckets.Backends {
			share := float64(use.Owned) / float64(s.Buckets.Count)
			rows = append(rows, []string{s.Name, use.Backend, fmt.Sprint(use.Owned), fmt.Sprintf("%.1f %%", 100*share), orDash(use.Next), orDash(use.Earlier)})
		}
		return rows
	}, func(s *controllerv1.Service, _ []string) bool {
		return s.Buckets.Agreement.GetProblem() != "" || len(s.Buckets.Agreement.GetLags()) > 0 || s.Buckets.Generation != s.Buckets.GenerationAcknowledged
	})
}

// listBuckets of stateless services, which have some rows each. Whole services are chosen for
// machines, by any of their rows.
func listBuckets(ctx context.Context, m machine.Machine, found output.Listing, rowsOf func(*controllerv1.Service) [][]string, isTrouble func(*controllerv1.Service, []string) bool) (output.Listing, error) {
	services, err := StatelessServices(ctx, m)
	if err != nil {
		return output.Listing{}, err
	}
	var ofRow []*controllerv1.Service
	for _, s := range services {
		for _, row := range rowsOf(s) {
			ofRow, found.Rows = append(ofRow, s), append(found.Rows, row)
		}
	}
	rows := found.Rows
	found.Value, found.Notes = withBuckets(services), agreementNotes(services)
	found.Pick = func(rows []int) any { return withBuckets(output.Picked(ofRow, rows)) }
	found.IsTrouble = func(row int) bool { return isTrouble(ofRow[row], rows[row]) }
	return found, nil
}

// withBuckets are services, each once.
func withBuckets(services []*controllerv1.Service) []plainjson.Value {
	values, seen := []plainjson.Value{}, map[*controllerv1.Service]bool{}
	for _, s := range services {
		if !seen[s] {
			values = append(values, plainjson.Value{Message: s, Fields: []protoreflect.Name{"name", "buckets"}})
		}
		seen[s] = true
	}
	return values
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

func showMoves(ctx context.Context, m machine.Machine, _ io.Writer) (output.Listing, error) {
	return listBuckets(ctx, m, output.Listing{
		Header: []string{"SERVICE", "FROM", "TO", "BUCKETS", "STEP", "SINCE", "CONNECTIONS", "CLOSES WITHIN"}, Named: 3,
		None: "no bucket moves",
	}, moveRows, func(_ *controllerv1.Service, row []string) bool { return row[4] == "waiting" })
}

// moveRows of a service, and the buckets that wait until a former move closes.
func moveRows(s *controllerv1.Service) (rows [][]string) {
	for _, move := range s.Buckets.Moves {
		step, since, left := "prepared", "-", "-"
		if move.Moved {
			closes := move.Since.AsTime().Add(s.Buckets.MoveAgeMax.AsDuration())
			step, since, left = "moved", output.Ago(move.Since), max(0, time.Until(closes)).Round(time.Second).String()
		}
		rows = append(rows, []string{s.Name, move.From, move.To, fmt.Sprint(move.Buckets), step, since, number(move.Connections), left})
	}
	if s.Buckets.Waiting > 0 {
		rows = append(rows, []string{s.Name, "-", "-", fmt.Sprint(s.Buckets.Waiting), "waiting", "-", "-", "-"})
	}
	return rows
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
