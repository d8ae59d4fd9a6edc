package scenarios_test

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// Two load balancers that share their config by three members of etcd's own
// server, each on a host of its own, with TLS between all. TestFaults has what can
// become of etcd.
func TestEtcd(t *testing.T) {
	for _, name := range []string{"etcd", "etcdctl"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("a lab needs %s: tools/install-deps.sh lab installs it", name)
		}
	}
	o := options(t, "etcd")
	running := up(t, o)
	e := etcdWithSpare(t, running)
	end := inStepsUnderLoad(t, running, []step{
		{"each_machine_writes_its_own_key", e.ownKeys},
		{"an_apply_reaches_both", e.applyReachesBoth},
		{"a_drain_of_the_fleet_reaches_both", e.drainReachesBoth},
	})
	// Routes are no longer watched: further VIPs have one next hop before they have two.
	t.Run("thousands_of_services", e.thousandsOfServices)
	end()
}

// etcdWithSpare: the load balancers' config is in etcd. The spare backend is in it
// with weight 0, not absent: its connections stay when it is drained again.
func etcdWithSpare(t *testing.T, running *hosts.Lab) *etcds {
	t.Helper()
	weights := running.Weights()
	weights[running.Backends()[2]] = 0
	if err := running.SetWeights(t.Context(), weights); err != nil {
		t.Fatal(err)
	}
	e := startEtcd(t, running)
	e.takeOverConfigs(t)
	return e
}

// etcds are the three members.
type etcds struct {
	running *hosts.Lab
	certificates
	members []*server
	token   string
	// Of etcd's own certificates.
	template x509.Certificate
	// Part of the data directories' names: one for each restored snapshot.
	restored int
	// The first config that is stored; later ones are made of it.
	shared string
	// Of the config that runs last.
	generation int
	// Of each machine's file, beside what the lab has there.
	own func(topology.Node) string
}

func startEtcd(t *testing.T, running *hosts.Lab) *etcds {
	t.Helper()
	e := &etcds{running: running, certificates: newCertificates(t, filepath.Join(running.Options().RunDir, "etcd")), token: "first"}
	template := looptest.Named("etcd")
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	for i := range 3 {
		host, err := running.Network.AddHost(t.Context(), i+1)
		if err != nil {
			t.Fatal(err)
		}
		member := &server{host: host, dir: filepath.Join(e.dir, host.Node.Name)}
		if err := os.MkdirAll(member.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		e.members = append(e.members, member)
		template.IPAddresses = append(template.IPAddresses, net.IP(host.Addresses()[0].AsSlice()))
		t.Cleanup(member.stopAll)
	}
	e.template = template
	e.issue(t, "peer", template)
	e.issue(t, "root", looptest.Named("root"))
	for _, n := range running.Network.LoadBalancers {
		e.issue(t, n.Name, looptest.Named(n.Name)) // etcd's user
	}
	e.certify(t, time.Hour)
	e.start(t, "new")
	e.demandUsers(t)
	return e
}

// certify what the members show to clients, for that long from now; less than
// nothing: it has expired.
func (e *etcds) certify(t *testing.T, lifetime time.Duration) {
	t.Helper()
	template := e.template
	template.NotAfter = time.Now().Add(lifetime)
	e.issue(t, "etcd", template)
}

func (e *etcds) cluster() string { return e.running.Network.Clusters()[0].Name }

// demandUsers as docs/etcd.md has it: each machine reads all, applies, and writes
// its own key.
func (e *etcds) demandUsers(t *testing.T) {
	t.Helper()
	prefix := "/guideway/" + e.cluster() + "/"
	grant := func(role string, permission ...string) []string {
		return append([]string{"role", "grant-permission", role}, permission...)
	}
	commands := [][]string{
		{"user", "add", "root", "--no-password"}, {"role", "add", "root"}, {"user", "grant-role", "root", "root"},
		{"role", "add", "guideway-read"}, grant("guideway-read", "read", "--prefix=true", prefix),
		{"role", "add", "guideway-apply"}, grant("guideway-apply", "readwrite", "--prefix=true", prefix+"config/"), grant("guideway-apply", "readwrite", prefix+"current"),
		{"role", "add", "guideway-drain"}, grant("guideway-drain", "readwrite", "--prefix=true", prefix+"overrides/"),
	}
	for _, n := range e.running.Network.LoadBalancers {
		own := "guideway-machine-" + n.Name
		commands = append(commands, []string{"user", "add", n.Name, "--no-password"}, []string{"role", "add", own}, grant(own, "readwrite", prefix+"machines/"+n.Name))
		for _, role := range []string{"guideway-read", "guideway-apply", "guideway-drain", own} {
			commands = append(commands, []string{"user", "grant-role", n.Name, role})
		}
	}
	for _, command := range append(commands, []string{"auth", "enable"}) {
		e.ctl(t, e.members[0], command...)
	}
}

func etcdURL(member *server, port int) string {
	return fmt.Sprintf("https://%s:%d", member.host.Addresses()[0], port)
}

// peers as --initial-cluster has them.
func (e *etcds) peers() string {
	var peers []string
	for _, member := range e.members {
		peers = append(peers, member.host.Node.Name+"="+etcdURL(member, 2380))
	}
	return strings.Join(peers, ",")
}

func (e *etcds) data(member *server) string {
	return member.path(fmt.Sprintf("data-%d", e.restored))
}

// quotaBytes of etcd's data: enough for 10,000 services, and soon filled.
const quotaBytes = 32 << 20

// start all members and wait until they have a leader.
func (e *etcds) start(t *testing.T, state string) {
	t.Helper()
	e.startMembers(t, state)
	eventually(t, time.Minute, "etcd has a leader", func() error {
		_, err := e.try(e.members[0], "endpoint", "health")
		return err
	})
}

func (e *etcds) startMembers(t *testing.T, state string) {
	t.Helper()
	for _, member := range e.members {
		args := []string{
			"--name", member.host.Node.Name, "--data-dir", e.data(member), "--initial-cluster-state", state, "--initial-cluster-token", e.token,
			"--listen-client-urls", etcdURL(member, 2379), "--advertise-client-urls", etcdURL(member, 2379),
			"--listen-peer-urls", etcdURL(member, 2380), "--initial-advertise-peer-urls", etcdURL(member, 2380), "--initial-cluster", e.peers(),
			// A busy machine is no reason for elections.
			"--heartbeat-interval", "250", "--election-timeout", "2500", "--quota-backend-bytes", fmt.Sprint(quotaBytes),
		}
		for side, certificate := range map[string]string{"": "etcd", "peer-": "peer"} {
			args = append(args, "--"+side+"cert-file", e.file(certificate+".crt"), "--"+side+"key-file", e.file(certificate+".key"),
				"--"+side+"trusted-ca-file", e.file("ca.crt"), "--"+side+"client-cert-auth")
		}
		if err := member.start("etcd", "etcd", args...); err != nil {
			t.Fatal(err)
		}
	}
}

func (e *etcds) kill(t *testing.T) {
	t.Helper()
	for _, member := range e.members {
		if err := member.end("etcd"); err != nil {
			t.Fatal(err)
		}
	}
}

// ctl runs etcdctl on a member's host.
func (e *etcds) ctl(t *testing.T, member *server, args ...string) string {
	t.Helper()
	out, err := e.try(member, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (e *etcds) try(member *server, args ...string) (string, error) {
	return e.tryAs("root", member, args...)
}

func (e *etcds) tryAs(user string, member *server, args ...string) (string, error) {
	return e.run(member, append(append([]string{"etcdctl"}, e.clientFlags(user, member)...), args...)...)
}

func (e *etcds) clientFlags(user string, member *server) []string {
	return []string{"--endpoints", etcdURL(member, 2379), "--cacert", e.file("ca.crt"), "--cert", e.file(user + ".crt"), "--key", e.file(user + ".key")}
}

// run a program on a member's host.
func (e *etcds) run(member *server, program ...string) (string, error) {
	command := exec.Command("ip", append([]string{"netns", "exec", member.host.Namespace()}, program...)...)
	command.Env = append(os.Environ(), "ETCDCTL_API=3")
	out, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("etcdctl: %w: %s", err, out)
	}
	return string(out), nil
}

// machineKeys are what stays in each machine's file.
var machineKeys = []string{"machine", "bgp", "forwarder", "metrics"}

// takeOverConfigs splits the lab's own: what all machines share goes to etcd, and
// the machines start again.
func (e *etcds) takeOverConfigs(t *testing.T) {
	t.Helper()
	var endpoints []string
	for _, member := range e.members {
		endpoints = append(endpoints, fmt.Sprintf("%q", etcdURL(member, 2379)))
	}
	peers := "peers:\n"
	for _, n := range e.running.Network.LoadBalancers {
		peers += fmt.Sprintf("- {name: %s, addresses: [%s, \"%s\"]}\n", n.Name, n.Address(0), n.Address(1))
		file := e.configFile(n)
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var own string
		own, e.shared = splitConfig(string(content))
		own += fmt.Sprintf("etcd: {cluster: %s, endpoints: [%s], tls: {ca_file: ../etcd/ca.crt, cert_file: ../etcd/%s.crt, key_file: ../etcd/%s.key}}\n",
			e.cluster(), strings.Join(endpoints, ", "), n.Name, n.Name)
		if e.own != nil {
			own += e.own(n)
		}
		if err := os.WriteFile(file, []byte(own), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	e.shared += peers
	first := e.running.Network.LoadBalancers[0]
	if out, err := guideway(t, e.running, first.Namespace, "config", "seed", e.write(t, e.shared), "--machine", e.configFile(first)); err != nil || !strings.Contains(out, "config 1") {
		t.Fatalf("seed: %v\n%s", err, out)
	}
	e.generation = 1
	for _, n := range e.running.Network.LoadBalancers {
		if _, err := e.running.KillLoadBalancer(n.Name); err != nil {
			t.Fatal(err)
		}
		if err := e.running.RestoreLoadBalancer(n.Name); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.running.WaitReady(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
}

func (e *etcds) configFile(n topology.Node) string {
	return filepath.Join(e.running.Options().RunDir, n.Name, "config.yaml")
}

// splitConfig by its top-level keys; peers, which each machine has others of, are
// left out.
func splitConfig(text string) (own, shared string) {
	key := ""
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "-") && !strings.HasPrefix(line, "#") {
			key, _, _ = strings.Cut(line, ":")
		}
		switch {
		case key == "peers":
		case slices.Contains(machineKeys, key):
			own += line
		default:
			shared += line
		}
	}
	return own, shared
}

func (e *etcds) write(t *testing.T, text string) string {
	t.Helper()
	file := e.file("shared.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// apply text on a machine; it is the next generation there.
func (e *etcds) apply(t *testing.T, machine, text string) (took time.Duration) {
	t.Helper()
	began := time.Now()
	out, err := on(t, e.running, machine, "config", "apply", e.write(t, text), "-m", t.Name())
	if err != nil {
		t.Fatal(err)
	}
	if applied := e.applied(t, out); applied != e.generation+1 {
		t.Errorf("apply prints, after generation %d,\n%s", e.generation, out)
	}
	e.generation++
	return time.Since(began)
}

// applied is the number that `config apply` prints.
func (e *etcds) applied(t *testing.T, out string) int {
	t.Helper()
	var generation int
	_, number, _ := strings.Cut(out, "applied: config ")
	if _, err := fmt.Sscanf(number, "%d runs", &generation); err != nil {
		t.Errorf("apply prints\n%s", out)
	}
	return generation
}

func (e *etcds) show(t *testing.T, machine string) (*controllerv1.Config, error) {
	t.Helper()
	out, err := on(t, e.running, machine, "show", "config", "-o", "json")
	if err != nil {
		return nil, err
	}
	shown := &controllerv1.Config{}
	return shown, protojson.Unmarshal([]byte(out), shown)
}

// untilShown on each machine.
func (e *etcds) untilShown(t *testing.T, what string, holds func(*controllerv1.Config) bool) {
	t.Helper()
	for _, machine := range e.running.LoadBalancers() {
		eventually(t, time.Minute, machine+": "+what, func() error {
			shown, err := e.show(t, machine)
			if err == nil && !holds(shown) {
				err = fmt.Errorf("it shows %+v", shown)
			}
			return err
		})
	}
}

func (e *etcds) untilRun(t *testing.T) {
	t.Helper()
	e.untilShown(t, fmt.Sprintf("generation %d runs", e.generation), func(s *controllerv1.Config) bool { return int(s.Etcd.GetConfig()) == e.generation && !s.Stale })
}

// untilBackends take new connections by the plans of both.
func (e *etcds) untilBackends(t *testing.T, pool string, count int) {
	t.Helper()
	for _, machine := range e.running.LoadBalancers() {
		eventually(t, time.Minute, fmt.Sprintf("%s has %d backends", machine, count), func() error {
			plan, err := e.running.Plan(t.Context(), machine)
			if err != nil {
				return err
			}
			for _, service := range plan.GetServices() {
				active := 0
				for _, member := range plan.Members()[service.GetGroup()] {
					if member.GetWeight() > 0 {
						active++
					}
				}
				if service.GetName() == pool && active != count {
					return fmt.Errorf("it has %d", active)
				}
			}
			return nil
		})
	}
}

// withSpare has a third backend that takes new connections in the pool web, the
// first one of the config.
func (e *etcds) withSpare(t *testing.T) string {
	t.Helper()
	spare := e.running.Network.Backends[2]
	line := func(weight int) string {
		return fmt.Sprintf("{name: %s, address: \"%s\", weight: %d}", spare.Name, spare.Address(0), weight)
	}
	if !strings.Contains(e.shared, line(0)) {
		t.Fatalf("no %s in\n%s", line(0), e.shared)
	}
	return strings.Replace(e.shared, line(0), line(1), 1)
}

// Registered, by etcd's own words; and etcd lets no machine write another's key.
func (e *etcds) ownKeys(t *testing.T) {
	e.untilShown(t, "it is registered", func(s *controllerv1.Config) bool { return s.Etcd.GetNotRegistered() == "" })
	key := func(machine string) string { return "/guideway/" + e.cluster() + "/machines/" + machine }
	var fingerprints []string
	for _, n := range e.running.Network.LoadBalancers {
		eventually(t, time.Minute, n.Name+" serves, as its key says", func() error {
			var registered struct{ Name, State, Generation, ConfiguredFingerprint, LiveFingerprint, ForwarderVersion, SpeakerVersion string }
			text := e.ctl(t, e.members[1], "get", "--print-value-only", key(n.Name))
			if err := json.Unmarshal([]byte(text), &registered); err != nil {
				return err
			}
			if registered.Name != n.Name || registered.State != "serving" || registered.Generation != "1" || registered.ConfiguredFingerprint == "" ||
				registered.LiveFingerprint == "" || registered.ForwarderVersion == "" || registered.SpeakerVersion == "" {
				return errors.New(text)
			}
			fingerprints = append(fingerprints, registered.ConfiguredFingerprint+" "+registered.LiveFingerprint)
			return nil
		})
	}
	if slices.Sort(fingerprints); len(slices.Compact(slices.Clone(fingerprints))) != 1 {
		t.Errorf("fingerprints %q", fingerprints)
	}
	if out, err := e.tryAs("lb-1", e.members[0], "put", key("lb-2"), "{}"); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("lb-1 writes lb-2's key: %v\n%s", err, out)
	}
	if out, err := e.tryAs("lb-1", e.members[0], "del", key("lb-2")); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("lb-1 removes lb-2's key: %v\n%s", err, out)
	}
}

func (e *etcds) applyReachesBoth(t *testing.T) {
	took := e.apply(t, "lb-1", e.withSpare(t))
	began := time.Now()
	e.untilRun(t)
	t.Logf("applied on lb-1 in %v; both ran it after %v more", took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	e.untilBackends(t, "web", 3)
	history, err := on(t, e.running, "lb-2", "config", "history")
	if err != nil || !strings.Contains(history, t.Name()) || !strings.Contains(history, "2 (in use)") {
		t.Errorf("history on lb-2: %v\n%s", err, history)
	}
	if _, err := on(t, e.running, "lb-2", "config", "rollback"); err != nil {
		t.Fatal(err)
	}
	e.generation++
	e.untilRun(t)
	e.untilBackends(t, "web", 2)
}

func (e *etcds) drainReachesBoth(t *testing.T) {
	backend := e.running.Backends()[0]
	until := func(state planv1.BackendState) {
		t.Helper()
		for _, name := range e.running.LoadBalancers() {
			eventually(t, 5*time.Second, fmt.Sprintf("%s of %s is %v", backend, name, state), func() error {
				plan, err := e.running.Plan(t.Context(), name)
				if err == nil && hosts.StateOf(plan, "web", backend) != state {
					err = fmt.Errorf("it is %v", hosts.StateOf(plan, "web", backend))
				}
				return err
			})
		}
	}
	if _, err := on(t, e.running, "lb-1", "drain", "backend", backend, "--fleet"); err != nil {
		t.Fatal(err)
	}
	until(planv1.BackendState_BACKEND_STATE_DRAINING)
	if _, err := on(t, e.running, "lb-2", "undrain", "backend", backend); err != nil {
		t.Fatal(err)
	}
	until(planv1.BackendState_BACKEND_STATE_ACTIVE)
}

func (e *etcds) untilAnswers(t *testing.T) {
	t.Helper()
	e.untilShown(t, "etcd answers", func(s *controllerv1.Config) bool {
		return s.Etcd.GetAway() == "" && int(s.Etcd.GetConfigStored()) == e.generation && s.Etcd.GetNotRegistered() == ""
	})
}

// compact forgets all revisions but the last.
func (e *etcds) compact(t *testing.T) {
	t.Helper()
	var status []struct {
		Status struct{ Header struct{ Revision int64 } }
	}
	if err := json.Unmarshal([]byte(e.ctl(t, e.members[0], "endpoint", "status", "-w", "json")), &status); err != nil {
		t.Fatal(err)
	}
	e.ctl(t, e.members[0], "compact", "--physical", fmt.Sprint(status[0].Status.Header.Revision))
}

// restoreOldSnapshot on all members, of before two further configs.
func (e *etcds) restoreOldSnapshot(t *testing.T) {
	t.Helper()
	snapshot := e.file("snapshot")
	if err := os.RemoveAll(snapshot); err != nil {
		t.Fatal(err)
	}
	e.ctl(t, e.members[0], "snapshot", "save", snapshot)
	e.apply(t, "lb-1", e.withSpare(t))
	e.apply(t, "lb-1", e.shared)
	e.untilRun(t)
	e.kill(t)
	e.restored++
	e.token = fmt.Sprintf("restored-%d", e.restored)
	for _, member := range e.members {
		e.ctl(t, member, "snapshot", "restore", snapshot, "--data-dir", e.data(member), "--name", member.host.Node.Name,
			"--initial-cluster", e.peers(), "--initial-cluster-token", e.token, "--initial-advertise-peer-urls", etcdURL(member, 2380))
	}
	e.start(t, "existing")
}

// fill etcd until it refuses to store more.
func (e *etcds) fill(t *testing.T) {
	t.Helper()
	value := e.file("filling")
	if err := os.WriteFile(value, randomBytes(1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 * quotaBytes >> 20 {
		script := `exec etcdctl "$@" put filling < "$0"`
		if _, err := e.run(e.members[0], append([]string{"sh", "-c", script, value}, e.clientFlags("root", e.members[0])...)...); err != nil {
			if !strings.Contains(err.Error(), "database space exceeded") {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("etcd does not fill")
}

// makeRoom as an operator does.
func (e *etcds) makeRoom(t *testing.T) {
	t.Helper()
	e.compact(t)
	for _, member := range e.members {
		e.ctl(t, member, "defrag")
	}
	e.ctl(t, e.members[0], "alarm", "disarm")
	e.ctl(t, e.members[0], "del", "filling")
	e.untilAnswers(t)
}

func (e *etcds) thousandsOfServices(t *testing.T) {
	services := 2_000 - 3 // and the lab's own
	if nightly {
		services = 10_000 - 3
	}
	var more strings.Builder
	for i := range services {
		fmt.Fprintf(&more, "- {name: s-%d, vips: [{address: 203.0.113.%d, ports: [%d], protocol: tcp}], pools: [web]}\n", i, 30+i%100, 10_000+i/100)
	}
	text := replaceOnce(t, e.shared, "\nservices:\n", "\nservices:\n"+more.String())
	took := e.apply(t, "lb-1", text)
	began := time.Now()
	e.untilRun(t)
	for _, machine := range e.running.LoadBalancers() {
		eventually(t, 2*time.Minute, machine+" forwards by all of them", func() error {
			plan, err := e.running.Plan(t.Context(), machine)
			if err == nil && len(plan.GetServices()) != services+3 {
				err = fmt.Errorf("its plan has %d services", len(plan.GetServices()))
			}
			return err
		})
	}
	stored := e.ctl(t, e.members[1], "get", "--prefix", "--keys-only", fmt.Sprintf("/guideway/%s/config/%d/", e.cluster(), e.generation))
	t.Logf("%d services, %d KiB of text, %d keys in etcd: applied on lb-1 in %v, in the plans of both after %v more",
		services+3, len(text)>>10, len(strings.Fields(stored)), took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}
