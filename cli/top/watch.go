package top

import (
	"cmp"
	"context"
	"maps"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/fleet"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/controller/rates"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// request for the rates of each machine.
func (m *model) request() *controllerv1.WatchRatesRequest {
	limit := m.limit
	if m.isFleet { // so that the sums are right
		limit = rates.RowsMax
	}
	return &controllerv1.WatchRatesRequest{Limit: uint32(limit), Sort: m.sort, Filter: m.filter}
}

func opening(request *controllerv1.WatchRatesRequest) fleet.Open[controllerv1.Rates] {
	return func(ctx context.Context, client controllerv1.ControllerClient) (grpc.ServerStreamingClient[controllerv1.Rates], error) {
		return client.WatchRates(ctx, request)
	}
}

const (
	// How often the screen is drawn, if there is anything new.
	drawPause = 250 * time.Millisecond
	// How often a fleet is read for machines that came or went.
	fleetPause = 30 * time.Second
)

// watchOn a terminal until a key or the context ends it. An error before anything was heard
// is a mistake, more likely than a restart.
func watchOn(ctx context.Context, t *terminal, m *model, at machine.Machine) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGHUP) // its terminal is gone
	defer stop()
	w := &watch{t: t, model: m, machine: at, updates: make(chan update), failed: make(chan error, 1), keys: make(chan string), hungUp: make(chan struct{})}
	m.now = observation{at: time.Now(), machines: map[string]watched{}}
	if !m.isFleet {
		m.now.take(update{}, false)
	}
	var tasks sync.WaitGroup
	defer tasks.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tasks.Go(func() {
		defer close(w.hungUp)
		t.guard(func() { t.keys(ctx, func(key string) { hand(ctx, w.keys, key) }) })
	})
	return w.run(ctx)
}

// hand something over unless the context ends.
func hand[T any](ctx context.Context, to chan<- T, what T) {
	select {
	case to <- what:
	case <-ctx.Done():
	}
}

type watch struct {
	t       *terminal
	model   *model
	machine machine.Machine

	updates chan update
	failed  chan error
	keys    chan string
	hungUp  chan struct{}
	// A machine that was heard; before that an error is a mistake.
	known string
}

func (w *watch) run(ctx context.Context) error {
	end := w.ask(ctx)
	defer func() { end() }()
	resized, stop := resized()
	defer stop()
	tick := time.NewTicker(drawPause)
	defer tick.Stop()
	isDue, isNew, isFirst, drawn := true, false, true, time.Time{}
	for {
		w.model.now.at = time.Now()
		if isDue {
			if err := w.draw(isFirst); err != nil {
				return err
			}
			isDue, isNew, isFirst, drawn = false, false, false, w.model.now.at
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.hungUp:
			return nil
		case err := <-w.failed:
			return err
		case err := <-w.t.failed:
			return err
		case key := <-w.keys:
			before := w.model.request()
			if w.model.press(key) {
				return nil
			}
			if after := w.model.request(); after.Sort != before.Sort || after.Filter != before.Filter {
				end()
				end = w.ask(ctx)
			}
			isDue = true
		case s := <-resized:
			if isFirst = s == unix.SIGCONT; isFirst {
				if err := w.t.raw(); err != nil {
					return err
				}
			}
			isDue = true
		case u := <-w.updates: // of a fleet many within a second
			w.take(u)
			isNew = true
		case <-tick.C:
			isDue = isNew || time.Since(drawn) >= time.Second
		}
	}
}

func (w *watch) take(u update) {
	w.model.now.at = time.Now()
	w.model.now.take(u, w.model.isFleet)
	if u.rates != nil {
		w.known = cmp.Or(u.rates.Machine, w.machine.Remote.Server, "this machine")
	}
}

func (w *watch) draw(isFirst bool) error {
	width, height, err := w.t.size()
	if err != nil {
		return err
	}
	w.model.width, w.model.height = width, height
	w.t.draw(w.model.screen(), width, isFirst)
	return nil
}

// ask for rates, until end.
func (w *watch) ask(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	known, request := w.known, w.model.request()
	tasks.Go(func() {
		w.t.guard(func() {
			if w.model.isFleet {
				w.followFleet(ctx, known != "", request)
			} else {
				w.follow(ctx, "", fleet.Source{Name: known, Machine: w.machine}, request)
			}
		})
	})
	return func() { cancel(); tasks.Wait() }
}

// follow one machine, which is shown by this name.
func (w *watch) follow(ctx context.Context, name string, s fleet.Source, request *controllerv1.WatchRatesRequest) {
	err := fleet.Follow(ctx, s, opening(request), func(r *controllerv1.Rates) {
		hand(ctx, w.updates, update{name: name, rates: r})
	}, func(err error) {
		hand(ctx, w.updates, update{name: name, trouble: err.Error()})
	})
	if err != nil {
		hand(ctx, w.failed, err)
	}
}

// followFleet also when machines come and go.
func (w *watch) followFleet(ctx context.Context, isKnown bool, request *controllerv1.WatchRatesRequest) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	followed := map[string]func(){}
	for {
		sources, missing, err := fleet.Sources(ctx, w.machine)
		switch {
		case err == nil:
			isKnown = true
			w.tellFleet(ctx, sources, missing)
			w.followThese(ctx, &tasks, followed, sources, request)
		case !isKnown:
			hand(ctx, w.failed, err)
			return
		default:
			hand(ctx, w.updates, update{trouble: "machines may be missing: " + err.Error()})
		}
		if commandline.Pause(ctx, fleetPause) != nil {
			return
		}
	}
}

// tellFleet which machines there are, and which of them cannot be asked.
func (w *watch) tellFleet(ctx context.Context, sources []fleet.Source, missing []fleet.Missing) {
	all := update{names: []string{}}
	for _, s := range sources {
		all.names = append(all.names, s.Name)
	}
	for _, one := range missing {
		if one.Name == "" {
			all.trouble = one.Why
			continue
		}
		all.names = append(all.names, one.Name)
		hand(ctx, w.updates, update{name: one.Name, trouble: one.Why})
	}
	hand(ctx, w.updates, all)
}

// followThese machines and no others; followed is by name and address.
func (w *watch) followThese(ctx context.Context, tasks *sync.WaitGroup, followed map[string]func(), sources []fleet.Source, request *controllerv1.WatchRatesRequest) {
	former := maps.Clone(followed)
	for _, s := range sources {
		key := s.Name + " " + s.Machine.Remote.Server
		delete(former, key)
		if followed[key] != nil {
			continue
		}
		hand(ctx, w.updates, update{name: s.Name})
		one, cancel := context.WithCancel(ctx)
		followed[key] = cancel
		tasks.Go(func() {
			defer cancel()
			w.t.guard(func() { w.follow(one, s.Name, s, request) })
		})
	}
	for key, cancel := range former {
		cancel()
		delete(followed, key)
	}
}
