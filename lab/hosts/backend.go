package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/controller/sinks/agents"
	"github.com/guideway/guideway/lab/topology"
)

// agentMetrics is where an agent serves its own, inside its namespace.
const agentMetrics = "127.0.0.1:9471"

// startBackend runs what a server of the cluster runs: nginx, the echo server,
// and the agent that takes packets out of their tunnel.
func (lab *Lab) startBackend(n topology.Node) error {
	if err := lab.startServers(n); err != nil {
		return err
	}
	return lab.startAgent(n)
}

// startAgent as `guideway config backend` has it: with keys and pins.
func (lab *Lab) startAgent(n topology.Node) error {
	config, pins := lab.path(n, "agent.yaml"), lab.path(n, pinDirectory)
	if err := errors.Join(lab.writeAgentKeys(n), mountPins(pins)); err != nil {
		return err
	}
	content := agentConfig(lab.Network, n, lab.stranger) + "pin: " + filepath.Join(pins, "agent") + "\n"
	if lab.settings.Multipath {
		content += multipathConfig()
	}
	if lab.settings.ResponseTimes {
		content += "response_times: auto\n"
	}
	if err := writeWhole(config, []byte(content), 0o644); err != nil {
		return err
	}
	return lab.start(n, "agent", filepath.Join(lab.state.Options.BinDir, "guideway-agent"), "--config", config)
}

// writeAgentKeys beside the agent's config.
func (lab *Lab) writeAgentKeys(n topology.Node) error {
	content, err := os.ReadFile(lab.SecretFile())
	if err != nil {
		return err
	}
	secret, err := agents.NewSecret(content)
	if err != nil {
		return err
	}
	var peers []string
	for _, other := range lab.Network.Backends {
		if lab.settings.Multipath && other.Name != n.Name {
			peers = append(peers, other.Name)
		}
	}
	return writeWhole(lab.path(n, "agent.key"), []byte(secret.Keys(n.Name).File(secret.PeerKeys(n.Name, peers))), 0o600)
}

// agentConfig of a backend; the agents of all backends know one another, but none knows a
// stranger.
func agentConfig(network topology.Network, self topology.Node, stranger string) string {
	text := "# Written by guideway-lab.\ninterface: eth0\nmetrics_listen: " + agentMetrics + "\nname: " + self.Name + "\nagents:\n"
	for _, n := range network.Backends {
		if n.Name == stranger && n.Name != self.Name {
			continue
		}
		text += fmt.Sprintf("  %s: [%s, \"%s\"]\n", n.Name, n.Address(0), n.Address(1))
	}
	text += "load_balancers:\n"
	for _, prefix := range topology.MachinePrefixes {
		text += "- " + prefix.String() + "\n"
	}
	text += "vips:\n"
	for _, prefix := range network.VIPPrefixes() {
		text += "- " + prefix.String() + "\n"
	}
	// Every controller is told of the connections here.
	text += "key_file: agent.key\ncontrollers:\n"
	for _, n := range network.LoadBalancers {
		text += "- " + n.Address(0).String() + "\n"
	}
	return text
}

// pinDirectory of a backend has a BPF file system of its own, where programs outlive
// its agent.
const pinDirectory = "bpf"

func mountPins(directory string) error {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return err
	}
	if mounted, err := isPinsMount(directory); mounted || err != nil {
		return err
	}
	return os.NewSyscallError("mount "+directory, unix.Mount("bpf", directory, "bpf", 0, ""))
}

func isPinsMount(directory string) (bool, error) {
	var found unix.Statfs_t
	err := unix.Statfs(directory, &found)
	return found.Type == unix.BPF_FS_MAGIC, os.NewSyscallError("statfs "+directory, err)
}

// unmountPins of all backends of a lab, which end with their last program.
func unmountPins(runDir string) error {
	directories, err := filepath.Glob(filepath.Join(runDir, "*", pinDirectory))
	errs := []error{err}
	for _, directory := range directories {
		if mounted, _ := isPinsMount(directory); mounted {
			errs = append(errs, os.NewSyscallError("unmount "+directory, unix.Unmount(directory, unix.MNT_DETACH)))
		}
	}
	return errors.Join(errs...)
}

// multipathConfig: the services whose connections have the load balancers' keys.
func multipathConfig() string {
	text := "mptcp:\n"
	for _, vip := range topology.EchoVIPs {
		text += fmt.Sprintf("- {address: \"%s\", port: %d}\n", vip, topology.EchoPort)
	}
	return text
}

func (lab *Lab) startServers(n topology.Node) error {
	config := lab.path(n, "nginx.conf")
	if err := writeWhole(config, []byte(nginxConfig(n.Name, lab.path(n, ""))), 0o644); err != nil {
		return err
	}
	if err := lab.start(n, "nginx", "nginx", "-c", config, "-p", lab.path(n, ""), "-e", lab.path(n, "nginx.log")); err != nil {
		return err
	}
	args := []string{HelperVerb, "echo", "--name", n.Name, "--tcp", fmt.Sprintf(":%d", topology.EchoPort)}
	for _, vip := range topology.EchoVIPs {
		args = append(args, "--udp", hostPort(vip, topology.EchoPort))
		if lab.Network.TwoClusters {
			args = append(args, "--udp", hostPort(topology.OtherVIP(vip), topology.EchoPort))
		}
	}
	for _, own := range n.Addresses {
		args = append(args, "--udp", hostPort(own.Addr(), topology.EchoPort))
	}
	return lab.start(n, "echo", filepath.Join(lab.state.Options.BinDir, labProgram), args...)
}

// nginxConfig: every reply names the backend; nothing is written outside the
// node's directory. It asks idle connections whether their client still lives, as one
// whose reset was lost does not.
func nginxConfig(name, directory string) string {
	temporary := ""
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temporary += fmt.Sprintf("\t%s_temp_path %s/nginx-%s;\n", kind, directory, kind)
	}
	return fmt.Sprintf(`# Written by guideway-lab.
daemon off;
user root;
worker_processes 1;
pid %[2]s/nginx.pid;
events { worker_connections 8192; }
http {
	access_log off;
	keepalive_timeout 600s;
	keepalive_requests 100000000;
	reset_timedout_connection off;
%[3]s	server {
		listen 80 backlog=4096 so_keepalive=10:2:3;
		listen [::]:80 ipv6only=on backlog=4096 so_keepalive=10:2:3;
		default_type text/plain;
		add_header X-Backend %[1]s;
		location / { return 200 "%[1]s\n"; }
		location = /healthz { return 200 "ok\n"; }
	}
}
`, name, directory, temporary)
}

// KillBackend as a failing machine would: its servers at once, and its link.
func (lab *Lab) KillBackend(ctx context.Context, index int) error {
	n := lab.Network.Backends[index]
	for _, what := range []string{"nginx", "echo"} {
		if err := lab.signal(n.Name, what, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return lab.Network.SetLink(ctx, n, "down")
}

// RestoreBackend brings back what KillBackend took, and nothing that runs.
func (lab *Lab) RestoreBackend(ctx context.Context, index int) error {
	n := lab.Network.Backends[index]
	if err := lab.Network.SetLink(ctx, n, "up"); err != nil {
		return err
	}
	if p, known := lab.find(n.Name, "echo"); known && p.alive() {
		return nil
	}
	return lab.startServers(n)
}

// RenumberBackend brings back what KillBackend took, with other addresses, which all
// agents and load balancers are told.
func (lab *Lab) RenumberBackend(ctx context.Context, index int) error {
	if err := lab.RestoreBackend(ctx, index); err != nil {
		return err
	}
	n, err := lab.Network.Renumber(ctx, lab.Network.Backends[index])
	if err != nil {
		return err
	}
	lab.Network.Backends[index] = n
	if err := errors.Join(lab.restartAgents(ctx), lab.applyConfigs()); err != nil {
		return err
	}
	return lab.waitPlans(ctx, readyLimit)
}

// SetStranger restarts all agents by configs that do not name this backend, but its own;
// empty: they name all.
func (lab *Lab) SetStranger(ctx context.Context, backend string) error {
	lab.stranger = backend
	return lab.restartAgents(ctx)
}

func (lab *Lab) restartAgents(ctx context.Context) error {
	for i := range lab.Network.Backends {
		if err := errors.Join(lab.StopAgent(i), lab.StartAgent(i)); err != nil {
			return err
		}
	}
	return lab.waitAgents(ctx, readyLimit)
}

// waitAgents until those that run take packets out of tunnels, and have had the
// time to resolve one another: only then do they answer.
func (lab *Lab) waitAgents(ctx context.Context, limit time.Duration) error {
	for _, n := range lab.Network.Backends {
		err := waitFor(ctx, limit, "the agent of "+n.Name, func() error {
			if _, err := lab.running(n.Name, "agent"); err != nil {
				return err
			}
			_, err := lab.fetch(ctx, n, "http://"+agentMetrics+"/metrics")
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// DetachAgent of a backend, which has none from here on: its tunnel has no end any more.
func (lab *Lab) DetachAgent(ctx context.Context, index int) error {
	if err := lab.StopAgent(index); err != nil {
		return err
	}
	config := lab.path(lab.Network.Backends[index], "agent.yaml")
	_, err := topology.Output(ctx, "", filepath.Join(lab.state.Options.BinDir, "guideway-agent"), "--config", config, "--detach")
	return err
}

// StopAgent of a backend: its programs stay.
func (lab *Lab) StopAgent(index int) error {
	agent, _ := lab.find(lab.Network.Backends[index].Name, "agent")
	return agent.stop(callLimit)
}

// KillAgent of a backend, as a crash would.
func (lab *Lab) KillAgent(index int) error {
	return lab.killProcesses(lab.Network.Backends[index].Name, "agent")
}

// StartAgent again.
func (lab *Lab) StartAgent(index int) error { return lab.startAgent(lab.Network.Backends[index]) }

// AgentMetrics of a backend, by the text of each sample.
func (lab *Lab) AgentMetrics(ctx context.Context, index int) (map[string]float64, error) {
	n := lab.Network.Backends[index]
	text, err := lab.fetch(ctx, n, "http://"+agentMetrics+"/metrics")
	if err != nil {
		return nil, fmt.Errorf("agent of %s: %w", n.Name, err)
	}
	return parseMetrics(text)
}

// fetch a page inside a node's namespace.
func (lab *Lab) fetch(ctx context.Context, n topology.Node, url string) (string, error) {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		return topology.DialInside(ctx, n.Namespace, net.Dialer{}, network, address)
	}
	client := http.Client{Timeout: callLimit, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("fetch %s: %s", url, response.Status)
	}
	return string(body), err
}
