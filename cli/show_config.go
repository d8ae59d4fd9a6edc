package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
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
	Cluster          string       `json:"cluster"`
	Endpoints        []string     `json:"endpoints"`
	Generation       uint64       `json:"generation"`
	GenerationStored uint64       `json:"generation_stored"`
	Away             string       `json:"away,omitempty"`
	AnsweredAt       string       `json:"answered_at,omitempty"`
	Alarms           []string     `json:"alarms"`
	Unusable         string       `json:"unusable,omitempty"`
	Restored         uint64       `json:"restored"`
	NotRegistered    string       `json:"not_registered,omitempty"`
	Canary           *shownCanary `json:"canary,omitempty"`
}

// shownCanary is a config that one machine alone runs.
type shownCanary struct {
	Machine    string `json:"machine"`
	Generation uint64 `json:"generation"`
	User       string `json:"user,omitempty"`
	Since      string `json:"since,omitempty"`
}

func shownCanaryOf(canary *fleetv1.Canary) *shownCanary {
	if canary == nil {
		return nil
	}
	return &shownCanary{Machine: canary.GetMachine(), Generation: canary.GetConfig().GetGeneration(), User: canary.GetUser(), Since: at(canary.GetTime())}
}

func (c *shownCanary) text() string {
	return fmt.Sprintf("%s alone runs generation %d, applied by %s: `guideway config promote` or `guideway config cancel`", c.Machine, c.Generation, dash(c.User))
}

func showConfig(ctx context.Context, m machine, _ io.Writer) (listing, error) {
	var state *controllerv1.GetStateResponse
	err := m.askController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) (err error) {
		state, err = client.GetState(ctx, &controllerv1.GetStateRequest{WithoutBackends: true})
		return err
	})
	if err != nil {
		return listing{}, err
	}
	return configListing(state.Config), nil
}

func configListing(c *controllerv1.Config) listing {
	shown := shownConfig{Source: c.GetSource(), LoadedAt: at(c.GetLoadedAt()), Stale: c.GetStale(), Problem: c.GetProblem(), NotKept: c.GetNotKept()}
	newest := "yes"
	if shown.Stale {
		newest = "no, it is refused: " + shown.Problem
	}
	list := listing{header: []string{"WHAT", "STATE"}, wideFrom: 2, none: "no config is in use"}
	list.rows = [][]string{{"source", dash(shown.Source)}, {"loaded at", shown.LoadedAt}, {"newest", newest}}
	if shown.NotKept != "" {
		list.rows = append(list.rows, []string{"kept for a restart", "no: " + shown.NotKept})
	}
	if e := c.GetEtcd(); e != nil {
		shown.Etcd = &shownEtcd{
			Cluster: e.Cluster, Endpoints: e.Endpoints, Generation: e.Generation, GenerationStored: e.GenerationStored, Away: e.Away,
			Alarms: append([]string{}, e.Alarms...), Unusable: e.Unusable, Restored: e.Restored, NotRegistered: e.NotRegistered, Canary: shownCanaryOf(e.Canary),
		}
		if e.AnsweredAt != nil {
			shown.Etcd.AnsweredAt = at(e.AnsweredAt)
		}
		list.rows = append(list.rows, etcdRows(e)...)
		if shown.Etcd.Canary != nil {
			list.rows = append(list.rows, []string{"canary", shown.Etcd.Canary.text()})
		}
	}
	list.value = shown
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
		{"etcd", state}, {"etcd's endpoints", strings.Join(e.Endpoints, " ")}, {"etcd's alarms", dash(strings.Join(e.Alarms, ", "))},
		{"generation in use", fmt.Sprint(e.Generation)}, {"generation in etcd", stored},
		{"registered in etcd", registered},
	}
}
