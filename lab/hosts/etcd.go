package hosts

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/guideway/guideway/lab/topology"
)

// etcd, where several load balancers serve stateless services: they agree there on
// bucket maps, and share their config. One member, on the router or the switch, with no data that
// outlives the lab.

const etcdPort = 2379

// agrees: the load balancers need etcd.
func agrees(network topology.Network, settings topology.Settings) bool {
	return settings.Stateless && len(network.LoadBalancers) > 1
}

func etcdPrograms(o topology.Options) []string {
	if agrees(topology.New(o), o.Settings) {
		return []string{"etcd", "etcdctl"}
	}
	return nil
}

// StartEtcd with the data that it has.
func (lab *Lab) StartEtcd() error {
	n := lab.router()
	clients, peers := fmt.Sprintf("http://0.0.0.0:%d", etcdPort), "http://127.0.0.1:2380"
	return lab.start(n, "etcd", "etcd", "--name", "m1", "--data-dir", lab.path(n, "etcd-data"),
		"--listen-client-urls", clients, "--advertise-client-urls", lab.etcdURL(),
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "m1="+peers,
		// A busy machine is no reason for elections.
		"--heartbeat-interval", "250", "--election-timeout", "2500")
}

func (lab *Lab) etcdURL() string { return fmt.Sprintf("http://127.0.0.1:%d", etcdPort) }

// KillEtcd, as a crash would.
func (lab *Lab) KillEtcd() error { return lab.killProcesses(lab.router().Name, "etcd") }

// Etcdctl runs etcd's own client beside etcd, and returns what it prints.
func (lab *Lab) Etcdctl(ctx context.Context, args ...string) (string, error) {
	command := append([]string{"netns", "exec", lab.Network.Router, "env", "ETCDCTL_API=3", "etcdctl", "--endpoints", lab.etcdURL()}, args...)
	return topology.Output(ctx, "", "ip", command...)
}

// EtcdPrefix of the lab's keys.
func (lab *Lab) EtcdPrefix() string { return "/guideway/" + lab.Network.Clusters()[0].Name + "/" }

// startEtcd and store the first config.
func (lab *Lab) startEtcd(ctx context.Context) error {
	if err := lab.StartEtcd(); err != nil {
		return err
	}
	err := waitFor(ctx, readyLimit, "etcd", func() error {
		_, err := lab.Etcdctl(ctx, "endpoint", "health")
		return err
	})
	if err != nil {
		return err
	}
	first := lab.Network.LoadBalancers[0]
	return lab.guideway(ctx, first, "config", "seed", lab.sharedFile(), "--machine", lab.path(first, "config.yaml"))
}

// sharedFile is the part of the config that is in etcd.
func (lab *Lab) sharedFile() string {
	return lab.path(lab.router(), "shared.yaml")
}

// applyShared has all load balancers take the part that they share.
func (lab *Lab) applyShared() error {
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	for _, n := range lab.Network.LoadBalancers {
		if controller, known := lab.find(n.Name, "controller"); known && controller.alive() {
			return lab.guideway(ctx, n, "config", "apply", lab.sharedFile(), "-m", "lab", "--run-dir", lab.path(n, "run"))
		}
	}
	return nil
}

// Guideway runs a command of a load balancer on it.
func (lab *Lab) Guideway(ctx context.Context, machine string, args ...string) error {
	n, err := lab.Network.LoadBalancer(machine)
	if err != nil {
		return err
	}
	return lab.guideway(ctx, n, append(args, "--run-dir", lab.path(n, "run"))...)
}

func (lab *Lab) guideway(ctx context.Context, n topology.Node, args ...string) error {
	command := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", n.Namespace, lab.program()}, args...)...)
	command.WaitDelay = time.Second
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("guideway %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
