package main

import (
	"fmt"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Who may know whom. The arrows of ARCHITECTURE.md, as data.

// crateEdges: each crate of the workspace and the ones it may depend on, also
// for its tests. datapath and nic do not know each other.
var crateEdges = map[string][]string{
	"wire":     {},
	"plan":     {"wire"},
	"datapath": {"wire", "plan"},
	// Loads and attaches what the kernel runs; knows no packet.
	"ebpf": {},
	// How a program logs, serves metrics and notifies systemd; knows nothing of what it does.
	"daemon": {},
	"nic":    {"wire", "ebpf", "testnet"},
	// The kernel's routes and neighbours, followed; knows no packet.
	"nexthops": {"testnet"},
	// One load balancer in memory, and the loop that the forwarder's threads run.
	"sim":       {"wire", "plan", "datapath", "nic"},
	"forwarder": {"wire", "plan", "datapath", "nic", "nexthops", "sim", "daemon", "testnet"},
	"agent":     {"wire", "plan", "datapath", "ebpf", "nic", "nexthops", "daemon", "testnet"},
	// Namespaces for tests; see testCrate.
	"testnet": {},
	// Tries the thinking crates with any input.
	"fuzz": {"wire", "plan", "datapath", "sim"},
	// Measures the others; nobody depends on it.
	"bench": {"wire", "plan", "datapath", "nic", "sim"},
	// Man pages and completion, made from command lines; no product.
	"tools/pages":   {"forwarder", "agent"},
	"bench/figures": {"wire", "plan", "datapath", "nic", "sim", "forwarder", "bench"},
}

// testCrate is a dependency of tests only: products make no namespaces.
const testCrate = "testnet"

// rustEdges reads each member's Cargo.toml. It looked at crates.
func rustEdges(t *tree) (violations []violation, looked int) {
	for _, manifest := range t.under("", "Cargo.toml") {
		crate := path.Dir(manifest)
		if crate == "." {
			continue
		}
		allowed, known := crateEdges[crate]
		if !known {
			violations = append(violations, violation{manifest, 0,
				"a crate that no rule knows: add it to crateEdges in tools/lint and say which rule it enforces"})
			continue
		}
		looked++
		for _, d := range dependencies(t.read(manifest)) {
			name := strings.TrimPrefix(d.name, "guideway-")
			if _, ours := crateEdges[name]; ours && !slices.Contains(allowed, name) {
				violations = append(violations, violation{manifest, d.line,
					fmt.Sprintf("%s may not depend on %s: it may know %v", crate, name, allowed)})
			}
			if name == testCrate && d.product {
				violations = append(violations, violation{manifest, d.line, testCrate + " is a dev-dependency only"})
			}
		}
	}
	return violations, looked
}

type dependency struct {
	name    string
	line    int
	product bool // not only for tests or for building
}

var (
	tomlSection      = regexp.MustCompile(`^\[(.+)\]$`)
	dependencyTable  = regexp.MustCompile(`^(?:target\..*\.)?(dev-|build-)?dependencies$`)
	dependencyHeader = regexp.MustCompile(`^(?:target\..*\.)?(dev-|build-)?dependencies\.([\w-]+)$`)
	dependencyLine   = regexp.MustCompile(`^"?([\w-]+)"?\s*(?:\.\w+\s*)?=`)
)

// dependencies of a Cargo.toml, of every kind.
func dependencies(manifest string) []dependency {
	var found []dependency
	inTable, product := false, false
	for i, line := range strings.Split(manifest, "\n") {
		line = strings.TrimSpace(line)
		if section := tomlSection.FindStringSubmatch(line); section != nil {
			table := dependencyTable.FindStringSubmatch(section[1])
			inTable, product = table != nil, table != nil && table[1] == ""
			if own := dependencyHeader.FindStringSubmatch(section[1]); own != nil {
				found = append(found, dependency{own[2], i + 1, own[1] == ""})
			}
		} else if entry := dependencyLine.FindStringSubmatch(line); inTable && entry != nil {
			found = append(found, dependency{entry[1], i + 1, product})
		}
	}
	return found
}

// forwarderFloors: each folder or file of forwarder/src and those that its
// product code may use. `run`, `lib` and `main` start everything and may use all.
var forwarderFloors = map[string][]string{
	"proto":     {},
	"process":   {"proto"},
	"options":   {},
	"arguments": {"options", "offline"},
	"netlink":   {"proto", "process"},
	"dataplane": {"proto", "process", "netlink"},
	"observe":   {"proto", "process", "netlink", "dataplane"},
	"control":   {"proto", "process", "options", "netlink", "dataplane", "observe"},
	"api":       {"proto", "process", "control", "observe"},
	"takeover":  {"proto", "process", "control", "netlink", "dataplane"},
	"offline":   {"proto", "process", "observe"},
}

var crateUse = regexp.MustCompile(`\bcrate::(\w+)`)

// forwarderEdges looked at product files of the forwarder's floors.
func forwarderEdges(t *tree) (violations []violation, looked int) {
	const source = "forwarder/src/"
	for _, file := range t.under("forwarder/src", ".rs") {
		floor, _, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(file, source), ".rs"), "/")
		if floor == "run" || floor == "lib" || floor == "main" {
			continue
		}
		looked++
		allowed, known := forwarderFloors[floor]
		if !known {
			violations = append(violations, violation{file, 0,
				"a floor of the forwarder that no rule knows: add it to forwarderFloors in tools/lint"})
			continue
		}
		code := t.rustProduct(file)
		for _, at := range crateUse.FindAllStringSubmatchIndex(code, -1) {
			if used := code[at[2]:at[3]]; used != floor && !slices.Contains(allowed, used) {
				violations = append(violations, violation{file, lineOf(code, at[0]),
					fmt.Sprintf("%s may not use %s: it may know %v", floor, used, allowed)})
			}
		}
	}
	return violations, looked
}

const goModule = "github.com/guideway/guideway/"

// goEdgeRules: in packages under a folder, imports of this module are limited
// to these folders (and to the package's own folder). A folder without a rule
// is wiring and may know everyone: controller/main, cli, lab.
//
// Sinks take the whole Desired state, which the brain defines; they know
// nobody else, least of all one another.
var goEdgeRules = map[string][]string{
	"controller/check":     {"proto", "controller/outside"},
	"controller/config":    {"proto", "controller/buckets", "controller/check", "controller/outside"},
	"controller/compile":   {"proto", "controller/buckets", "controller/config", "controller/check"},
	"controller/agreement": {"controller/buckets"},
	"controller/brain":     {"proto", "controller/agreement", "controller/buckets", "controller/config", "controller/compile", "speaker/judge"},
	// Which config, from files or etcd to what runs.
	"controller/configs": {
		"proto", "controller/api", "controller/brain", "controller/config", "controller/events", "controller/notify", "controller/sinks/fleet", "controller/statedir", "controller/store",
	},
	// Programs that hear of changes.
	"controller/hooks": {"controller/config", "controller/events", "controller/outside"},
	// What changed here: told by whoever decides it, and kept.
	"controller/events": {"controller/outside"},
	// What is forwarded per second: read once for all who watch.
	"controller/rates": {"proto"},
	// What outlives a restart, and who writes it.
	"controller/store":           {"controller/buckets", "controller/config", "controller/sinks/fleet", "controller/statedir"},
	"controller/sinks/agents":    append([]string{"controller/sinks/session"}, sinkMayKnow...),
	"controller/sinks/fleet":     append([]string{"controller/agreement", "controller/buckets"}, sinkMayKnow...),
	"controller/sinks/forwarder": append([]string{"controller/sinks/sinkconn"}, sinkMayKnow...),
	"controller/sinks/members":   sinkMayKnow,
	"controller/sinks/prober":    sinkMayKnow,
	"controller/sinks/routes":    append([]string{"controller/sinks/sinkconn"}, sinkMayKnow...),
	"controller/sinks/peers":     append([]string{"controller/sinks/session"}, sinkMayKnow...),
	"controller/sinks/session":   {"controller/config"},
	"controller/sinks/sinkconn":  {},
	"controller/rundir":          {},
	"controller/statedir":        {},
	"controller/buckets":         {"proto"},
	"controller/api":             append([]string{"controller/events", "controller/rates", "controller/rundir"}, sinkMayKnow...),
	// HTTP, and its limits; and the pages for people, which repeat what others decided.
	"controller/web":      {},
	"controller/console":  {"proto", "controller/brain", "controller/events", "controller/outside", "controller/rates", "controller/web"},
	"controller/metrics":  append([]string{"controller/sinks/fleet", "controller/sinks/session"}, sinkMayKnow...),
	"controller/outside":  {"proto"},
	"controller/tracer":   {"controller/config", "controller/outside"},
	"controller/apitest":  {"proto"},
	"controller/etcdtest": {"looptest"},
	"controller/notify":   {},
	// Wiring: the controller's, and the speaker's, a process of its own. Of the speaker the
	// controller knows whether the forwarder is well, as both judge it.
	"controller/run": {"proto", "controller", "speaker/health"},
	"speaker": {"proto", "controller/brain", "controller/config", "controller/notify", "controller/rundir", "controller/sinks/routes",
		"controller/statedir", "controller/web"},
	"speaker/bgp":    sinkMayKnow,
	"speaker/health": {"proto", "speaker/judge"},
	"speaker/judge":  {},
	// VRRP on one interface: sockets and clock; below them decisions, below these bytes.
	"speaker/vrrp":          {},
	"speaker/vrrp/election": {"speaker/vrrp/packet"},
	"speaker/vrrp/packet":   {},
	"looptest":              {},
	// Asks none of our processes: what it shares with the controller are the kinds
	// of checks, the config's files and the limits of HTTP.
	"blackbox": {"proto", "controller/check", "controller/config", "controller/web"},
	"proto":    {},
	// Production machines carry this program, and not the lab.
	"cli":             {"proto", "controller", "speaker", "blackbox", "packaging"},
	"cli/commandline": {},
	// What the verbs share; and fakes for their tests.
	"cli/machine": {"proto", "controller/api", "controller/outside", "controller/sinks/forwarder", "controller/sinks/routes"},
	"cli/output":  {"proto", "cli/commandline"},
	"cli/logging": {},
	"cli/clitest": {"proto", "controller/api", "controller/apitest", "cli/commandline", "looptest"},
	// Reads another program's files: opens none by itself.
	"cli/config/keepalived": {"proto", "controller/config", "controller/outside"},
	// The lab is a program of its own, in floors.
	"lab":           {"proto", "controller/config", "cli/commandline"},
	"lab/topology":  {},
	"lab/traffic":   {},
	"lab/hosts":     {"proto", "controller/sinks/agents", "speaker/vrrp/election", "lab/topology", "lab/traffic"},
	"lab/report":    {"cli/commandline", "lab/traffic/load"},
	"lab/events":    {"proto", "lab/topology", "lab/traffic", "lab/hosts", "lab/report"},
	"lab/scenarios": {"proto", "speaker/health", "controller/tracer", "lab"},
}

// goTestsMayKnow: packages that only the tests of a folder may import, beyond
// its rule.
var goTestsMayKnow = map[string][]string{
	"cli":                        {"lab/topology", "controller/etcdtest"},
	"controller/api":             {"controller/apitest"},
	"controller/run":             {"controller/apitest", "controller/etcdtest"},
	"speaker":                    {"lab/topology"},
	"controller/sinks/fleet":     {"controller/etcdtest"},
	"controller/sinks/forwarder": {"controller/apitest"},
	"speaker/vrrp":               {"lab/topology"},
}

// allTestsMayKnow it, and nothing else does.
var allTestsMayKnow = []string{"looptest", "tools/counters"}

var sinkMayKnow = []string{"proto", "controller/outside", "controller/check", "controller/config", "controller/compile", "controller/brain"}

// goEdges reads imports, those of tests too. It looked at files with a rule.
func goEdges(t *tree) (violations []violation, looked int) {
	for _, file := range t.under("", ".go") {
		folder, allowed := goRule(file)
		if folder == "" {
			continue
		}
		looked++
		if strings.HasSuffix(file, "_test.go") {
			allowed = slices.Concat(allowed, goTestsMayKnow[folder], allTestsMayKnow)
		}
		for _, imported := range goImports(t, file) {
			target, ours := strings.CutPrefix(imported.path, goModule)
			if !ours || within(target, folder) || slices.ContainsFunc(allowed, func(a string) bool { return within(target, a) }) {
				continue
			}
			violations = append(violations, violation{file, imported.line,
				fmt.Sprintf("%s may not import %s: it may know %v", folder, target, allowed)})
		}
	}
	return violations, looked
}

// goRule of the longest folder that the file is in.
func goRule(file string) (folder string, allowed []string) {
	for candidate := range goEdgeRules {
		if within(file, candidate) && len(candidate) > len(folder) {
			folder = candidate
		}
	}
	return folder, goEdgeRules[folder]
}

func within(target, folder string) bool {
	return target == folder || strings.HasPrefix(target, folder+"/")
}

type goImport struct {
	path string
	line int
}

func goImports(t *tree, file string) []goImport {
	positions := token.NewFileSet()
	parsed, err := parser.ParseFile(positions, file, t.read(file), parser.ImportsOnly)
	if err != nil {
		return nil // gofmt and vet say it better
	}
	var found []goImport
	for _, spec := range parsed.Imports {
		if imported, err := strconv.Unquote(spec.Path.Value); err == nil {
			found = append(found, goImport{imported, positions.Position(spec.Pos()).Line})
		}
	}
	return found
}
