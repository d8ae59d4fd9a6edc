package run

// Implements api.Host for the CLI, and the sources of web and metrics.

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/events"
	"github.com/guideway/guideway/controller/rates"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

func forwarderSocket(runDir string) string { return filepath.Join(runDir, "forwarder.sock") }

// State is everything at one moment.
func (c *Controller) State(ctx context.Context) (*controllerv1.GetStateResponse, error) {
	return c.StateOf(ctx, &controllerv1.GetStateRequest{})
}

// StateOf is what the request names, at one moment.
func (c *Controller) StateOf(ctx context.Context, request *controllerv1.GetStateRequest) (*controllerv1.GetStateResponse, error) {
	var view brain.View
	if err := c.Ask(ctx, func() { view = c.brain.View(!request.GetWithoutBackends()) }); err != nil {
		return nil, err
	}
	loaded := c.configs.Loaded()
	var neighbors []config.Neighbor
	if bgp := loaded.Parsed.BGP; bgp != nil {
		neighbors = bgp.Neighbors
	}
	state := api.Describe(view)
	state.Version = c.options.Version
	state.Config.Source, state.Config.NotKept, state.Config.Etcd = loaded.From, c.configs.NotKept(), c.configs.Etcd().Describe()
	c.describeSpeaker(state, neighbors)
	describeUnheard(state, loaded.Parsed)
	return state, nil
}

// describeUnheard: what no router hears, and no owner of a VIP answers for, is not announced,
// although the speaker has it.
func describeUnheard(state *controllerv1.GetStateResponse, config *config.Config) {
	reason := api.NoSession
	switch {
	case config.BGP == nil:
		reason = api.NoBGP
	case slices.ContainsFunc(state.Neighbors, func(n *controllerv1.Neighbor) bool { return n.State == "established" }):
		return
	}
	for _, r := range state.Routes {
		if why := cmp.Or(notOwned(state, r.Prefix, config.VRRP != nil), reason); r.Announced && why != api.Owned {
			r.Announced, r.GracefulShutdown, r.Reason = false, false, why
		}
	}
}

// notOwned says why this machine does not own a VIP, or that it does; empty: nobody is to.
func notOwned(state *controllerv1.GetStateResponse, prefix string, isConfigured bool) string {
	vip, _, _ := strings.Cut(prefix, "/")
	at := slices.IndexFunc(state.Vrrp, func(r *speakerv1.VirtualRouter) bool { return slices.Contains(r.Vips, vip) })
	switch {
	case !isConfigured:
		return ""
	case at < 0:
		return cmp.Or(state.Speaker.GetProblem(), state.Speaker.GetWithheld(), "the speaker does not know it yet")
	case state.Vrrp[at].State == "active":
		return api.Owned
	case state.Vrrp[at].State == "backup":
		return "VRRP: " + cmp.Or(state.Vrrp[at].Owner, "another machine") + " owns it"
	}
	return "VRRP: " + state.Vrrp[at].Reason
}

// describeSpeaker adds what the speaker says; where it does not answer, what
// sessions there should be.
func (c *Controller) describeSpeaker(state *controllerv1.GetStateResponse, neighbors []config.Neighbor) {
	speaker, lost := c.routes.State()
	state.Speaker = &controllerv1.SpeakerState{Reason: lost}
	if speaker == nil {
		for _, n := range neighbors {
			state.Neighbors = append(state.Neighbors, &controllerv1.Neighbor{Address: n.Address.String(), Asn: n.ASN, State: "unknown", Reason: "the speaker " + lost})
		}
		return
	}
	state.Speaker = &controllerv1.SpeakerState{Answers: true, Version: speaker.GetVersion(), Withheld: speaker.GetWithheld(), Problem: speaker.GetProblem(), NotKept: speaker.GetNotKept(), Slow: speaker.GetSlow()}
	state.Vrrp, state.VrrpCounts, state.VrrpProbes = speaker.GetVrrp(), speaker.GetVrrpCounts(), speaker.GetVrrpProbes()
	for _, n := range speaker.GetNeighbors() {
		neighbor := &controllerv1.Neighbor{Address: n.GetAddress(), Asn: n.GetAsn(), State: n.GetState(), Reason: n.GetReason(), Since: n.GetSince(), Attributes: n.GetAttributes(), Bfd: n.GetBfd()}
		if n.GetState() == "established" {
			neighbor.AnnouncedPrefixes = speaker.GetRoutesAnnounced()
		}
		state.Neighbors = append(state.Neighbors, neighbor)
	}
}

// BackendOf is one backend and what its probes brought.
func (c *Controller) BackendOf(ctx context.Context, name string) (*controllerv1.GetBackendResponse, error) {
	var detail brain.BackendDetail
	var known bool
	if err := c.Ask(ctx, func() { detail, known = c.brain.Backend(name) }); err != nil {
		return nil, err
	}
	if !known {
		return nil, fmt.Errorf("%s: %w", name, api.ErrUnknownBackend)
	}
	return api.DescribeBackend(detail), nil
}

// answers of backends whose agents measure them.
func (c *Controller) answers(ctx context.Context) map[string]*controllerv1.Answers {
	var known map[string]*brain.Answers
	if c.Ask(ctx, func() { known = c.brain.Answers() }) != nil {
		return nil // it ends
	}
	described := make(map[string]*controllerv1.Answers, len(known))
	for backend, answers := range known {
		described[backend] = api.DescribeAnswers(answers)
	}
	return described
}

// notReady lists what is missing before a client would be served here.
func (c *Controller) notReady(ctx context.Context) (missing []string, err error) {
	err = c.Ask(ctx, func() { missing = c.brain.NotReady() })
	return missing, err
}

// Reload reads files and etcd anew, for a user, and returns when the forwarder has
// accepted or refused the plan, if it is there.
func (c *Controller) Reload(ctx context.Context, user string, acceptOlder bool) ([]string, error) {
	if err := c.configs.Reload(ctx, user, acceptOlder); err != nil {
		return nil, err
	}
	var warnings []string
	var connected bool
	if err := c.Ask(ctx, func() { warnings, connected = c.brain.Warnings(), c.brain.ForwarderConnected() }); err != nil {
		return nil, err
	}
	if !connected {
		return append(warnings, "the forwarder is not connected: it gets the plan when it is"), nil
	}
	accepted, err := c.configs.AwaitAccepted(ctx)
	return accepted.GetWarnings(), err
}

// Forwarder of this machine.
func (c *Controller) Forwarder() forwarderv1.ForwarderClient { return c.forwarder.Client() }

// ConfigNumber of the config in use; 0: none, or not recorded.
func (c *Controller) ConfigNumber() uint64 { return c.configs.NumberInUse() }

// ApplyConfig checks a config that is about to take the place of the one that runs.
func (c *Controller) ApplyConfig(ctx context.Context, user string, order *controllerv1.ApplyOrder, files []config.Source) (api.Applying, error) {
	applying, err := c.configs.Apply(ctx, user, order, files)
	if err != nil {
		c.Tell(events.Event{Object: events.Object{Kind: "config", Name: "config"}, To: "refused", Cause: "apply: " + err.Error(), Who: user})
	}
	return applying, err
}

// EndCanary has all machines take what one runs alone, or that one return.
func (c *Controller) EndCanary(ctx context.Context, user string, request *controllerv1.EndCanaryRequest) (*controllerv1.ApplyConfigResponse, error) {
	return c.configs.Etcd().EndCanary(ctx, user, request)
}

// ConfigHistory lists the configs that were in use.
func (c *Controller) ConfigHistory(ctx context.Context) (*controllerv1.GetConfigHistoryResponse, error) {
	return c.configs.List(ctx)
}

// RecordedConfig returns one of them; 0: the one in use.
func (c *Controller) RecordedConfig(ctx context.Context, number uint64) (*controllerv1.GetConfigResponse, error) {
	return c.configs.Get(ctx, number)
}

// Rates of this machine.
func (c *Controller) Rates() *rates.Rates { return c.rates }

// Brain is for its goroutine, for which configs asks.
func (c *Controller) Brain() *brain.State { return c.brain }

// Go runs f beside the brain's goroutine until the controller stops.
func (c *Controller) Go(f func(context.Context)) { c.tasks.Go(func() { f(c.work) }) }

// Reloaded: a config was loaded or refused.
func (c *Controller) Reloaded(ok bool) { c.metrics.Reloaded(ok, time.Now()) }

func (c *Controller) forwarderMetrics(ctx context.Context) (string, error) {
	response, err := c.forwarder.Client().GetMetrics(ctx, &forwarderv1.GetMetricsRequest{})
	if err != nil {
		return "", fmt.Errorf("metrics of the forwarder: %w", err)
	}
	return response.Text, nil
}

func (c *Controller) forwarderCounters(ctx context.Context) (*forwarderv1.GetCountersResponse, error) {
	counters, err := c.forwarder.Client().GetCounters(ctx, &forwarderv1.GetCountersRequest{})
	return counters, c.ofForwarder(err)
}

func (c *Controller) forwarderStatus(ctx context.Context) (*forwarderv1.GetStatusResponse, error) {
	status, err := c.forwarder.Client().GetStatus(ctx, &forwarderv1.GetStatusRequest{})
	return status, c.ofForwarder(err)
}

// ofForwarder says who did not answer.
func (c *Controller) ofForwarder(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the forwarder at %s: %s", forwarderSocket(c.options.RunDir), status.Convert(err).Message())
}
