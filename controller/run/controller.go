// Package run runs the control plane of one machine: it turns config, probes and the
// forwarder's state into a plan for the forwarder and routes for the BGP neighbors.
//
//	config ─┐                                ┌─► prober.Set(targets)
//	probes ─┤                                ├─► forwarder.Set(plan)
//	health ─┼─► events ─► brain.Step ─► Desired ─► routes.Set(routes), to the speaker
//	BGP ────┤                                ├─► members.Set(config)
//	members ┤                                └─► kept on disk: last good config
//	people ─┘
//
// One goroutine owns the brain. It receives everything that happens as events, and passes
// on the whole desired state. It makes no decisions itself.
package run

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/configs"
	"github.com/guideway/guideway/controller/events"
	"github.com/guideway/guideway/controller/hooks"
	"github.com/guideway/guideway/controller/metrics"
	"github.com/guideway/guideway/controller/notify"
	"github.com/guideway/guideway/controller/rates"
	"github.com/guideway/guideway/controller/sinks/agents"
	"github.com/guideway/guideway/controller/sinks/fleet"
	"github.com/guideway/guideway/controller/sinks/forwarder"
	"github.com/guideway/guideway/controller/sinks/members"
	"github.com/guideway/guideway/controller/sinks/peers"
	"github.com/guideway/guideway/controller/sinks/prober"
	"github.com/guideway/guideway/controller/sinks/routes"
	"github.com/guideway/guideway/controller/statedir"
	"github.com/guideway/guideway/controller/store"
	agentv1 "github.com/guideway/guideway/proto/guideway/agent/v1"
	"github.com/guideway/guideway/speaker/health"
)

// Options of `guideway controller`.
type Options struct {
	// Files and directories that make the config.
	Config []string
	// Which of their `machines` this one is; empty: the one with its host name.
	Machine string
	// The forwarder's sockets, and in controller/ the controller's.
	RunDir string
	// The last good config, drains by command.
	StateDir string
	// Programs that hear of changes.
	HooksDir string
	// Reload when a file of the config changes.
	Watch   bool
	Version string
	Log     *slog.Logger
}

// Controller is one running controller.
type Controller struct {
	options Options
	log     *slog.Logger
	notify  notify.Notifier
	store   store.Store
	keeper  *statedir.Keeper

	brain     *brain.State
	prober    *prober.Prober
	members   *members.Members
	peers     *prober.Peers
	forwarder *forwarder.Sink
	routes    *routes.Sink
	agents    *agents.Listener
	exchange  *peers.Exchange
	metrics   *metrics.Metrics
	web       *webServer
	hooks     *hooks.Hooks
	remote    *api.Remote

	warned []string // the forwarder's latest warnings; of the sink's goroutine only
	// A missing capability is said once.
	peersForbidden sync.Once

	// Which config, and how one comes into use.
	configs *configs.Configs
	// As they were read last.
	machines machinesSeen
	audit    *api.Audit
	rates    *rates.Rates
	// What changed here; and what the controller before this one said of itself last.
	told   *events.Log
	former events.Record

	// What runs beside the loop, as long as work does.
	work  context.Context
	tasks sync.WaitGroup
	// Ends Run, for the installed program to be executed.
	restart   context.CancelFunc
	restarted atomic.Bool
	// Written before restarted is.
	restartedBy string

	// To the goroutine that owns the brain.
	events chan brain.Event
	asks   chan func()
	done   chan struct{}
	// The forwarder's health goes past everything else that waits for it: the
	// latest answer not yet looked at, and that there is one.
	health     atomic.Pointer[health.Answer]
	healthNews chan struct{}

	// Of that goroutine only.
	targets map[compile.Probe]*probed
	unsent  string // why a probe could not be sent, as last logged
	again   time.Time
	// As kept on disk.
	withdrawn bool
	spoken    spoken
	// Every backend was probed once.
	probed bool

	registration registration
	traffic      traffic
	// What is drained on all machines. Of the goroutine that owns the brain.
	fleetDrains []fleet.Drained
	// Without etcd: how that came, for the peers.
	drainChanges fleet.Changes
	clocksTold   bool
}

// Run runs until the context ends. Forwarder and speaker go on without it.
// ErrRestart: it was requested to be executed anew.
func Run(ctx context.Context, options Options) error {
	if options.Log == nil {
		options.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	sockets, err := api.Listen(options.RunDir)
	if err != nil {
		return err
	}
	defer sockets.Close()
	for _, why := range sockets.NotShared {
		options.Log.Info(why)
	}
	c, err := start(options)
	if err != nil {
		return err
	}
	defer c.close()
	ctx, c.restart = context.WithCancel(ctx)
	defer c.restart()
	var stopWork context.CancelFunc
	c.work, stopWork = context.WithCancel(ctx)
	defer func() { stopWork(); c.tasks.Wait() }()
	operators, viewers := c.server(api.Users(api.Operate)), c.server(api.Users(api.View))
	c.tasks.Go(func() { _ = operators.Serve(sockets.Operate) }) // ends with Stop
	c.tasks.Go(func() { _ = viewers.Serve(sockets.View) })
	defer operators.Stop()
	defer viewers.Stop()
	c.tellStart()
	c.begin()
	c.notify.Ready()
	c.loop(ctx)
	c.tellStop()
	c.stop()
	if c.restarted.Load() {
		return ErrRestart
	}
	return nil
}

// begin everything that runs beside the loop, until work ends.
func (c *Controller) begin() {
	work := c.work
	for _, run := range append(c.configs.Tasks(), c.hooks.Run, c.remote.Run, c.forwarder.Run, c.routes.Run, c.exchange.Run, c.rates.Run) {
		c.tasks.Go(func() { run(work) })
	}
	c.tasks.Go(func() { health.Watch(work, c.options.RunDir, c.heardOfHealth) })
	watchers := []func(context.Context, *Controller){watchSignals, watchGateway, watchTraffic, watchMachines}
	if etcd := c.configs.Etcd(); etcd != nil {
		c.tasks.Go(func() {
			etcd.Store.FollowDrains(work, c.log, func(drains fleet.Drains) { c.takeFleetDrains(work, drains) })
		})
	}
	for _, watch := range watchers {
		c.tasks.Go(func() { watch(work, c) })
	}
}

// start makes everything and loads the config; what it made is gone if that fails.
func start(options Options) (c *Controller, err error) {
	c = &Controller{
		options:    options,
		log:        options.Log,
		notify:     notify.New(),
		store:      store.Store{Dir: options.StateDir},
		keeper:     statedir.NewKeeper(0),
		brain:      brain.New(time.Now()),
		prober:     prober.New(),
		events:     make(chan brain.Event, 1024),
		asks:       make(chan func()),
		done:       make(chan struct{}),
		healthNews: make(chan struct{}, 1),
		targets:    map[compile.Probe]*probed{},
		spoken:     spoken{states: map[events.Object]string{}},
	}
	c.registration.c = c
	c.members = members.New(c.Enqueue)
	defer func() {
		if err != nil {
			c.tellFailure(err)
			close(c.done) // there is no loop that events wait for
			c.close()
			c = nil
		}
	}()
	if err = c.store.Prepare(); err != nil {
		return c, err
	}
	if c.audit, err = api.OpenAudit(options.StateDir, c.log); err != nil {
		return c, err
	}
	c.told = events.Open(options.StateDir, c.log)
	c.told.Start()
	c.former, _ = c.told.Latest(itself)
	c.configs, err = configs.Open(configs.Settings{
		Files: options.Config, Machine: cmp.Or(options.Machine, config.HostName()), Watch: options.Watch, Store: c.store, Keeper: c.keeper, Host: c, Audit: c.audit, Notify: c.notify, Log: c.log,
	})
	if err != nil {
		return c, err
	}
	if c.routes, err = routes.New(options.RunDir, c.log, c.Enqueue); err != nil {
		return c, err
	}
	c.peers = prober.NewPeers(c.peerResult)
	c.forwarder, err = forwarder.New(forwarderSocket(options.RunDir), c.log, c.forwarderEvent)
	if err != nil {
		return c, err
	}
	c.rates = rates.New(rates.Source{Counters: c.forwarderCounters, Status: c.forwarderStatus, Machine: c.machineName, Answers: c.answers})
	c.remote = api.NewRemote(api.Settings{Host: c, Audit: c.audit}, c.log)
	c.agents = agents.New(c.log, c.agentState)
	c.exchange = peers.New(c.log, c.Register, c.takeDrainChanges)
	c.metrics = metrics.New(options.Version, metrics.Sources{State: c.State, Forwarder: c.forwarderMetrics, LateProbes: c.prober.Late, Certificates: c.remote.Expiry, Fleet: c.fleetMetrics, Agents: c.agents})
	c.hooks = hooks.New(options.HooksDir, c.log)
	c.web = &webServer{log: c.log, handler: c.httpHandler(), tasks: &c.tasks}
	c.restoreBucketMaps()
	if err = c.restoreMembers(); err != nil {
		return c, err
	}
	if err = c.restoreDrains(); err != nil {
		return c, err
	}
	if err = c.configs.Start(); err != nil {
		return c, err
	}
	return c, nil
}

// server of the API.
func (c *Controller) server(admit api.Admission) *api.Server {
	return api.NewServer(api.Settings{Host: c, Admit: admit, Audit: c.audit, Log: c.log})
}

// loop is the goroutine that owns the brain.
func (c *Controller) loop(ctx context.Context) {
	defer close(c.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(c.untilAgain())
		select {
		case <-c.healthNews:
			c.stepHealth()
		case event := <-c.events:
			c.Step(event)
		case result := <-c.prober.Results():
			c.takeResult(result)
		case ask := <-c.asks:
			ask()
		case <-timer.C:
			c.Step(brain.Tick{})
		case <-ctx.Done():
			if c.restarted.Load() {
				c.notify.Reloading() // until the program that is installed says that it is ready
			} else {
				c.notify.Stopping()
			}
			return
		}
	}
}

// Nothing due: look again in a while anyway.
const idleTick = time.Second

func (c *Controller) untilAgain() time.Duration {
	if c.again.IsZero() {
		return idleTick
	}
	return min(idleTick, max(0, time.Until(c.again)))
}

// heardOfHealth comes from the goroutine that asks, and never waits.
func (c *Controller) heardOfHealth(answer health.Answer) {
	c.health.Store(&answer)
	select {
	case c.healthNews <- struct{}{}:
	default: // it is on its way already
	}
}

// stepHealth gives the brain the latest answer, if it does not have it yet.
func (c *Controller) stepHealth() {
	if answer := c.health.Swap(nil); answer != nil {
		c.decide(healthOf(answer))
	}
}

// Step lets the brain decide on an event. It knows the forwarder's health first,
// however long it was busy: else it would take its own silence for the
// forwarder's.
func (c *Controller) Step(event brain.Event) {
	c.stepHealth()
	c.decide(event)
}

// decide lets the brain decide and brings about the desired state.
func (c *Controller) decide(event brain.Event) {
	want := c.brain.Step(event, time.Now())
	c.tellTransitions(want.Transitions)
	speaker, _ := c.routes.State()
	c.tellSpeaker(speaker)
	if want.ConfigChanged {
		c.setTargets(want.Targets)
		c.peers.Set(slices.Concat(compile.PeerTargets(want.Config), compile.SpillTargets(want.Config)))
		c.members.Set(want.Config)
		c.agents.Set(want.Config)
		c.exchange.Set(want.Config)
		c.web.listen(want.Config.Metrics.Listen)
		c.hooks.Set(want.Config.Hooks)
		c.remote.Set(want.Config.API)
	}
	c.agents.SetCountInterval(c.brain.CountInterval())
	c.prober.SetProbing(want.Probing)
	c.keepMembers(want)
	c.keepAgreed(want)
	if etcd := c.configs.Etcd(); etcd != nil {
		etcd.Maps.Set(want.Agreement)
	}
	if want.PlanChanged {
		c.forwarder.Set(want.Plan)
	}
	if want.RoutesChanged || want.ConfigChanged {
		c.routes.Set(routes.Encode(want, c.configs.LoadedAt()), !want.RoutesDecided)
	}
	c.routes.KnowPeers(want.PeerWell)
	c.traffic.wanted.Store(want.MeasureTraffic)
	c.configs.Trusted(want.Trusted)
	c.again = want.Again
}

// Enqueue hands an event to the brain's goroutine; after the end it is dropped.
func (c *Controller) Enqueue(event brain.Event) {
	select {
	case c.events <- event:
	case <-c.done:
	}
}

// Ask runs f in the brain's goroutine.
func (c *Controller) Ask(ctx context.Context, f func()) error {
	finished := make(chan struct{})
	select {
	case c.asks <- func() { f(); close(finished) }:
		<-finished
		return nil
	case <-c.done:
		return configs.ErrStopping
	case <-ctx.Done():
		return ctx.Err()
	}
}

// peerResult comes from the goroutines that ask.
func (c *Controller) peerResult(result prober.PeerResult) {
	event := brain.PeerResult{Peer: result.Peer, Address: result.To, OK: result.Err == nil, Reason: "answers through the tunnel"}
	if result.Err != nil {
		event.Reason = result.Err.Error()
	}
	if errors.Is(result.Err, os.ErrPermission) {
		c.peersForbidden.Do(func() {
			c.log.Warn("peers cannot be probed without CAP_NET_RAW: they count as unhealthy, and fragments are not redirected to them", "error", result.Err)
		})
	}
	c.Enqueue(event)
}

// agentState comes from the goroutines that receive.
func (c *Controller) agentState(state agents.State) {
	if state.Refused != "" {
		c.Enqueue(brain.AgentRefused{Backend: state.Agent, Reason: state.Refused})
		return
	}
	c.Enqueue(brain.AgentSaid{
		Backend: state.Agent, Counted: state.Counted, Counts: state.Counts,
		Serves: state.Serves, Accepts: state.Accepts, Own: state.Own, VIPsLacking: state.VIPsLacking, Answers: answersOf(state.Answers),
	})
}

// answersOf a backend, as far as an agent may be believed: none takes longer than a day.
func answersOf(said *agentv1.Answers) *brain.Answers {
	if said == nil {
		return nil
	}
	within := func(microseconds uint64) time.Duration {
		return time.Duration(min(microseconds, uint64((24*time.Hour).Microseconds()))) * time.Microsecond
	}
	return &brain.Answers{
		Measured: said.GetMeasured(), P50: within(said.GetP50Us()), P99: within(said.GetP99Us()), Open: float64(said.GetOpenThousandths()) / 1e3,
		Resets: said.GetResets(), Connections: said.GetConnections(), AcceptQueue: said.GetAcceptQueue(),
	}
}

// forwarderEvent logs what the brain's transitions do not say.
func (c *Controller) forwarderEvent(event brain.Event) {
	switch e := event.(type) {
	case brain.ForwarderDisconnected:
		c.log.Warn("no connection to the forwarder: plans wait", "reason", e.Reason)
	case brain.PlanAccepted:
		if !slices.Equal(e.Warnings, c.warned) { // each plan brings them again
			c.warned = e.Warnings
			for _, warning := range e.Warnings {
				c.log.Warn("forwarder: " + warning)
			}
		}
	}
	c.Enqueue(event)
}

func healthOf(answer *health.Answer) brain.Event {
	if answer.Waits {
		return brain.ForwarderWaits{Asked: answer.Asked, Reason: answer.Err.Error()}
	}
	if answer.Err != nil {
		return brain.ForwarderLost{Reason: "does not answer: " + answer.Err.Error()}
	}
	return brain.ForwarderHealth(answer.Judged())
}

// stop ends what loading a config began. No route changes: they are the speaker's.
func (c *Controller) stop() {
	c.prober.Stop()
	c.members.Stop()
	if c.peers != nil {
		c.peers.Stop()
	}
	if c.agents != nil {
		c.agents.Stop()
	}
	if c.exchange != nil {
		c.exchange.Stop()
	}
	if c.web != nil {
		c.web.stop()
	}
}

// close what start has made, as far as it came.
func (c *Controller) close() {
	c.stop()
	c.tasks.Wait()
	if err := c.keeper.Close(); err != nil {
		c.log.Error("the state directory does not have the latest", "error", err)
	}
	if c.forwarder != nil {
		c.forwarder.Close()
	}
	if c.routes != nil {
		c.routes.Close()
	}
	if c.configs != nil {
		c.configs.Close()
	}
	if c.audit != nil {
		_ = c.audit.Close()
	}
	if c.told != nil {
		c.told.Close()
	}
}
