package brain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// servingWeb has both backends up and its route announced.
func servingWeb(t *testing.T) *world {
	t.Helper()
	w := start(t, oneService)
	w.probe("10.1.0.11", true)
	w.probe("10.1.0.12", true)
	w.pass(200 * time.Millisecond)
	if len(w.last.Routes) != 1 {
		t.Fatalf("routes %v", w.last.Routes)
	}
	return w
}

func (f *Foresight) routes() []string {
	var lines []string
	for _, r := range f.Routes {
		lines = append(lines, fmt.Sprintf("%s %v: %s", r.Prefix, r.Announced, r.Reason))
	}
	return lines
}

func withoutGeneration(plan *planv1.Plan) *planv1.Plan {
	copied := proto.CloneOf(plan)
	copied.Generation = 0
	return copied
}

const anotherBackend = "{name: web-2, address: 10.1.0.12}, {name: web-3, address: 10.1.0.13}"

var foreseen = []struct {
	what, from, to string
	assumed        []string
	routes         []string
}{
	{"nothing", "", "", nil, nil},
	{"another backend", "{name: web-2, address: 10.1.0.12}", anotherBackend, []string{"web-3"}, nil},
	{"another address", "10.1.0.12", "10.1.0.13", []string{"web-2"}, nil},
	{"another vip", "vips: [", "vips: [{address: 203.0.113.11, protocol: tcp}, ", nil, []string{"203.0.113.11/32 true: its services have backends"}},
	{"a vip less", "203.0.113.10", "203.0.113.12", nil, []string{"203.0.113.10/32 false: no service here has it any more", "203.0.113.12/32 true: its services have backends"}},
	{"no weight", "}]}\nhealth", ", weight: 0}]}\nhealth", nil, nil},
	{"all drain", "address: 10.1.0.11}, {name: web-2, address: 10.1.0.12", "address: 10.1.0.11, weight: 0}, {name: web-2, address: 10.1.0.12, weight: 0", nil, []string{"203.0.113.10/32 false: no backend"}},
	{"another check", "http: {port: 80}", "http: {port: 81}", nil, nil},
}

func TestWhatIsForeseenIsWhatThenHappens(t *testing.T) {
	for _, c := range foreseen {
		t.Run(c.what, func(t *testing.T) {
			w := servingWeb(t)
			before := withoutGeneration(w.last.Plan)
			config := parse(t, strings.Replace(oneService, c.from, c.to, 1))
			f := w.state.Snapshot().Foresee(config)
			if !slices.Equal(f.AssumedActive, c.assumed) {
				t.Errorf("assumed active: %v", f.AssumedActive)
			}
			if !slices.Equal(f.routes(), c.routes) {
				t.Errorf("routes %q", f.routes())
			}
			// Looking ahead has changed nothing.
			w.pass(time.Second)
			if !proto.Equal(before, withoutGeneration(w.last.Plan)) {
				t.Fatal("the plan changed by looking ahead")
			}
			w.do(ConfigLoaded{Config: config})
			for _, address := range []string{"10.1.0.11", "10.1.0.12", "10.1.0.13"} {
				if strings.Contains(strings.Replace(oneService, c.from, c.to, 1), address) {
					w.probe(address, true)
				}
			}
			w.pass(time.Second)
			if !proto.Equal(withoutGeneration(f.Plan), withoutGeneration(w.last.Plan)) {
				t.Errorf("foreseen %v, then %v", f.Plan, w.last.Plan)
			}
			announced := 1
			for _, r := range f.Routes {
				announced += map[bool]int{true: 1, false: -1}[r.Announced]
			}
			if len(w.last.Routes) != announced {
				t.Errorf("%d routes foreseen, then %v", announced, w.last.Routes)
			}
		})
	}
}

func TestABackendThatIsDownIsForeseenDown(t *testing.T) {
	w := servingWeb(t)
	for range 3 {
		w.probe("10.1.0.12", false)
	}
	w.pass(200 * time.Millisecond)
	f := w.state.Snapshot().Foresee(parse(t, strings.Replace(oneService, "http: {port: 80}", "http: {port: 81}", 1)))
	if state := f.Plan.Groups[0].Members[1].State; state != stateDown || len(f.AssumedActive) != 0 {
		t.Errorf("web-2 is %v; assumed active: %v", state, f.AssumedActive)
	}
}

func TestNothingIsForeseenBeforeTheForwarderWasMet(t *testing.T) {
	w := startCold(t, oneService)
	if f := w.state.Snapshot().Foresee(parse(t, oneService)); f != nil {
		t.Errorf("foreseen %v", f)
	}
}

func TestAcceptedIsWhatTheForwarderRuns(t *testing.T) {
	w := servingWeb(t)
	running, accepted := w.state.Accepted()
	if !accepted || running != w.last.Config {
		t.Errorf("accepted %v: %v", accepted, running)
	}
	w.accepts = false
	w.do(ConfigLoaded{Config: parse(t, strings.Replace(oneService, "10.1.0.12", "10.1.0.13", 1))})
	if _, accepted := w.state.Accepted(); accepted {
		t.Error("a plan is under way")
	}
}

// Else its routes would wait for a plan that is never made, and the config
// would not be kept for a restart.
func TestAConfigWithTheSamePlanIsTrustedAtOnce(t *testing.T) {
	w := servingWeb(t)
	generation := w.running.Generation
	next := parse(t, oneService+"cluster: {prefixes: [203.0.113.0/24]}\n")
	w.do(ConfigLoaded{Config: next})
	if w.last.Trusted != next || w.running.Generation != generation {
		t.Errorf("trusted: %v; generation %d after %d", w.last.Trusted == next, w.running.Generation, generation)
	}
	w.expectRoutes(vip)
}

const withTwoRouters = oneService + `
cluster: {prefixes: [203.0.113.0/24]}
bgp: {asn: 64512, neighbors: [{address: 10.0.0.254, asn: 64513}, {address: 10.0.0.253, asn: 64513}]}
`

func TestSessionsThatEndAreForeseenWithTheirRoutes(t *testing.T) {
	const anew = "203.0.113.10/32 false: every BGP session ends; it is announced again when one has begun"
	const both = "{address: 10.0.0.254, asn: 64513}, {address: 10.0.0.253, asn: 64513}"
	for what, c := range map[string]struct {
		from, to string
		up       []string
		sessions []string
		routes   []string
	}{
		"nothing":              {"", "", []string{"10.0.0.254"}, nil, nil},
		"the own AS":           {"asn: 64512", "asn: 64599", []string{"10.0.0.254", "10.0.0.253"}, []string{"10.0.0.254", "10.0.0.253"}, []string{anew}},
		"one of two":           {"10.0.0.254, asn: 64513", "10.0.0.254, asn: 64514", []string{"10.0.0.254", "10.0.0.253"}, []string{"10.0.0.254"}, nil},
		"the only one that is": {"10.0.0.254, asn: 64513", "10.0.0.254, asn: 64513, ttl_security: true", []string{"10.0.0.254"}, []string{"10.0.0.254"}, []string{anew}},
		"one that is down":     {"10.0.0.254, asn: 64513", "10.0.0.254, asn: 64514", []string{"10.0.0.253"}, nil, nil},
		"a neighbor less":      {"{address: 10.0.0.254, asn: 64513}, ", "", []string{"10.0.0.254"}, []string{"10.0.0.254"}, []string{anew}},
		"other neighbors":      {both, "{address: 10.0.0.252, asn: 64513}", []string{"10.0.0.254"}, []string{"10.0.0.254"}, []string{anew}},
		"no BGP": {
			withTwoRouters[strings.Index(withTwoRouters, "bgp:"):], "", []string{"10.0.0.254"},
			[]string{"10.0.0.254"}, []string{"203.0.113.10/32 false: bgp is removed"},
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := start(t, withTwoRouters)
			w.settle(true, "10.1.0.11", "10.1.0.12")
			w.do(SpeakerConnected{})
			for _, address := range c.up {
				w.do(NeighborState{Address: netip.MustParseAddr(address), State: "established"})
			}
			w.pass(time.Second)
			f := w.state.Snapshot().Foresee(parse(t, strings.Replace(withTwoRouters, c.from, c.to, 1)))
			var sessions []string
			for _, end := range f.Sessions {
				sessions = append(sessions, end.Neighbor.Address.String())
			}
			if !slices.Equal(sessions, c.sessions) || !slices.Equal(f.routes(), c.routes) || f.RoutesHeard != 1 {
				t.Errorf("sessions %q, routes %q, heard %d", sessions, f.routes(), f.RoutesHeard)
			}
			if last := len(c.routes) > 0; f.LastSessionEnds != last {
				t.Errorf("the last session ends: %v", f.LastSessionEnds)
			}
		})
	}
}

func TestProbesAreNewIfTheirCheckOrBackendIs(t *testing.T) {
	w := servingWeb(t)
	for to, want := range map[string]int{oneService: 0, strings.Replace(oneService, "port: 80", "port: 81", 1): 2} {
		if got := w.state.Snapshot().Foresee(parse(t, to)).NewProbes; len(got) != want {
			t.Errorf("%d new probes, want %d: %v", len(got), want, got)
		}
	}
}
