package show

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

// CanaryText for people.
func CanaryText(c *fleetv1.Canary) string {
	return fmt.Sprintf("%s alone runs config %d, applied by %s: `guideway config promote` or `guideway config cancel`", c.GetMachine(), c.GetConfig().GetGeneration(), output.Dash(c.GetUser()))
}

func showConfig(ctx context.Context, m machine.Machine, _ io.Writer) (output.Listing, error) {
	var state *controllerv1.GetStateResponse
	err := m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) (err error) {
		state, err = client.GetState(ctx, &controllerv1.GetStateRequest{WithoutBackends: true})
		return err
	})
	if err != nil {
		return output.Listing{}, err
	}
	return configListing(state.Config), nil
}

func configListing(c *controllerv1.Config) output.Listing {
	newest := "yes"
	if c.GetStale() {
		newest = "no, it is refused: " + c.GetProblem()
	}
	list := output.Listing{Value: plainjson.Value{Message: c}, Header: []string{"WHAT", "STATE"}, WideFrom: 2, None: "no config is in use"}
	list.Rows = [][]string{{"source", output.Dash(c.GetSource())}, {"loaded at", output.At(c.GetLoadedAt())}, {"newest", newest}}
	if why := c.GetNotKept(); why != "" {
		list.Rows = append(list.Rows, []string{"kept for a restart", "no: " + why})
	}
	if e := c.GetEtcd(); e != nil {
		list.Rows = append(list.Rows, etcdRows(e)...)
		if e.Canary != nil {
			list.Rows = append(list.Rows, []string{"canary", CanaryText(e.Canary)})
		}
	}
	return list
}

func etcdRows(e *controllerv1.Etcd) [][]string {
	state := "answers"
	switch {
	case e.Away != "":
		state = "away: " + e.Away
	case e.Unusable != "":
		state = "answers, but " + e.Unusable
	}
	stored := fmt.Sprint(e.ConfigStored)
	if e.ConfigStored == 0 {
		stored = "none"
	}
	registered := "yes"
	if e.NotRegistered != "" {
		registered = "no: " + e.NotRegistered
	}
	return [][]string{
		{"etcd", state}, {"etcd's endpoints", strings.Join(e.Endpoints, " ")}, {"etcd's alarms", output.Dash(strings.Join(e.Alarms, ", "))},
		{"config in use", fmt.Sprint(e.Config)}, {"config in etcd", stored},
		{"registered in etcd", registered},
	}
}
