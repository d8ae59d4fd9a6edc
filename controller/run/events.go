package run

// Reports changes, in the same words, to the log, to the programs of hooks, and to the
// event record.

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/events"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

// Events of this machine.
func (c *Controller) Events() *events.Log { return c.told }

// Tell what changed, now and here. From any goroutine; it waits for nothing.
func (c *Controller) Tell(e events.Event) { c.told.Tell(c.say(e)) }

// say it to the log and to hooks.
func (c *Controller) say(e events.Event) events.Event {
	e = c.stamped(e)
	logEvent(c.log, e)
	c.hooks.Tell(e)
	return e
}

func (c *Controller) stamped(e events.Event) events.Event {
	e.Time, e.Machine = time.Now(), c.machineName()
	return e
}

// machineName before a config says it is that of the former controller, or the host's.
func (c *Controller) machineName() string {
	return cmp.Or(c.configs.Machine(), c.options.Machine, c.former.Machine, config.HostName())
}

func logEvent(log *slog.Logger, e events.Event) {
	level := slog.LevelInfo
	switch {
	case e.To == "different":
		level = slog.LevelError
	case e.IsBad():
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, e.Object.Kind+" "+e.To, "object", e.Object.String(), "from", e.From, "to", e.To, "cause", e.Cause, "who", e.Who)
}

// tellTransitions of the brain. What a start finds of backends, thousands of changes that are
// none, would push all else out of the log of events: there it is one, and the other log has
// those alone that are down.
func (c *Controller) tellTransitions(transitions []brain.Transition) {
	for _, t := range transitions {
		e := events.Event{Object: events.Object{Kind: t.Kind, Name: t.Name}, From: t.From, To: t.To, Cause: t.Reason, Who: t.Who}
		if t.Kind != "backend" || c.probed {
			c.Tell(e)
			continue
		}
		if e = c.stamped(e); e.IsBad() {
			logEvent(c.log, e)
		}
		c.hooks.Tell(e)
	}
	if !c.probed && c.brain.Probed() {
		c.probed = true
		all, down := c.brain.CountBackends()
		c.Tell(events.Event{Object: events.Object{Kind: "controller", Name: "backends"}, From: "unknown", To: "probed", Cause: foundBackends(all, down)})
	}
}

// Of a list that people read.
const namesMax = 5

func foundBackends(all int, down []string) string {
	if len(down) == 0 {
		return fmt.Sprintf("none of %d is down", all)
	}
	slices.Sort(down)
	return fmt.Sprintf("%d of %d are down: %s", len(down), all, config.Enumerate(down, namesMax))
}

// This process, as events name it.
var itself = events.Object{Kind: "controller", Name: "controller"}

// tellFailure of a start. Where there is no state directory to keep it, or before there is a
// config that names hooks, it is an error of the program and nothing else.
func (c *Controller) tellFailure(err error) {
	if c.told != nil && c.hooks != nil {
		c.Tell(events.Event{Object: itself, To: "failed to start", Cause: err.Error()})
	}
}

// tellStart of this process, and how the one before it ended.
func (c *Controller) tellStart() {
	cause := fmt.Sprintf("version %s, in %s and %s", c.options.Version, c.options.RunDir, c.options.StateDir)
	if c.former.To == "started" {
		cause += "; the one before it was killed, or the machine went down"
	}
	c.Tell(events.Event{Object: itself, To: "started", Cause: cause})
}

func (c *Controller) tellStop() {
	e := events.Event{Object: itself, From: "started", To: "stopped", Cause: "the forwarder goes on with its last plan, the speaker with the routes"}
	if c.restarted.Load() {
		e.To, e.Cause, e.Who = "restarting", "the installed program goes on in its place", c.restartedBy
	}
	c.Tell(e)
}

// spoken is what the speaker said last, by object.
type spoken struct {
	latest *speakerv1.State
	states map[events.Object]string
}

// twoOwners: this machine owns a virtual router, and another one claims it.
const twoOwners = "claimed by another"

// tellSpeaker: what the speaker decides, as it says of itself.
func (c *Controller) tellSpeaker(speaker *speakerv1.State) {
	if speaker == nil || speaker == c.spoken.latest {
		return
	}
	before := c.spoken.latest
	c.spoken.latest = speaker
	named := map[events.Object]bool{}
	is := func(kind, name, state, cause string) {
		object := events.Object{Kind: kind, Name: name}
		named[object] = true
		if former := c.spoken.states[object]; former != state {
			c.spoken.states[object] = state
			c.Tell(events.Event{Object: object, From: former, To: state, Cause: cause})
		}
	}
	for _, r := range speaker.GetVrrp() {
		if isAnew(before.GetVrrp(), r, virtualRouter) {
			is("virtual router", virtualRouter(r), "not "+r.GetState(), "between two looks at it")
		}
		state, cause := r.GetState(), r.GetReason()
		if claim := r.GetSecondOwner(); claim != "" {
			state, cause = twoOwners, claim
		} else if c.spoken.states[events.Object{Kind: "virtual router", Name: virtualRouter(r)}] == twoOwners && state == "active" {
			cause = "no other machine has claimed it for a minute"
		}
		is("virtual router", virtualRouter(r), state, cause)
	}
	for _, n := range speaker.GetNeighbors() {
		if n.GetState() != "established" { // which of the others it is changes as long as no router answers
			is("session", n.GetAddress(), "down", cmp.Or(n.GetReason(), n.GetState()))
			continue
		}
		if isAnew(before.GetNeighbors(), n, (*speakerv1.NeighborState).GetAddress) {
			is("session", n.GetAddress(), "down", cmp.Or(n.GetEnded(), "it was begun anew")) // between two polls
		}
		is("session", n.GetAddress(), "established", fmt.Sprintf("the router of AS %d has a BGP session with this machine", n.GetAsn()))
	}
	switch {
	case speaker.GetWithheld() != "":
		is("speaker", "routes", "withheld", speaker.GetWithheld())
	case speaker.GetSlow() != "":
		is("speaker", "routes", "announced as worse ones", speaker.GetSlow())
	default:
		is("speaker", "routes", "announced", "all that are desired")
	}
	if problem := speaker.GetProblem(); problem != "" {
		is("speaker", "config", "failing", problem)
	} else if c.spoken.states[events.Object{Kind: "speaker", Name: "config"}] != "" {
		is("speaker", "config", "in effect", "all of it")
	}
	for object, former := range c.spoken.states {
		if !named[object] {
			delete(c.spoken.states, object)
			c.Tell(events.Event{Object: object, From: former, To: "removed", Cause: "no longer in the config"})
		}
	}
}

// isAnew in the state that it was in before, so that it was in another between two polls.
func isAnew[S interface {
	GetState() string
	GetSince() *timestamppb.Timestamp
}](before []S, now S, name func(S) string) bool {
	return slices.ContainsFunc(before, func(former S) bool {
		return name(former) == name(now) && former.GetState() == now.GetState() && !proto.Equal(former.GetSince(), now.GetSince())
	})
}

func virtualRouter(r *speakerv1.VirtualRouter) string {
	return fmt.Sprintf("%d %s", r.GetVrid(), r.GetFamily())
}

// ObjectsOf a service: itself, its buckets, and what it has of the config in use.
func (c *Controller) ObjectsOf(ctx context.Context, name string) (func(events.Object) bool, error) {
	inUse := c.configInUse(ctx)
	if inUse == nil {
		return nil, api.ErrUnknownService
	}
	at := slices.IndexFunc(inUse.Services, func(s config.Service) bool { return s.Name == name })
	if at < 0 {
		return nil, fmt.Errorf("%s: %w", name, api.ErrUnknownService)
	}
	speaker, _ := c.routes.State()
	return objectsOf(&inUse.Services[at], inUse.Routes(), speaker.GetVrrp()), nil
}

func objectsOf(service *config.Service, routes []config.Route, vrrp []*speakerv1.VirtualRouter) func(events.Object) bool {
	pools := slices.Concat(service.Pools, service.BackupPools)
	is := map[events.Object]bool{
		{Kind: "service", Name: service.Name}: true, {Kind: "buckets", Name: service.Name}: true, {Kind: "drain", Name: "service " + service.Name}: true,
	}
	for _, pool := range pools {
		is[events.Object{Kind: "pool", Name: pool}] = true
	}
	for _, member := range service.Members {
		is[events.Object{Kind: "drain", Name: "backend " + member.Backend.Name}] = true
		is[events.Object{Kind: "agent", Name: member.Backend.Name}] = true
	}
	for _, route := range routes {
		if !slices.Contains(route.Services, service.Name) {
			continue
		}
		is[events.Object{Kind: "route", Name: route.Prefix.String()}] = true
		for _, r := range vrrp {
			if slices.Contains(r.GetVips(), route.Prefix.Addr().String()) {
				is[events.Object{Kind: "virtual router", Name: virtualRouter(r)}] = true
			}
		}
	}
	return func(o events.Object) bool {
		if o.Kind == "agent" { // or several
			return slices.ContainsFunc(strings.Split(o.Name, ", "), func(name string) bool { return is[events.Object{Kind: "agent", Name: name}] })
		}
		if o.Kind != "backend" {
			return is[o] || o.Kind == "service" && strings.HasSuffix(o.Name, " services of "+service.Group)
		}
		of, _, _ := strings.Cut(o.Name, "/")
		return slices.ContainsFunc(strings.Split(of, ","), func(pool string) bool { return slices.Contains(pools, pool) })
	}
}
