package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/sinks/forwarder"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// How often each change is made; the median is told.
const repeats = 5

const timeout = 60 * time.Second

// Of the controller, in the namespace of the load balancer.
const metricsAddress = "127.0.0.1:9470"

// bench is both processes and those who ask them.
type bench struct {
	sizes
	bin, dir              string
	backendsControl       net.Conn
	controller, forwarder *process
	askForwarder          forwarderv1.ForwarderClient
	askController         controllerv1.ControllerClient
}

func measure(s sizes, bin string) error {
	stop, control, err := connect()
	if err != nil {
		return err
	}
	defer stop()
	dir, err := os.MkdirTemp("", "control")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{sizes: s, bin: bin, dir: dir, backendsControl: control}
	defer b.end()
	fmt.Printf("%d services, %d pools of %d backends\n", s.services, s.pools, s.backends)
	if err := b.start(); err != nil {
		return err
	}
	if err := b.changes(); err != nil {
		return err
	}
	if err := b.flood(); err != nil {
		return err
	}
	return b.watch()
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func row(what string, value any) { fmt.Printf("%-44s %v\n", what, value) }

func (b *bench) end() {
	for _, p := range []*process{b.controller, b.forwarder} {
		if p != nil {
			p.stop()
		}
	}
}

// config with one weight of the last pool's first backend.
func (b *bench) writeConfig(weight int) error {
	var t strings.Builder
	t.WriteString("machine: {name: lb, addresses: [10.0.0.1]}\nmetrics: {listen: \"" + metricsAddress + "\"}\n" +
		"forwarder: {interfaces: [{name: gw0, driver: af_packet}]}\n" +
		"health_checks: [{name: ok, via: direct, http: {port: 80}, interval: 100ms, timeout: 100ms, rise: 1, fall: 1}]\nservices:\n")
	for i := range b.services {
		fmt.Fprintf(&t, "- {name: s%d, vips: [{address: %s, ports: [80], protocol: tcp}], pools: [p%d]}\n", i, vip(i), i%b.pools)
	}
	t.WriteString("pools:\n")
	for pool := range b.pools {
		checks := ""
		if pool == 0 {
			checks = "health_checks: [ok], "
		}
		fmt.Fprintf(&t, "- {name: p%d, %sbackends: [", pool, checks)
		for i := range b.backends {
			w := 1
			if pool == b.pools-1 && i == 0 {
				w = weight
			}
			fmt.Fprintf(&t, "{name: b%d-%d, address: %s, weight: %d}, ", pool, i, b.address(pool, i), w)
		}
		t.WriteString("]}\n")
	}
	return os.WriteFile(b.path("config.yaml"), []byte(t.String()), 0o644)
}

func (b *bench) address(pool, i int) string {
	n := pool*b.backends + i + 1
	return fmt.Sprintf("10.%d.%d.%d", 64+n>>16, n>>8&255, n&255)
}

func (b *bench) start() (err error) {
	dirs := []string{"--run-dir", b.path("run"), "--state-dir", b.path("state")}
	if err := b.writeConfig(1); err != nil {
		return err
	}
	if b.forwarder, err = start(b.path("forwarder.log"), filepath.Join(b.bin, "guideway-forwarder"), append(dirs, "--no-pin")...); err != nil {
		return err
	}
	began := time.Now()
	if b.controller, err = start(b.path("controller.log"), filepath.Join(b.bin, "guideway"),
		append([]string{"controller", "--config", b.path("config.yaml")}, dirs...)...); err != nil {
		return err
	}
	forwarderConn, err := forwarder.Dial(b.path("run/forwarder.sock"))
	if err != nil {
		return err
	}
	controllerConn, err := forwarder.Dial(api.OperateSocket(b.path("run")))
	if err != nil {
		return err
	}
	b.askForwarder, b.askController = forwarderv1.NewForwarderClient(forwarderConn), controllerv1.NewControllerClient(controllerConn)
	err = until("every service is served", func(ctx context.Context) bool {
		state, err := b.askController.GetState(ctx, &controllerv1.GetStateRequest{WithoutBackends: true}, grpc.WaitForReady(true))
		waits := func(s *controllerv1.Service) bool { return s.State != brain.ServingAll }
		return err == nil && len(state.Services) == b.services && !slices.ContainsFunc(state.Services, waits)
	})
	row("start, until every service is served", time.Since(began).Round(10*time.Millisecond))
	return err
}

// until asks each 5 ms whether it is so.
func until(what string, is func(context.Context) bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for !is(ctx) {
		if ctx.Err() != nil {
			return fmt.Errorf("not within %v: %s", timeout, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// generation is the oldest that a worker forwards by.
func (b *bench) generation(ctx context.Context) uint64 {
	status, _ := b.askForwarder.GetStatus(ctx, &forwarderv1.GetStatusRequest{})
	oldest := uint64(math.MaxUint64)
	for _, thread := range status.GetThreads() {
		if thread.Role == "worker" {
			oldest = min(oldest, thread.Generation)
		}
	}
	if oldest == math.MaxUint64 {
		return 0 // no plan yet, or no answer
	}
	return oldest
}

// workers returns how long it takes a change to be what workers forward by.
func (b *bench) workers(what string, change func(turn int) error) error {
	var took []time.Duration
	for turn := range repeats {
		time.Sleep(time.Second) // let the last one settle
		before := b.generation(context.Background())
		began := time.Now()
		if err := change(turn); err != nil {
			return err
		}
		if err := until(what, func(ctx context.Context) bool { return b.generation(ctx) > before }); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	row(what+", at the workers", fmt.Sprintf("%v (most %v)", took[repeats/2].Round(time.Millisecond), took[repeats-1].Round(time.Millisecond)))
	return nil
}

func (b *bench) changes() error {
	ctx := context.Background()
	drain := func(turn int) error {
		_, err := b.askController.DrainBackend(ctx, &controllerv1.DrainBackendRequest{Backend: fmt.Sprintf("b%d-1", b.pools-1), Drain: turn%2 == 0})
		return err
	}
	flap := func(turn int) error {
		_, err := fmt.Fprintln(b.backendsControl, "down", b.address(0, turn))
		return err
	}
	reload := func(turn int) error {
		if err := b.writeConfig(2 + turn); err != nil {
			return err
		}
		_, err := b.askController.Reload(ctx, &controllerv1.ReloadRequest{})
		return err
	}
	if err := b.workers("a drain", drain); err != nil {
		return err
	}
	if err := b.workers("a flap, with probes each 100 ms", flap); err != nil {
		return err
	}
	if err := b.workers("a reload with another weight", reload); err != nil {
		return err
	}
	return b.show()
}

func (b *bench) show() error {
	var took []time.Duration
	for range repeats {
		began := time.Now()
		if err := run(filepath.Join(b.bin, "guideway"), "show", "services", "--run-dir", b.path("run")); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	row("show services", took[repeats/2].Round(10*time.Millisecond))
	for _, path := range []string{"/metrics", "/", "/services", "/backends?q=nothing"} {
		time.Sleep(2 * time.Second) // so that none of it was made for others
		began := time.Now()
		bytes, packed, err := page(path)
		if err != nil {
			return err
		}
		row(path+", and gzipped", fmt.Sprintf("%.3f MB, %.3f MB, in %v", float64(bytes)/1e6, float64(packed)/1e6, time.Since(began).Round(time.Millisecond)))
	}
	for _, name := range []string{"config.yaml", "state/plan.json"} {
		if info, err := os.Stat(b.path(name)); err == nil {
			row(filepath.Base(name), fmt.Sprintf("%.1f MB", float64(info.Size())/1e6))
		}
	}
	return nil
}

// page is its length, and that of what is sent to who takes gzip.
func page(path string) (length, sent int64, err error) {
	request, err := http.NewRequest(http.MethodGet, "http://"+metricsAddress+path, nil)
	if err != nil {
		return 0, 0, err
	}
	request.Header.Set("Accept-Encoding", "gzip")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	var packed bytes.Buffer
	if sent, err = io.Copy(&packed, response.Body); err != nil {
		return 0, 0, err
	}
	reader, err := gzip.NewReader(&packed)
	if err != nil {
		return 0, 0, fmt.Errorf("%s is not gzipped: %w", path, err)
	}
	length, err = io.Copy(io.Discard, reader)
	return length, sent, err
}

// flood: the first pool's backends flap 2,000 times in ten seconds.
func (b *bench) flood() error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for flap := range 2_000 {
		<-tick.C
		state := []string{"down", "up"}[flap/b.backends%2]
		if _, err := fmt.Fprintln(b.backendsControl, state, b.address(0, flap%(b.backends-1))); err != nil {
			return err
		}
	}
	row("controller, most memory", b.controller.memory())
	row("forwarder, most memory", b.forwarder.memory())
	row("lines in the controller's log", b.controller.logged("\n"))
	return nil
}
