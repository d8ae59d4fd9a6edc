package scenarios_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// Real servers of each kind, one host for each, and everything that can break:
// each fault takes the backend down with its reason in words, here and in the
// forwarder's plan, and it comes back.
func TestHealthChecks(t *testing.T) {
	o := options(t, "health")
	o.LoadBalancers, o.Backends, o.Spares, o.Queues = 1, 1, 0, 1
	needServers(t)
	running := up(t, o)
	c := checked{running: running, dir: o.RunDir, hosts: map[string]*server{}}
	for i, name := range []string{"web", "shop", "resolver", "game", "pinged", "flapper"} {
		host, err := running.Network.AddHost(t.Context(), i+1)
		if err != nil {
			t.Fatal(err)
		}
		c.hosts[name] = &server{host: host, dir: filepath.Join(o.RunDir, "servers", name)}
		if err := os.MkdirAll(c.hosts[name].dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	authority := newAuthority(t, c.dir)
	c.configure(t)
	for name, scenario := range map[string]func(*testing.T){
		"nginx":    func(t *testing.T) { nginxFails(t, c, authority) },
		"grpc":     func(t *testing.T) { grpcFails(t, c) },
		"dnsmasq":  func(t *testing.T) { dnsmasqFails(t, c) },
		"udp":      func(t *testing.T) { udpFails(t, c) },
		"icmp":     func(t *testing.T) { icmpFails(t, c) },
		"flapping": func(t *testing.T) { flappingIsHeld(t, c) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario(t)
		})
	}
}

// checked is the lab with a service, a pool and a check for each kind.
type checked struct {
	running *hosts.Lab
	dir     string
	hosts   map[string]*server
}

// kinds of checks: the host, and the check without its name.
var kinds = []struct{ name, host, check, pool string }{
	{"tcp", "web", "tcp: {port: 80}", ""},
	{"http", "web", "http: {port: 80, path: /healthz, host: web.example, body: all is well}", ""},
	{"https", "web", "https: {port: 443, path: /healthz, host: web.example, tls: {ca_file: ca.pem}}", ""},
	{"tls", "web", "tls: {port: 443, server_name: web.example, ca_file: ca.pem}", ""},
	{"grpc", "shop", "grpc: {port: 50051, service: shop.Cart}", ""},
	{"dns", "resolver", "dns: {name: www.example}", ""},
	{"dns-tcp", "resolver", "dns: {name: www.example, protocol: tcp}", ""},
	{"udp", "game", "udp: {port: 7007, payload: status, answer: players}", ""},
	{"icmp", "pinged", "icmp: {}", ""},
	{"flaps", "flapper", "tcp: {port: 7007}", "damping: {flaps: 3, within: 1m, hold: 2s}"},
}

// configure the load balancer: its own config, and these beside it.
func (c checked) configure(t *testing.T) {
	t.Helper()
	var services, pools, checks strings.Builder
	for i, k := range kinds {
		fmt.Fprintf(&services, "- {name: %s, vips: [{address: 203.0.113.200, ports: [%d], protocol: udp}], pools: [%s], fragments: false}\n", k.name, 1000+i, k.name)
		pool := ""
		if k.pool != "" {
			pool = k.pool + ", "
		}
		fmt.Fprintf(&pools, "- {name: %s, health_checks: [%s], %sbackends: [{name: %s, address: %s}]}\n", k.name, k.name, pool, k.host, c.hosts[k.host].host.Addresses()[0])
		fmt.Fprintf(&checks, "- {name: %s, via: direct, %s, interval: 250ms, timeout: 250ms, rise: 1, fall: 2}\n", k.name, k.check)
	}
	editConfig(t, c.running, "lb-1", func(text string) string {
		for key, items := range map[string]string{"services": services.String(), "pools": pools.String(), "health_checks": checks.String()} {
			text = replaceOnce(t, text, "\n"+key+":\n", "\n"+key+":\n"+items)
		}
		return text
	})
}

func (c checked) guideway(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return guideway(t, c.running, c.running.Network.LoadBalancers[0].Namespace, append(args, "--run-dir", filepath.Join(c.dir, "lb-1", "run"))...)
}

// wait until a kind's backend has this state, in words and in the plan.
func (c checked) wait(t *testing.T, kind, state, reason string) {
	t.Helper()
	wanted := regexp.MustCompile(reason)
	eventually(t, 20*time.Second, fmt.Sprintf("%s is %s with %q", kind, state, reason), func() error {
		got, result, err := c.stateOf(t, kind)
		if err != nil {
			return err
		}
		if got != state || !wanted.MatchString(result) {
			return fmt.Errorf("it is %s: %s", got, result)
		}
		plan, err := c.running.Plan(t.Context(), "lb-1")
		if err != nil {
			return err
		}
		inPlan := planv1.BackendState_BACKEND_STATE_ACTIVE
		if state == "down" {
			inPlan = planv1.BackendState_BACKEND_STATE_DOWN
		}
		if got := hosts.StateOf(plan, kind, c.hostOf(kind)); got != inPlan {
			return fmt.Errorf("in the plan it is %v", got)
		}
		return nil
	})
}

func (c checked) hostOf(kind string) string {
	for _, k := range kinds {
		if k.name == kind {
			return k.host
		}
	}
	return ""
}

// stateOf a kind's backend, its reason and the last probe's result.
func (c checked) stateOf(t *testing.T, kind string) (state, text string, err error) {
	t.Helper()
	out, err := c.guideway(t, "show", "backends", c.hostOf(kind), "-o", "json")
	if err != nil {
		return "", "", err
	}
	var found controllerv1.GetBackendResponse
	if err := protojson.Unmarshal([]byte(out), &found); err != nil {
		return "", "", err
	}
	for _, b := range found.Backends {
		if b.Service == kind {
			state, text = b.State, b.Reason
		}
	}
	for _, check := range found.Checks {
		if check.Name != kind {
			continue
		}
		if check.Last == nil {
			return state, text, fmt.Errorf("no probe yet: %s", out)
		}
		// At most an interval, a timeout and a busy machine.
		if time.Since(check.Last.At.AsTime()) > 5*time.Second || check.Last.LatencySeconds <= 0 || check.Last.LatencySeconds > 5 {
			return state, text, fmt.Errorf("the last probe of %s is %v", kind, check.Last)
		}
		return state, text + " | " + check.Last.Result, nil
	}
	return state, text, fmt.Errorf("no check %s in %s", kind, out)
}

// checkFault takes kinds down; what made it is undone by heal.
type checkFault struct {
	what   string
	breaks func() error
	heals  func() error
	// The last result in words, by kind.
	reasons map[string]string
}

func (c checked) try(t *testing.T, faults ...checkFault) {
	t.Helper()
	for _, f := range faults {
		t.Run(f.what, func(t *testing.T) {
			if err := f.breaks(); err != nil {
				t.Fatal(err)
			}
			for kind, reason := range f.reasons {
				c.wait(t, kind, "down", reason)
			}
			if err := f.heals(); err != nil {
				t.Fatal(err)
			}
			for kind := range f.reasons {
				c.wait(t, kind, "active", ".")
			}
		})
	}
}

func nginxFails(t *testing.T, c checked, a *looptest.Authority) {
	web := c.hosts["web"]
	certify(t, a, web.dir, "web.example", 365*24*time.Hour)
	config := func(status int, body string) func() error {
		return func() error { return web.configureNginx(status, body) }
	}
	good := func() error { return web.configureNginx(200, "all is well") }
	certificate := func(authority *looptest.Authority, name string, lifetime time.Duration) func() error {
		return func() error {
			certify(t, authority, web.dir, name, lifetime)
			return good()
		}
	}
	if err := good(); err != nil {
		t.Fatal(err)
	}
	start := func() error {
		return web.start("nginx", "nginx", "-c", web.path("nginx.conf"), "-p", web.dir, "-e", web.path("nginx.log"))
	}
	if err := start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(web.stopAll)
	for _, kind := range []string{"tcp", "http", "https", "tls"} {
		c.wait(t, kind, "active", ".")
	}
	noAnswer := "no answer within 250ms"
	c.try(t,
		checkFault{"a wrong status", config(503, "all is well"), good, map[string]string{"http": "status 503", "https": "status 503"}},
		checkFault{"a wrong body", config(200, "out of order"), good, map[string]string{"http": "all is well"}},
		checkFault{"a certificate of another name", certificate(a, "mail.example", time.Hour), certificate(a, "web.example", time.Hour),
			map[string]string{"https": "mail.example", "tls": "mail.example"}},
		checkFault{"an expired certificate", certificate(a, "web.example", -time.Hour), certificate(a, "web.example", 3*24*time.Hour),
			map[string]string{"https": "expired", "tls": "expired"}},
		checkFault{"a certificate of another authority", certificate(newAuthority(t, t.TempDir()), "web.example", time.Hour), certificate(a, "web.example", 3*24*time.Hour),
			map[string]string{"https": "authorit|signed", "tls": "authorit|signed"}},
	)
	// Not a fault yet, but told.
	c.wait(t, "tls", "active", "expires in [23] days, on .*: renew it")
	c.try(t,
		// The kernel goes on to accept.
		checkFault{"a hanging server", func() error { return web.signal("nginx", stopSignal) }, func() error { return web.signal("nginx", continueSignal) },
			map[string]string{"http": noAnswer, "https": noAnswer, "tls": noAnswer}},
		checkFault{"closed ports", func() error { return web.end("nginx") }, start,
			map[string]string{"tcp": "connection refused", "http": "connection refused", "https": "connection refused", "tls": "connection refused"}},
		checkFault{"a firewall that drops", web.filter("tcp dport { 80, 443 } drop"), web.filter(""),
			map[string]string{"tcp": noAnswer, "http": noAnswer}},
	)
}

func grpcFails(t *testing.T, c checked) {
	shop := c.hosts["shop"]
	var listener net.Listener
	if err := topology.Inside(shop.host.Namespace(), func() (err error) {
		listener, err = net.Listen("tcp", ":50051")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	answers, rpc := health.NewServer(), grpc.NewServer()
	healthv1.RegisterHealthServer(rpc, answers)
	go func() { _ = rpc.Serve(listener) }()
	t.Cleanup(rpc.Stop)
	set := func(name string, status healthv1.HealthCheckResponse_ServingStatus) func() error {
		return func() error { answers.SetServingStatus(name, status); return nil }
	}
	// It does not know the service before.
	c.wait(t, "grpc", "down", "shop.Cart")
	serving := set("shop.Cart", healthv1.HealthCheckResponse_SERVING)
	if err := serving(); err != nil {
		t.Fatal(err)
	}
	c.wait(t, "grpc", "active", "SERVING")
	c.try(t,
		checkFault{"not serving", set("shop.Cart", healthv1.HealthCheckResponse_NOT_SERVING), serving, map[string]string{"grpc": "NOT_SERVING"}},
		checkFault{"a firewall that rejects", shop.filter("tcp dport 50051 reject with tcp reset"), shop.filter(""), map[string]string{"grpc": "connection refused"}},
	)
}

func dnsmasqFails(t *testing.T, c checked) {
	resolver := c.hosts["resolver"]
	start := func(args ...string) func() error {
		return func() error {
			return resolver.start("dnsmasq", "dnsmasq", append([]string{"--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts",
				"--local=/example/", "--user=root", "--pid-file=", "--cache-size=0", "--log-facility=-", "--local-ttl=1"}, args...)...)
		}
	}
	good := start("--host-record=www.example,192.0.2.1")
	again := func() error {
		if err := resolver.end("dnsmasq"); err != nil {
			return err
		}
		return good()
	}
	if err := good(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(resolver.stopAll)
	both := func(reason string) map[string]string { return map[string]string{"dns": reason, "dns-tcp": reason} }
	c.wait(t, "dns", "active", ".")
	c.wait(t, "dns-tcp", "active", ".")
	c.try(t,
		checkFault{"a name that is not there", func() error {
			if err := resolver.end("dnsmasq"); err != nil {
				return err
			}
			return start()()
		}, again, both("NXDOMAIN")},
		checkFault{"a record of another type", func() error {
			if err := resolver.end("dnsmasq"); err != nil {
				return err
			}
			return start("--host-record=www.example,2001:db8::1")()
		}, again, both("no record of type A")},
		checkFault{"a server that is gone", func() error { return resolver.end("dnsmasq") }, good, both("connection refused")},
		checkFault{"a hanging server", func() error { return resolver.signal("dnsmasq", stopSignal) }, func() error { return resolver.signal("dnsmasq", continueSignal) },
			both("no answer within 250ms")},
	)
}

func udpFails(t *testing.T, c checked) {
	game := c.hosts["game"]
	start := func(answer string) func() error {
		return func() error {
			return game.start("socat", "socat", "UDP4-RECVFROM:7007,fork,reuseaddr", "SYSTEM:echo "+answer)
		}
	}
	if err := start("12 players")(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(game.stopAll)
	c.wait(t, "udp", "active", ".")
	restart := func(answer string) func() error {
		return func() error {
			if err := game.end("socat"); err != nil {
				return err
			}
			return start(answer)()
		}
	}
	c.try(t,
		checkFault{"a wrong answer", restart("no such game"), restart("3 players"), map[string]string{"udp": "players"}},
		checkFault{"a closed port", func() error { return game.end("socat") }, start("12 players"), map[string]string{"udp": "connection refused"}},
		checkFault{"a firewall that drops", game.filter("udp dport 7007 drop"), game.filter(""), map[string]string{"udp": "no answer within 250ms"}},
	)
}

func icmpFails(t *testing.T, c checked) {
	pinged := c.hosts["pinged"]
	c.wait(t, "icmp", "active", ".")
	ignore := func(value string) func() error {
		return func() error {
			return topology.SetSysctls(pinged.host.Namespace(), []string{"ipv4/icmp_echo_ignore_all=" + value})
		}
	}
	c.try(t, checkFault{"pings ignored", ignore("1"), ignore("0"), map[string]string{"icmp": "no answer within 250ms"}})
}

// flappingIsHeld: after three times down the server is well and stays down until
// its checks have passed for two seconds.
func flappingIsHeld(t *testing.T, c checked) {
	flapper := c.hosts["flapper"]
	start := func() error { return flapper.start("socat", "socat", "TCP4-LISTEN:7007,fork,reuseaddr", "SYSTEM:true") }
	if err := start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(flapper.stopAll)
	for range 2 {
		c.wait(t, "flaps", "active", "connected")
		if err := flapper.end("socat"); err != nil {
			t.Fatal(err)
		}
		c.wait(t, "flaps", "down", "connection refused")
		if err := start(); err != nil {
			t.Fatal(err)
		}
	}
	c.wait(t, "flaps", "active", "connected")
	if err := flapper.end("socat"); err != nil {
		t.Fatal(err)
	}
	c.wait(t, "flaps", "down", "connection refused")
	if err := start(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c.wait(t, "flaps", "down", `held by damping \(down 3 times within 1m0s\) until its checks pass for 2s; now flaps: connected`)
	c.wait(t, "flaps", "active", "connected")
	if held := time.Since(began); held < 2*time.Second {
		t.Errorf("held for %v", held)
	}
}
