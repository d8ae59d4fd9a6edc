package show

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/brain"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

func showServices(ctx context.Context, m machine.Machine, stderr io.Writer) (output.Listing, error) {
	state, err := readState(ctx, m, stderr, &controllerv1.GetStateRequest{WithoutBackends: true, WithCounters: true})
	if err != nil {
		return output.Listing{}, err
	}
	services := state.Services
	found := output.Listing{
		Value:     plainjson.List(services),
		IsTrouble: func(row int) bool { return services[row].State != brain.ServingAll || services[row].OnBackup },
		Header:    []string{"SERVICE", "VIPS", "STATE", "BACKENDS", "PACKETS", "BYTES", "CONNECTIONS", "NEW", "POOLS", "REASON"},
		WideFrom:  6, Named: 1, Counters: []output.Counter{{Name: "packets", Column: 4}, {Name: "bytes", Column: 5}, {Name: "new_connections", Column: 7}},
		None: "no services",
	}
	for _, s := range services {
		found.Rows = append(found.Rows, []string{
			s.Name, strings.Join(s.Vips, ", "), s.State, backendsText(s),
			number(s.Packets), number(s.Bytes), number(s.Connections), number(s.NewConnections), output.Dash(poolsText(s)), output.Dash(s.Reason),
		})
	}
	return found, nil
}

func backendsText(s *controllerv1.Service) string {
	text := fmt.Sprintf("%d/%d", s.BackendsActive, s.Backends)
	if s.OnBackup {
		text += " (backup)"
	}
	return text
}

func poolsText(s *controllerv1.Service) string {
	text := strings.Join(s.Pools, ",")
	if len(s.BackupPools) > 0 {
		text += " (backup: " + strings.Join(s.BackupPools, ",") + ")"
	}
	return text
}

func number(n *uint64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}
