package run

// Shows what a config would change before it is applied: the differences between the
// configs, those of tables and connections (from the forwarder, which alone has both), and
// those of routes. The brain only supplies a copy of its state; all other work is done in
// the goroutine of the request.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/configs"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// How long new probes are tried: 256 at once, each for its timeout.
const tryTimeout = 15 * time.Second

// How long the forwarder may take to compare: building the tables of a large
// plan takes seconds on a slow machine, and so does reading all connections.
const compareTimeout = 60 * time.Second

// PlanConfig returns what these files would change as the config.
func (c *Controller) PlanConfig(ctx context.Context, files []config.Source) (*controllerv1.PlanConfigResponse, error) {
	parsed, err := c.configs.ParseSent(files)
	if err != nil {
		return nil, err
	}
	var snapshot brain.Snapshot
	var problem error
	var number uint64
	if err := c.Ask(ctx, func() {
		problem, number = c.configs.CheckNext(parsed), c.configs.NumberInUse()
		snapshot = c.brain.Snapshot()
	}); err != nil {
		return nil, err
	}
	if problem != nil {
		return nil, problem
	}
	running := snapshot.Config()
	foreseen := snapshot.Foresee(parsed)
	if running == nil || foreseen == nil {
		return nil, api.Unmetf("the forwarder at %s has not yet been reached: there is nothing to compare with", forwarderSocket(c.options.RunDir))
	}
	compared, err := c.comparePlan(ctx, foreseen)
	if err != nil {
		return nil, err
	}
	probes, err := c.tryProbes(ctx, foreseen.NewProbes)
	if err != nil {
		return nil, err
	}
	response := &controllerv1.PlanConfigResponse{
		Number: number, NewProbes: probes, RestartRequired: compared.RestartRequired,
		Changes: api.DescribeChanges(config.Compare(running, parsed)), AssumedActive: foreseen.AssumedActive,
		UntrackedTableFull: compared.UntrackedTableFull, UntrackedQuota: compared.UntrackedQuota,
	}
	for _, service := range compared.Services {
		if change := describeService(service); change != nil {
			response.Services = append(response.Services, change)
		}
	}
	describeAnnouncements(response, foreseen, running.BGP != nil || parsed.BGP != nil)
	for _, warning := range parsed.Warnings {
		response.Warnings = append(response.Warnings, warning.String())
	}
	response.Warnings = append(response.Warnings, foreseen.Unknown...)
	response.Changed = len(response.Changes)+len(response.Routes)+len(response.BgpSessions) > 0 || slices.ContainsFunc(response.Services, api.IsChanged)
	return response, nil
}

func describeAnnouncements(response *controllerv1.PlanConfigResponse, foreseen *brain.Foresight, withBGP bool) {
	if !withBGP {
		return // no router hears of any route
	}
	response.LastBgpSessionEnds = foreseen.LastSessionEnds
	for _, s := range foreseen.Sessions {
		response.BgpSessions = append(response.BgpSessions, &controllerv1.SessionChange{
			Address: s.Neighbor.Address.String(), Asn: s.Neighbor.ASN, Removed: s.Removed, Reason: s.Reason, Routes: uint32(foreseen.RoutesHeard),
		})
	}
	for _, r := range foreseen.Routes {
		response.Routes = append(response.Routes, &controllerv1.RouteChange{Prefix: r.Prefix.String(), Announced: r.Announced, Reason: r.Reason, Services: r.Services})
	}
}

// tryProbes that a config adds, once: a check that no backend passes, or a firewall that lets
// none through, is seen before anything depends on it.
func (c *Controller) tryProbes(ctx context.Context, targets []compile.Target) (*controllerv1.TriedProbes, error) {
	probes := make([]compile.Probe, len(targets))
	for i := range targets {
		probes[i] = targets[i].Probe
	}
	trying, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	results := c.prober.Once(trying, probes)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	tried := &controllerv1.TriedProbes{}
	for i, result := range results {
		switch {
		case result.OK:
			tried.Passed++
		case result.Unsent:
			tried.Untried++
			tried.UntriedReason = cmp.Or(tried.UntriedReason, result.Reason)
		default:
			tried.Failed = append(tried.Failed, describeFailure(&targets[i], result.Reason)...)
		}
	}
	return tried, nil
}

// describeFailure for each backend that it concerns.
func describeFailure(t *compile.Target, reason string) []*controllerv1.FailedProbe {
	var failed []*controllerv1.FailedProbe
	told := map[string]bool{}
	for _, at := range t.For {
		if !told[at.Backend] {
			told[at.Backend] = true
			failed = append(failed, &controllerv1.FailedProbe{Backend: at.Backend, HealthCheck: t.HealthCheck.Name, Via: string(t.Via()), Reason: reason})
		}
	}
	return failed
}

// TryPlan of a config by the forwarder; nothing changes.
func (c *Controller) TryPlan(ctx context.Context, from brain.Snapshot, parsed *config.Config) error {
	foreseen := from.Foresee(parsed)
	if foreseen == nil {
		return api.Unmetf("the forwarder at %s has not yet been reached: it cannot check the config", forwarderSocket(c.options.RunDir))
	}
	compared, err := c.comparePlan(ctx, foreseen)
	if err != nil {
		return err
	}
	if compared.RestartRequired != "" {
		return api.Unmetf("%w: %s", configs.ErrRestartRequired, compared.RestartRequired)
	}
	return nil
}

func (c *Controller) comparePlan(ctx context.Context, foreseen *brain.Foresight) (*forwarderv1.ComparePlanResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	compared, err := c.forwarder.Client().ComparePlan(ctx, &forwarderv1.ComparePlanRequest{Plan: foreseen.Plan})
	switch status.Code(err) {
	case codes.OK:
		return compared, nil
	case codes.InvalidArgument:
		return nil, fmt.Errorf("the forwarder would refuse the plan: %s", status.Convert(err).Message())
	case codes.Unimplemented:
		return nil, api.Unmetf("the forwarder at %s is of a version that compares no plans: `systemctl reload guideway-forwarder` goes on with the installed one", forwarderSocket(c.options.RunDir))
	}
	return nil, api.Unmetf("the forwarder at %s: %s", forwarderSocket(c.options.RunDir), status.Convert(err).Message())
}

// describeService: nil where nothing changes and no connection is tracked.
func describeService(s *forwarderv1.ServiceComparison) *controllerv1.ServiceChange {
	d := &controllerv1.ServiceChange{
		Service: s.Service, TableEntries: s.Entries, TableEntriesChanged: s.EntriesChanged, TableEntriesMoved: s.EntriesMoved,
		Established: describeOutcomes(s.Established), OpeningOrClosing: describeOutcomes(s.OpeningOrClosing), QuotaReached: s.QuotaReached,
		SharesAs: s.SharesAs,
	}
	if s.EntriesChanged == 0 && connections(d.Established)+connections(d.OpeningOrClosing) == 0 {
		return nil
	}
	var before, after uint32
	for _, b := range s.Backends {
		before += b.EntriesBefore
		after += b.EntriesAfter
	}
	for _, b := range s.Backends {
		d.Backends = append(d.Backends, &controllerv1.ShareChange{
			Backend: b.Backend, ShareBefore: share(b.EntriesBefore, before), ShareAfter: share(b.EntriesAfter, after),
		})
	}
	return d
}

func describeOutcomes(o *forwarderv1.ConnectionOutcomes) *controllerv1.ConnectionChange {
	return &controllerv1.ConnectionChange{Staying: o.GetStaying(), Moving: o.GetMoving(), Breaking: o.GetBreaking(), Unknown: o.GetUnknown()}
}

func connections(c *controllerv1.ConnectionChange) uint64 {
	return c.Staying + c.Moving + c.Breaking + c.Unknown
}

func share(of, all uint32) float64 {
	if all == 0 {
		return 0
	}
	return float64(of) / float64(all)
}
