package config

// Says how health checks are sent if the config leaves it open.

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/config"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// Of a list in a note.
const namesShown = 5

// notesOnChecks say which way they go by default.
func notesOnChecks(c *config.Config) (notes []string) {
	var throughTunnel []string
	for _, check := range autoChecks(c) {
		tunnel, direct := c.ServicesOfCheck(check)
		if len(tunnel) > 0 {
			throughTunnel = append(throughTunnel, check)
		}
		if len(direct) > 0 {
			notes = append(notes, fmt.Sprintf("health check %s goes to the backends' own addresses for %s: no VIP of theirs is an address of a family that machine.addresses has",
				check, config.Enumerate(direct, namesShown)))
		}
	}
	if len(throughTunnel) > 0 {
		notes = append(notes, fmt.Sprintf("health checks through the tunnel to the VIPs, as clients' packets go: %s (`via: direct`: to the backends' own addresses)", config.Enumerate(throughTunnel, namesShown)))
	}
	return notes
}

func autoChecks(c *config.Config) (names []string) {
	for _, check := range c.HealthChecks {
		if check.Via == config.ViaAuto {
			names = append(names, check.Name)
		}
	}
	return names
}

// notesOnOtherWays name the checks that the controller sends to the backends' own addresses,
// as former versions did by default, and that will go through the tunnel.
func notesOnOtherWays(ctx context.Context, m machine.Machine, c *config.Config) (notes []string) {
	for _, check := range autoChecks(c) {
		tunnel, _ := c.ServicesOfCheck(check)
		if len(tunnel) > 0 && runsDirect(ctx, m, c, check) {
			notes = append(notes, fmt.Sprintf("health check %s goes to the backends' own addresses now, and through the tunnel then: `via: direct` keeps it", check))
		}
	}
	return notes
}

// runsDirect by what the controller says of one backend.
func runsDirect(ctx context.Context, m machine.Machine, c *config.Config, check string) (direct bool) {
	at := slices.IndexFunc(c.PoolViews, func(view config.PoolView) bool {
		return slices.Contains(view.HealthChecks, check) && len(view.Backends) > 0
	})
	if at < 0 {
		return false
	}
	_ = m.Ask(ctx, planTimeout, m.ControllerDoor(api.OperateGroup), func(ctx context.Context, conn *grpc.ClientConn) error {
		answer, err := controllerv1.NewControllerClient(conn).GetBackend(ctx, &controllerv1.GetBackendRequest{Name: c.PoolViews[at].Backends[0].Name})
		direct = slices.ContainsFunc(answer.GetChecks(), func(c *controllerv1.BackendCheck) bool {
			return c.GetName() == check && c.GetVia() == string(config.ViaDirect)
		})
		return err // a backend that is new has no checks
	})
	return direct
}
