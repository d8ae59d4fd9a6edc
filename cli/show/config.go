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
)

type shownConfig struct {
	Source   string     `json:"source"`
	LoadedAt string     `json:"loaded_at"`
	Stale    bool       `json:"stale"`
	Problem  string     `json:"problem,omitempty"`
	NotKept  string     `json:"not_kept,omitempty"`
	Etcd     *shownEtcd `json:"etcd,omitempty"`
}

type shownEtcd struct {
	Cluster   string   `json:"cluster"`
	Endpoints []string `json:"endpoints"`
	// Numbers in the history: of the config in use, and of the one in etcd.
	Config        uint64   `json:"config"`
	ConfigStored  uint64   `json:"config_stored"`
	Away          string   `json:"away,omitempty"`
	AnsweredAt    string   `json:"answered_at,omitempty"`
	Alarms        []string `json:"alarms"`
	Unusable      string   `json:"unusable,omitempty"`
	Restored      uint64   `json:"restored"`
	NotRegistered string   `json:"not_registered,omitempty"`
	Canary        *Canary  `json:"canary,omitempty"`
}

// Canary is a config that one machine alone runs.
type Canary struct {
	Machine string `json:"machine"`
	Config  uint64 `json:"config"`
	User    string `json:"user,omitempty"`
	Since   string `json:"since,omitempty"`
}

// CanaryOf what the controller says; nil: there is none.
func CanaryOf(canary *fleetv1.Canary) *Canary {
	if canary == nil {
		return nil
	}
	return &Canary{Machine: canary.GetMachine(), Config: canary.GetConfig().GetGeneration(), User: canary.GetUser(), Since: output.At(canary.GetTime())}
}

// Text for people.
func (c *Canary) Text() string {
	return fmt.Sprintf("%s alone runs config %d, applied by %s: `guideway config promote` or `guideway config cancel`", c.Machine, c.Config, output.Dash(c.User))
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
	shown := shownConfig{Source: c.GetSource(), LoadedAt: output.At(c.GetLoadedAt()), Stale: c.GetStale(), Problem: c.GetProblem(), NotKept: c.GetNotKept()}
	newest := "yes"
	if shown.Stale {
		newest = "no, it is refused: " + shown.Problem
	}
	list := output.Listing{Header: []string{"WHAT", "STATE"}, WideFrom: 2, None: "no config is in use"}
	list.Rows = [][]string{{"source", output.Dash(shown.Source)}, {"loaded at", shown.LoadedAt}, {"newest", newest}}
	if shown.NotKept != "" {
		list.Rows = append(list.Rows, []string{"kept for a restart", "no: " + shown.NotKept})
	}
	if e := c.GetEtcd(); e != nil {
		shown.Etcd = &shownEtcd{
			Cluster: e.Cluster, Endpoints: e.Endpoints, Config: e.Generation, ConfigStored: e.GenerationStored, Away: e.Away,
			Alarms: append([]string{}, e.Alarms...), Unusable: e.Unusable, Restored: e.Restored, NotRegistered: e.NotRegistered, Canary: CanaryOf(e.Canary),
		}
		if e.AnsweredAt != nil {
			shown.Etcd.AnsweredAt = output.At(e.AnsweredAt)
		}
		list.Rows = append(list.Rows, etcdRows(e)...)
		if shown.Etcd.Canary != nil {
			list.Rows = append(list.Rows, []string{"canary", shown.Etcd.Canary.Text()})
		}
	}
	list.Value = shown
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
	stored := fmt.Sprint(e.GenerationStored)
	if e.GenerationStored == 0 {
		stored = "none"
	}
	registered := "yes"
	if e.NotRegistered != "" {
		registered = "no: " + e.NotRegistered
	}
	return [][]string{
		{"etcd", state}, {"etcd's endpoints", strings.Join(e.Endpoints, " ")}, {"etcd's alarms", output.Dash(strings.Join(e.Alarms, ", "))},
		{"config in use", fmt.Sprint(e.Generation)}, {"config in etcd", stored},
		{"registered in etcd", registered},
	}
}
