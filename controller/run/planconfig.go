package run

// What a config would change, told before it is applied: the config's own
// differences, the plan's for tables and connections (by the forwarder, which
// alone has both), and the routes'. Everything but a copy of the brain's state
// is made in the goroutine of the request.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
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
	parsed, err := c.parseOffered(files)
	if err != nil {
		return nil, err
	}
	var snapshot brain.Snapshot
	var problem error
	if err := c.ask(ctx, func() {
		problem = c.checkNext(parsed)
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
		Probes:     probes,
		Generation: compared.Generation, RestartRequired: compared.RestartRequired,
		Changes: describeChanges(config.Compare(running, parsed)), AssumedActive: foreseen.AssumedActive,
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
	return response, nil
}

func describeAnnouncements(response *controllerv1.PlanConfigResponse, foreseen *brain.Foresight, withBGP bool) {
	if !withBGP {
		return // no router hears of any route
	}
	response.LastSessionEnds = foreseen.LastSessionEnds
	for _, s := range foreseen.Sessions {
		response.Sessions = append(response.Sessions, &controllerv1.SessionChange{
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

// parseOffered parses what a client sends. Where it may take the place of the
// one config file, paths in it begin at that file's directory; mistakes are
// told of the client's file.
func (c *Controller) parseOffered(files []config.Source) (*config.Config, error) {
	if c.shared != nil {
		return c.parseShared(files)
	}
	target, err := c.configFile()
	if err != nil || len(files) != 1 {
		return config.Parse(files, config.ReadFromDisk)
	}
	parsed, err := config.Parse([]config.Source{{Name: target, Data: files[0].Data}}, config.ReadFromDisk)
	if refusal := (*config.Refusal)(nil); errors.As(err, &refusal) {
		return nil, &config.Refusal{Errors: renamed(refusal.Errors, files[0].Name), Warnings: renamed(refusal.Warnings, files[0].Name)}
	}
	if err != nil {
		return nil, err
	}
	parsed.Warnings = renamed(parsed.Warnings, files[0].Name)
	return parsed, nil
}

// parseShared parses what a client sends as what all machines share.
func (c *Controller) parseShared(files []config.Source) (*config.Config, error) {
	sources, err := config.Read(c.options.Config...)
	if err != nil {
		return nil, err
	}
	if len(files) != 1 {
		return nil, fmt.Errorf("a config of %d files cannot be stored in etcd: give one file", len(files))
	}
	next := c.shared.running().GetGeneration() + 1
	return config.Parse(append(sources, config.Source{Name: files[0].Name, Data: files[0].Data, Generation: next}), config.ReadFromDisk)
}

func renamed(problems config.Problems, file string) config.Problems {
	var told config.Problems
	for _, p := range problems {
		p.File = file
		told = append(told, p)
	}
	return told
}

// configFile is the one file that is the config, links followed.
func (c *Controller) configFile() (string, error) {
	const cure = "edit the files and `guideway reload`"
	if n := len(c.options.Config); n != 1 {
		return "", api.Unmetf("the controller's config is %d files or directories, of which none alone can be replaced: %s", n, cure)
	}
	path, err := filepath.Abs(c.options.Config[0])
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "", api.Unmetf("the controller's config file: %w", err)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", api.Unmetf("the controller's config file: %w", err)
	case info.IsDir():
		return "", api.Unmetf("the controller's config is the directory %s, which is not replaced: %s", path, cure)
	}
	return path, nil
}

// checkNext: whether this config may follow the one in use.
func (c *Controller) checkNext(parsed *config.Config) error {
	if err := config.CheckChange(c.loaded.inUse, parsed); err != nil {
		return err
	}
	if err := c.refuseOtherEtcd(parsed); err != nil {
		return err
	}
	return c.refuseOtherSecret(parsed)
}

func describeChanges(changes []config.Change) []*controllerv1.ConfigChange {
	var described []*controllerv1.ConfigChange
	for _, change := range changes {
		d := &controllerv1.ConfigChange{Kind: change.Kind, Name: change.Name, What: string(change.What)}
		for _, f := range change.Fields {
			d.Fields = append(d.Fields, &controllerv1.FieldChange{Field: f.Field, Before: f.Before, After: f.After})
		}
		described = append(described, d)
	}
	return described
}

// describeService: nil where nothing changes and no connection is tracked.
func describeService(s *forwarderv1.ServiceComparison) *controllerv1.ServiceChange {
	d := &controllerv1.ServiceChange{
		Service: s.Service, Entries: s.Entries, EntriesChanged: s.EntriesChanged, EntriesMoved: s.EntriesMoved,
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
			Backend: b.Backend, Before: share(b.EntriesBefore, before), After: share(b.EntriesAfter, after),
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
