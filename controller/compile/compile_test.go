package compile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	validate "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

const (
	active   = planv1.BackendState_BACKEND_STATE_ACTIVE
	draining = planv1.BackendState_BACKEND_STATE_DRAINING
	down     = planv1.BackendState_BACKEND_STATE_DOWN
	disabled = planv1.BackendState_BACKEND_STATE_DISABLED
)

func parse(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.ParseToCompile([]config.Source{{Name: "t.yaml", Data: []byte(text)}},
		func(string) ([]byte, fs.FileMode, error) { return nil, 0, fs.ErrNotExist })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The folders hold config.yaml and the plan.json that the Rust tests replay
// packets with. UPDATE_GOLDEN=1 rewrites the plans.
func Test_the_forwarders_golden_configs_compile_to_their_plans(t *testing.T) {
	compareGolden(t, "../../forwarder/tests/golden")
}

func Test_golden_configs_compile_to_their_plans(t *testing.T) {
	compareGolden(t, "testdata/golden")
}

func compareGolden(t *testing.T, parent string) {
	for _, folder := range golden(t, parent) {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			c, err := config.LoadToCompile(filepath.Join(folder, "config.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			got := Compile(c, States{}, 1)
			addMoves(t, folder, got)
			addEarlierTables(t, folder, got)
			file := filepath.Join(folder, "plan.json")
			if os.Getenv("UPDATE_GOLDEN") != "" {
				write(t, file, got)
			}
			wanted := &planv1.Plan{}
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := protojson.Unmarshal(data, wanted); err != nil {
				t.Fatalf("read %s: %v", file, err)
			}
			if !proto.Equal(got, wanted) {
				t.Errorf("the plan is\n%s\nwanted\n%s", protojson.Format(got), protojson.Format(wanted))
			}
		})
	}
}

// addMoves opens the moves that a folder's moves.json has by service, if there is
// one: what is compiled without a history has none.
func addMoves(t *testing.T, folder string, plan *planv1.Plan) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(folder, "moves.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var maps map[string]json.RawMessage
	if err == nil {
		err = json.Unmarshal(data, &maps)
	}
	for _, service := range plan.GetServices() {
		if moves, isNamed := maps[service.GetName()]; isNamed && err == nil {
			opened := &planv1.BucketMap{}
			err = protojson.Unmarshal(moves, opened)
			service.GetBucketMap().Moves = opened.GetMoves()
		}
	}
	if err != nil {
		t.Fatalf("%s/moves.json: %v", folder, err)
	}
	plan.Requires = requires(plan)
}

// addEarlierTables: the same for those that a folder's earlier.json has by group.
func addEarlierTables(t *testing.T, folder string, plan *planv1.Plan) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(folder, "earlier.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var groups map[string]json.RawMessage
	if err == nil {
		err = json.Unmarshal(data, &groups)
	}
	for _, group := range plan.GetGroups() {
		if tables, isNamed := groups[group.GetName()]; isNamed && err == nil {
			former := &planv1.Group{}
			err = protojson.Unmarshal(tables, former)
			group.Earlier = former.GetEarlier()
		}
	}
	if err != nil {
		t.Fatalf("%s/earlier.json: %v", folder, err)
	}
	plan.Requires = requires(plan)
}

func golden(t *testing.T, parent string) []string {
	t.Helper()
	configs, err := filepath.Glob(parent + "/*/config.yaml")
	if err != nil || len(configs) == 0 {
		t.Fatalf("no golden folders in %s: %v", parent, err)
	}
	folders := make([]string, len(configs))
	for i, file := range configs {
		folders[i] = filepath.Dir(file)
	}
	return folders
}

func write(t *testing.T, file string, plan *planv1.Plan) {
	t.Helper()
	compact, err := protojson.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := json.Indent(&text, compact, "", "  "); err != nil {
		t.Fatal(err)
	}
	text.WriteByte('\n')
	if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

const shared = `
machine: {addresses: [10.0.0.1]}
services:
- {name: s, vips: [{address: 203.0.113.1, protocol: tcp}], pools: [a, b]}
- {name: elsewhere, shard: other, vips: [{address: 203.0.113.1, protocol: tcp}], pools: [c]}
pools:
- {name: a, backends: [{name: x, address: 10.1.0.1}, {name: z, address: 10.1.0.3, weight: 0}]}
- {name: b, backends: [{name: x, address: 10.1.0.1}, {name: y, address: 10.1.0.2}], health_checks: [t]}
- {name: c, backends: [{name: w, address: 10.1.0.4}], health_checks: [t]}
health_checks: [{name: t, via: direct, tcp: {port: 80}}]
`

func Test_services_of_other_shards_and_their_backends_are_left_out(t *testing.T) {
	plan := Compile(parse(t, shared), States{}, 7)
	if plan.GetGeneration() != 7 || len(plan.GetServices()) != 1 || plan.GetServices()[0].GetName() != "s" {
		t.Errorf("plan is %v", plan)
	}
	var names []string
	for _, backend := range plan.GetBackends() {
		names = append(names, backend.GetName())
	}
	if !slices.Equal(names, []string{"x", "y", "z"}) {
		t.Errorf("backends are %v", names)
	}
}

func Test_a_members_state_is_the_worst_that_its_pools_say(t *testing.T) {
	for _, one := range []struct {
		what    string
		states  map[string]planv1.BackendState
		x, y, z planv1.BackendState
	}{
		{"nothing known", nil, active, active, draining},
		{"down in one of two pools", map[string]planv1.BackendState{"b x": down}, down, active, draining},
		{"down and disabled", map[string]planv1.BackendState{"a x": disabled, "b x": down}, disabled, active, draining},
		{"drained by command", map[string]planv1.BackendState{"b y": draining}, active, draining, draining},
		{"weight 0 and down", map[string]planv1.BackendState{"a z": down}, active, active, down},
	} {
		t.Run(one.what, func(t *testing.T) {
			states := States{Backend: func(pool, backend string) planv1.BackendState {
				if state, ok := one.states[pool+" "+backend]; ok {
					return state
				}
				return active
			}}
			var got []planv1.BackendState
			for _, member := range Compile(parse(t, shared), states, 1).GetGroups()[0].GetMembers() {
				got = append(got, member.GetState())
			}
			if wanted := []planv1.BackendState{one.x, one.y, one.z}; !slices.Equal(got, wanted) {
				t.Errorf("states are %v, wanted %v", got, wanted)
			}
		})
	}
}

func Test_a_peer_is_healthy_unless_it_is_known_not_to_be(t *testing.T) {
	c := parse(t, shared+"peers: [{name: p, addresses: [10.0.0.2]}, {name: q, addresses: [10.0.0.3]}]\n")
	for _, peer := range Compile(c, States{}, 1).GetPeers() {
		if !peer.GetHealthy() {
			t.Errorf("%s is not healthy", peer.GetName())
		}
	}
	plan := Compile(c, States{PeerHealthy: func(name string) bool { return name == "p" }}, 1)
	if !plan.GetPeers()[0].GetHealthy() || plan.GetPeers()[1].GetHealthy() {
		t.Errorf("peers are %v", plan.GetPeers())
	}
}

func Test_order_in_the_config_does_not_change_the_plan(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(shared), "\n")
	lines[5], lines[7] = lines[7], lines[5]
	lines[2], lines[3] = lines[3], lines[2]
	other := strings.NewReplacer("pools: [a, b]", "pools: [b, a]").Replace(strings.Join(lines, "\n"))
	if a, b := Compile(parse(t, shared), States{}, 1), Compile(parse(t, other), States{}, 1); !proto.Equal(a, b) {
		t.Errorf("plans are\n%s\nand\n%s", protojson.Format(a), protojson.Format(b))
	}
}

// A word that the schema takes and the plan lacks would silently become the plan's
// default.
func Test_the_config_and_the_plan_have_the_same_words(t *testing.T) {
	for field, words := range map[protoreflect.FullName][]string{
		"Service.mode":           planned(modes),
		"Service.affinity":       planned(affinities),
		"Service.encap":          planned(encaps),
		"Service.on_down":        planned(onDowns),
		"Service.when_none":      planned(whenNones),
		"Service.unmatched":      planned(unmatcheds),
		"Vip.protocol":           slices.DeleteFunc(planned(protocols), func(word string) bool { return word == "any" }), // where none is given
		"Forwarder.steering":     planned(steerings),
		"Forwarder.kernel_cache": planned(kernelCaches),
		"Interface.driver":       append(planned(drivers), string(config.DriverAuto)),
	} {
		descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName("guideway.config.v1." + field)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(words)
		rules := proto.GetExtension(descriptor.Options(), validate.E_Field).(*validate.FieldRules)
		if taken := slices.Sorted(slices.Values(rules.GetString().GetIn())); !slices.Equal(taken, words) {
			t.Errorf("%s: the config has %v, the plan %v", field, taken, words)
		}
	}
}

// planned words, sorted.
func planned[Word ~string, Plan enum](words map[Word]Plan) (sorted []string) {
	for word := range words {
		sorted = append(sorted, string(word))
	}
	slices.Sort(sorted)
	return sorted
}

func Test_a_word_is_the_plans_value_of_its_name(t *testing.T) {
	if drivers[config.DriverAFPacket] != planv1.Driver_DRIVER_AF_PACKET || whenNones[config.WhenNoneFailOpen] != planv1.WhenNone_WHEN_NONE_FAIL_OPEN ||
		protocols[config.ProtocolAny] != planv1.Protocol_PROTOCOL_ANY || fragments[config.FragmentsOff] != planv1.Fragments_FRAGMENTS_OFF || len(fragments) != 3 {
		t.Errorf("%v, %v, %v, %v", drivers, whenNones, protocols, fragments)
	}
}

func Test_requires_names_what_the_plan_uses_sorted(t *testing.T) {
	plan := &planv1.Plan{
		Encapsulators: []string{"10.0.9.0/24"},
		Tunnel:        &planv1.Tunnel{Udp6Checksum: true, SourcePrefix: "10.9.0.0/16", Mtu: 1400},
		Forwarder:     &planv1.Forwarder{Steering: planv1.Steering_STEERING_SOFTWARE},
		Services: []*planv1.Service{
			{Encap: planv1.Encap_ENCAP_GUE, Fragments: planv1.Fragments_FRAGMENTS_ON},
			{Encap: planv1.Encap_ENCAP_GRE, Mode: planv1.Mode_MODE_STATELESS, Spill: []*planv1.Spill{{}}},
			{Encap: planv1.Encap_ENCAP_IPIP, Fragments: planv1.Fragments_FRAGMENTS_OFF},
			{Encap: planv1.Encap_ENCAP_GENEVE, BucketMap: &planv1.BucketMap{Moves: []*planv1.OpenMove{{}}}},
		},
	}
	wanted := []string{"bucket-moves", "encap-geneve", "encap-gue", "encap-ipip", "encapsulators", "fragments", "source-prefix",
		"spill", "stateless", "steering-software", "tunnel-mtu", "udp6-checksum"}
	if got := requires(plan); !slices.Equal(got, wanted) {
		t.Errorf("requires %v, wanted %v", got, wanted)
	}
	if got := requires(&planv1.Plan{Services: []*planv1.Service{{}}}); len(got) != 0 {
		t.Errorf("a plain plan requires %v", got)
	}
}

func Test_equal_probes_of_one_address_are_one_target(t *testing.T) {
	c := parse(t, `
machine: {addresses: [10.0.0.1]}
services:
- {name: s, vips: [{address: 203.0.113.1, protocol: tcp}], pools: [a]}
- {name: elsewhere, shard: other, vips: [{address: 203.0.113.2, protocol: tcp}], pools: [far]}
pools:
- {name: a, pools: [b], health_checks: [t80, again, slow], backends: [{name: x, address: 10.1.0.1}]}
- {name: b, health_checks: [again], backends: [{name: x, address: 10.1.0.1}, {name: y, address: 10.1.0.2}]}
- {name: far, health_checks: [t80], backends: [{address: 10.1.0.9}]}
- {name: unchecked, backends: [{address: 10.1.0.8}]}
health_checks:
- {name: t80, via: direct, tcp: {port: 80}}
- {name: again, via: direct, tcp: {port: 80}, interval: 1s}
- {name: slow, via: direct, tcp: {port: 80}, interval: 2s}
`)
	var got []string
	for _, target := range Targets(c) {
		got = append(got, fmt.Sprintf("%s %s %s %v", target.Address, target.HealthCheck.Name, target.Interval, target.For))
	}
	wanted := []string{
		"10.1.0.1 t80 1s [{a x} {b x}]",
		"10.1.0.1 slow 2s [{a x}]",
		"10.1.0.2 again 1s [{b y}]",
	}
	if !slices.Equal(got, wanted) {
		t.Errorf("targets are\n%s\nwanted\n%s", strings.Join(got, "\n"), strings.Join(wanted, "\n"))
	}
}

func Test_probes_through_tunnels_are_targets_of_their_own_by_backend_and_VIP(t *testing.T) {
	c, err := config.Load("testdata/golden/checks-through-the-tunnel/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got := targetLines(c)
	const gre, gue = "web via gre to 203.0.113.10,2001:db8:a::10", "web via gue to 203.0.113.20"
	want := []string{
		// Direct ones are one for all that have that address.
		"10.1.0.11 directly for plain/web-1, web/web-1, " + gre + "/web-1, " + gue + "/web-1",
		"2001:db8:1::12 directly for web/web-2, " + gre + "/web-2, " + gue + "/web-2",
		"2001:db8:a::10 ENCAP_GRE to web-1 at 10.1.0.11 for " + gre + "/web-1",
		"2001:db8:a::10 ENCAP_GRE to web-2 at 2001:db8:1::12 for " + gre + "/web-2",
		"203.0.113.10 ENCAP_GRE to web-1 at 10.1.0.11 for " + gre + "/web-1",
		"203.0.113.10 ENCAP_GRE to web-2 at 2001:db8:1::12 for " + gre + "/web-2",
		"203.0.113.20 ENCAP_GUE to web-1 at 10.1.0.11 for " + gue + "/web-1",
		"203.0.113.20 ENCAP_GUE to web-2 at 2001:db8:1::12 for " + gue + "/web-2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("targets\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// What the VIPs of `web` pass, and `suffix`, whose VIP cannot be probed, by itself.
func Test_a_check_by_default_counts_for_each_service_by_one_way(t *testing.T) {
	c := parse(t, `
machine: {addresses: [10.0.0.1]}
prefix_groups: [{name: a, prefixes: [198.51.100.0/24]}]
services:
- {name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}], pools: [web]}
- {name: suffix, vips: [{prefix_group: a, suffix: 0.0.0.10, ports: [80], protocol: tcp}], pools: [web]}
- {name: more, vips: [{address: 203.0.113.10, ports: [81], protocol: tcp}], pools: [more]}
pools:
- {name: web, health_checks: [t], backends: [{name: web-1, address: 10.1.0.11}]}
- {name: more, health_checks: [t], backends: [{name: web-2, address: 10.1.0.12}]}
health_checks: [{name: t, tcp: {port: 80}}]
`)
	want := []string{
		"10.1.0.11 directly for web/web-1",
		"203.0.113.10 ENCAP_GRE to web-1 at 10.1.0.11 for web via gre to 203.0.113.10/web-1",
		"203.0.113.10 ENCAP_GRE to web-2 at 10.1.0.12 for more via gre to 203.0.113.10/web-2",
	}
	if got := targetLines(c); !slices.Equal(got, want) {
		t.Errorf("targets\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func targetLines(c *config.Config) (lines []string) {
	for _, target := range Targets(c) {
		var concerned []string
		for _, at := range target.For {
			concerned = append(concerned, at.Pool+"/"+at.Backend)
		}
		way := "directly"
		if target.Via() == config.ViaTunnel {
			way = fmt.Sprintf("%s to %s at %s", target.Tunnel.Encap, target.Tunnel.Backend, target.Tunnel.End)
		}
		lines = append(lines, fmt.Sprintf("%s %s for %s", target.Address, way, strings.Join(concerned, ", ")))
	}
	slices.Sort(lines)
	return lines
}

func Test_ten_thousand_services_compile(t *testing.T) {
	var b strings.Builder
	b.WriteString("machine: {addresses: [10.0.0.1]}\npools:\n- name: p\n  backends:\n")
	for i := range 200 {
		fmt.Fprintf(&b, "  - {address: 10.1.0.%d}\n", i+1)
	}
	b.WriteString("services:\n")
	for i := range 10_000 {
		fmt.Fprintf(&b, "- {name: s%d, vips: [{address: 203.%d.%d.1, ports: [80], protocol: tcp}], pools: [p]}\n", i, i>>8, i&255)
	}
	plan := Compile(parse(t, b.String()), States{}, 1)
	if len(plan.GetServices()) != 10_000 || len(plan.GetGroups()) != 1 || len(plan.GetGroups()[0].GetMembers()) != 200 || len(plan.GetBackends()) != 200 {
		t.Errorf("%d services, %d backends", len(plan.GetServices()), len(plan.GetBackends()))
	}
	if size := proto.Size(plan); size > 64<<20 {
		t.Errorf("the plan has %d bytes", size)
	}
}

func Test_backends_are_counted_by_service_only_where_asked_for(t *testing.T) {
	const text = `
machine: {addresses: [10.0.0.1]}
pools: [{name: p, backends: [{address: 10.1.0.1}]}]
services: [{name: s, vips: [{address: 203.0.113.1}], pools: [p]}]
`
	for metrics, wanted := range map[string]bool{"": false, "metrics: {detail: service}": false, "metrics: {detail: backend}": true} {
		if got := Compile(parse(t, text+metrics), States{}, 1).GetCountersByService(); got != wanted {
			t.Errorf("%q: %v", metrics, got)
		}
	}
}
