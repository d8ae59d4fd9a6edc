package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/guideway/guideway/lab/topology"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// Probing, announcing and learning the routes take a few seconds; a machine
// with two busy cores gets more.
const readyLimit = 60 * time.Second

// baseWeights: the backends of the config before any event.
func (lab *Lab) baseWeights() map[string]uint32 {
	weights := map[string]uint32{}
	for _, n := range lab.Network.Backends[:lab.state.Options.Backends] {
		weights[n.Name] = 1
	}
	return weights
}

// writeConfigs for all load balancers, by the present weights.
func (lab *Lab) writeConfigs() error {
	if agrees(lab.Network, lab.settings) {
		shared := sharedConfig(lab.Network, lab.Network.LoadBalancers[0], lab.weights, lab.settings)
		if err := writeWhole(lab.sharedFile(), []byte(shared), 0o644); err != nil {
			return err
		}
	}
	for _, n := range lab.Network.LoadBalancers {
		content := ownConfig(lab.Network, n, lab.settings)
		if !agrees(lab.Network, lab.settings) {
			content = machineConfig(lab.Network, n, lab.weights, lab.settings)
		}
		if err := writeWhole(lab.path(n, "config.yaml"), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (lab *Lab) startLoadBalancer(n topology.Node) error {
	if err := lab.StartForwarder(n.Name); err != nil {
		return err
	}
	if err := lab.StartSpeaker(n.Name); err != nil {
		return err
	}
	return lab.StartController(n.Name)
}

// StartController of a load balancer, alone.
func (lab *Lab) StartController(name string) error {
	n, err := lab.Network.LoadBalancer(name)
	if err != nil {
		return err
	}
	return lab.start(n, "controller", lab.program(), "controller", "--config", lab.path(n, "config.yaml"), "--run-dir", lab.path(n, "run"), "--state-dir", lab.path(n, "state"))
}

// StartSpeaker of a load balancer, alone.
func (lab *Lab) StartSpeaker(name string) error {
	n, err := lab.Network.LoadBalancer(name)
	if err != nil {
		return err
	}
	return lab.start(n, "speaker", lab.program(), "speaker", "--run-dir", lab.path(n, "run"), "--state-dir", lab.path(n, "state-speaker"), "--metrics-listen", speakerMetrics)
}

func (lab *Lab) program() string { return filepath.Join(lab.state.Options.BinDir, "guideway") }

// StartForwarder of a load balancer, alone.
func (lab *Lab) StartForwarder(name string) error {
	n, err := lab.Network.LoadBalancer(name)
	if err != nil {
		return err
	}
	return lab.start(n, "forwarder", filepath.Join(lab.state.Options.BinDir, "guideway-forwarder"), lab.forwarderArgs(n)...)
}

func (lab *Lab) forwarderArgs(n topology.Node) []string {
	// Its state is a directory of its own, and so is what it makes beside "run".
	args := []string{"--run-dir", lab.path(n, "run"), "--state-dir", lab.path(n, "state-forwarder"),
		"--secret-file", lab.SecretFile(), "--metrics-listen", "127.0.0.1:9471"}
	if workers := lab.state.Options.Workers; workers != 0 {
		args = append(args, "--steered-workers", strconv.Itoa(workers))
	}
	return args
}

// LoadBalancers by name, in order.
func (lab *Lab) LoadBalancers() []string { return topology.Names(lab.Network.LoadBalancers) }

// Backends by name, in order: those of the config first, then the spares.
func (lab *Lab) Backends() []string { return topology.Names(lab.Network.Backends) }

// processes of a load balancer, in the order of their starts.
var processes = []string{"forwarder", "speaker", "controller"}

// KillLoadBalancer ends all of its processes at once, as a crash of the machine
// would, and returns when.
func (lab *Lab) KillLoadBalancer(name string) (time.Time, error) {
	at := time.Now()
	return at, lab.Kill(name, processes...)
}

// Kill processes of a load balancer (forwarder, speaker, controller) at once, and
// wait for their ends.
func (lab *Lab) Kill(name string, processes ...string) error {
	return lab.killProcesses(name, processes...)
}

// Hang a process of a node, until the returned function is called.
func (lab *Lab) Hang(name, process string) (resume func() error, err error) {
	return func() error { return lab.signal(name, process, syscall.SIGCONT) }, lab.signal(name, process, syscall.SIGSTOP)
}

// Stop a process of a load balancer as a service manager does.
func (lab *Lab) Stop(name, process string) error {
	p, known := lab.find(name, process)
	if !known || !p.alive() {
		return fmt.Errorf("stop %s/%s: it does not run", name, process)
	}
	if err := p.kill(syscall.SIGTERM); err != nil {
		return err
	}
	if !p.endsWithin(killLimit) {
		return fmt.Errorf("stop %s/%s: it still runs after %v", name, process, killLimit)
	}
	return nil
}

// RestoreLoadBalancer starts what does not run of a load balancer.
func (lab *Lab) RestoreLoadBalancer(name string) error {
	n, err := lab.Network.LoadBalancer(name)
	if err != nil {
		return err
	}
	var found []process
	whole := true
	for _, what := range processes {
		p, _ := lab.find(name, what)
		found, whole = append(found, p), whole && p.alive()
	}
	if whole {
		return nil
	}
	// A part of a load balancer is none: all start afresh.
	for _, p := range slices.Backward(found) {
		if err := p.stop(time.Second); err != nil {
			return err
		}
	}
	return lab.startLoadBalancer(n)
}

// Weights of the backends in the config; the caller owns the copy.
func (lab *Lab) Weights() map[string]uint32 { return maps.Clone(lab.weights) }

// SetWeights puts exactly these backends into the config, reloads the
// controllers that run, and waits until their forwarders forward by it.
func (lab *Lab) SetWeights(ctx context.Context, weights map[string]uint32) error {
	if err := lab.reload(weights, lab.settings); err != nil {
		return fmt.Errorf("change backends: %w", err)
	}
	return lab.waitPlans(ctx, readyLimit)
}

// Reconfigure changes settings of the services, reloads, and waits until the
// forwarders forward by them. What a forwarder has from its start (links,
// steering, size of tables) stays as it is.
func (lab *Lab) Reconfigure(ctx context.Context, change func(*topology.Settings)) error {
	settings := lab.settings
	change(&settings)
	if err := lab.reload(lab.weights, settings); err != nil {
		return fmt.Errorf("change settings: %w", err)
	}
	return lab.waitPlans(ctx, readyLimit)
}

func (lab *Lab) reload(weights map[string]uint32, settings topology.Settings) error {
	if maps.Equal(lab.weights, weights) && reflect.DeepEqual(lab.settings, settings) {
		return nil
	}
	lab.weights, lab.settings = maps.Clone(weights), settings
	return lab.applyConfigs()
}

// applyConfigs to the controllers that run, as settings, weights and addresses are.
func (lab *Lab) applyConfigs() error {
	if err := lab.writeConfigs(); err != nil {
		return err
	}
	if agrees(lab.Network, lab.settings) {
		return lab.applyShared()
	}
	for _, n := range lab.Network.LoadBalancers {
		controller, known := lab.find(n.Name, "controller")
		if !known {
			continue
		}
		if err := controller.kill(syscall.SIGHUP); err != nil {
			return err
		}
	}
	return nil
}

// Restore the whole topology: all that events can have taken away or changed.
func (lab *Lab) Restore(ctx context.Context) error {
	for i := range lab.Network.Backends {
		if err := lab.RestoreBackend(ctx, i); err != nil {
			return fmt.Errorf("restore: %w", err)
		}
	}
	// Before anything starts: SIGHUP would end a controller that has only just
	// begun, and does not listen to it yet.
	if err := lab.reload(lab.baseWeights(), lab.state.Options.Settings); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	for _, name := range lab.LoadBalancers() {
		if err := lab.RestoreLoadBalancer(name); err != nil {
			return fmt.Errorf("restore: %w", err)
		}
	}
	return lab.WaitReady(ctx, readyLimit)
}

// WaitReady until the agents of all backends open tunnels, every load balancer
// forwards by the present config to backends that are all well, and packets to VIPs
// find all of them.
func (lab *Lab) WaitReady(ctx context.Context, limit time.Duration) error {
	if err := lab.waitAgents(ctx, limit); err != nil {
		return err
	}
	if err := lab.waitPlans(ctx, limit); err != nil {
		return err
	}
	router, err := lab.Network.OpenRouter()
	if err != nil {
		return err
	}
	defer router.Close()
	return waitFor(ctx, limit, "routes", func() error {
		routes, err := router.Routes()
		if err != nil {
			return err
		}
		return routesComplete(lab.Network, routes)
	})
}

// WaitBFD until the router would notice the silence of any load balancer: BFD begins
// after the routes are there.
func (lab *Lab) WaitBFD(ctx context.Context, limit time.Duration) error {
	return waitFor(ctx, limit, "BFD", func() error {
		for _, name := range lab.LoadBalancers() {
			if err := lab.bfdIsUp(ctx, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// bfdIsUp with all routers of a load balancer.
func (lab *Lab) bfdIsUp(ctx context.Context, name string) error {
	samples, err := lab.SpeakerMetrics(ctx, name)
	if err != nil {
		return err
	}
	routers := 0
	for sample, value := range samples {
		if !strings.HasPrefix(sample, "guideway_speaker_bfd_up{") {
			continue
		}
		if value != 1 {
			return fmt.Errorf("%s: %s is %v", name, sample, value)
		}
		routers++
	}
	if routers == 0 {
		return fmt.Errorf("%s: no router is to have BFD", name)
	}
	return nil
}

// waitPlans until the forwarders that run have the present backends, well.
func (lab *Lab) waitPlans(ctx context.Context, limit time.Duration) error {
	for _, n := range lab.Network.LoadBalancers {
		err := waitFor(ctx, limit, "the plan of "+n.Name, func() error {
			for _, what := range []string{"forwarder", "controller"} {
				if _, err := lab.running(n.Name, what); err != nil {
					return err
				}
			}
			plan, err := lab.Plan(ctx, n.Name)
			if err != nil {
				return fmt.Errorf("%w: see %s", err, lab.path(n, "forwarder.log"))
			}
			return lab.planMatches(plan, n.Cluster)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// planMatches says where a plan differs from the present weights and
// settings.
func (lab *Lab) planMatches(plan *planv1.Plan, cluster int) error {
	if len(plan.GetServices()) == 0 {
		return errors.New("its plan has no services")
	}
	weights := maps.Clone(lab.weights)
	for _, n := range lab.Network.Backends {
		if n.Cluster != cluster {
			delete(weights, n.Name)
		}
	}
	for _, service := range plan.GetServices() {
		members := plan.Members()[service.GetGroup()]
		if len(members) != len(weights) {
			return fmt.Errorf("service %s has %d backends, not %d", service.GetName(), len(members), len(weights))
		}
		for _, member := range members {
			if err := memberMatches(member, weights); err != nil {
				return fmt.Errorf("service %s: %w", service.GetName(), err)
			}
		}
		if err := lab.settingsMatch(service, members); err != nil {
			return fmt.Errorf("service %s: %w", service.GetName(), err)
		}
	}
	return nil
}

func (lab *Lab) settingsMatch(service *planv1.Service, members []*planv1.Member) error {
	want := "ENCAP_" + strings.ToUpper(cmp.Or(lab.settings.Encap, "gre"))
	if got := service.GetEncap().String(); got != want {
		return fmt.Errorf("its encap is %s, not %s", got, want)
	}
	overIPv6 := lab.settings.TCPOverIPv6 || service.GetName() == "echo-udp"
	for _, member := range members {
		if strings.HasSuffix(member.GetBackend(), nameSuffixIPv6) != overIPv6 {
			return fmt.Errorf("its backend is %s", member.GetBackend())
		}
	}
	return nil
}

func memberMatches(member *planv1.Member, weights map[string]uint32) error {
	weight, named := weights[NodeOf(member.GetBackend())]
	want := planv1.BackendState_BACKEND_STATE_ACTIVE
	if weight == 0 {
		want = planv1.BackendState_BACKEND_STATE_DRAINING
	}
	if !named || member.GetState() != want || member.GetWeight() != weight {
		return fmt.Errorf("backend %s is %v with weight %d, not %v with %d", member.GetBackend(), member.GetState(), member.GetWeight(), want, weight)
	}
	return nil
}

// Running load balancers: those whose forwarder lives.
func (lab *Lab) Running() []string {
	var list []string
	for _, n := range lab.Network.LoadBalancers {
		if forwarder, known := lab.find(n.Name, "forwarder"); known && forwarder.alive() {
			list = append(list, n.Name)
		}
	}
	return list
}
