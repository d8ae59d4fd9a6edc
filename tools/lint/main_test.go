package main

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// goodTree is the smallest tree in which every check finds something to look
// at and nothing wrong. Each case below spoils it in one place.
func goodTree() map[string]string {
	files := map[string]string{
		"wire/src/lib.rs":                   "#[cfg(test)]\nmod oracle;\npub fn parse() {}\n",
		"datapath/src/drop_reason.rs":       "drop_reasons! {\n    NoService \"no_service\"\n        \"No VIP has it.\"\n        \"A scan.\"\n}\n",
		"datapath/tests/drops.rs":           "#[test]\nfn dropped() { assert_eq!(verdict(), DropReason::NoService); }\n",
		"README.md":                         "[map](ARCHITECTURE.md#map), [docs](docs), [site](https://example.com), `wire/src/lib.rs`\n",
		"docs/counters.md":                  goodCounters,
		"forwarder/src/process/log.rs":      "fn log() {}\n",
		"forwarder/src/observe/health.rs":   "fn start() { std::thread::Builder::new().name(\"health\".into()).spawn(run) }\n",
		"controller/brain/brain.go":         "package brain\n\nimport \"time\"\n\nfunc Step(now time.Time) {}\n",
		"controller/sinks/prober/prober.go": "package prober\n\nimport _ \"github.com/guideway/guideway/controller/brain\"\n",
		"controller/brain/brain_test.go":    "package brain\n\nimport \"os\"\n\nvar _ = os.Args\n",
	}
	files[architecture] = "# Threads\n| thread |\n| `health` |\n# Code map\n"
	insideOf := map[string]string{"controller": "brain/, sinks/", "bench": "figures/", "forwarder": "observe/, process/"}
	for _, folder := range []string{
		"wire", "plan", "datapath", "sim", "ebpf", "daemon", "nic", "nexthops", "forwarder", "agent", "testnet", "blackbox", "controller", "speaker", "cli", "docs", "lab", "utils", "tools", "bench", "fuzz",
	} {
		files[architecture] += folder + "/   what is in it\n"
		if inside := insideOf[folder]; inside != "" {
			files[architecture] += "     " + inside + "\n"
		}
		files[folder+"/README"] = ""
	}
	for crate, mayKnow := range crateEdges {
		manifest := "[package]\nname = \"" + crate + "\"\n[dependencies]\n"
		for _, known := range mayKnow {
			if known == testCrate {
				continue
			}
			manifest += known + ".workspace = true\n"
		}
		files[crate+"/Cargo.toml"] = manifest
	}
	return files
}

const goodCounters = "| `guideway_agent_drops_total{reason}` | counter | Packets dropped. |\n"

func lintFiles(files map[string]string) (output string, clean bool) {
	fsys := fstest.MapFS{}
	for path, text := range files {
		fsys[path] = &fstest.MapFile{Data: []byte(text)}
	}
	var out strings.Builder
	clean = lint(newTree(fsys, slices.Sorted(maps.Keys(files))), &out)
	return out.String(), clean
}

func TestAGoodTreeIsClean(t *testing.T) {
	if output, clean := lintFiles(goodTree()); !clean {
		t.Fatal(output)
	}
}

func TestAnEmptyTreeFailsEveryCheck(t *testing.T) {
	output, clean := lintFiles(nil)
	if clean || strings.Count(output, "found nothing to look at") != len(checks) {
		t.Fatal(output)
	}
}

func TestEachRuleCatchesItsViolation(t *testing.T) {
	cases := []struct {
		name string
		file string
		text string
		want string // empty: stays clean
	}{
		{"datapath knows nic", "datapath/Cargo.toml", "[dependencies]\nnic = { path = \"../nic\" }\n",
			"datapath/Cargo.toml:2: datapath may not depend on nic"},
		{"a product with test namespaces", "nic/Cargo.toml", "[dependencies]\ntestnet.workspace = true\n", "nic/Cargo.toml:2: testnet is a dev-dependency only"},
		{"tests with namespaces", "nic/Cargo.toml", "[dev-dependencies]\ntestnet.workspace = true\n", ""},
		{"also for its tests", "nic/Cargo.toml", "[dev-dependencies]\ndatapath.workspace = true\n", "nic may not depend on datapath"},
		{"also as a table of its own", "wire/Cargo.toml", "[dependencies.plan]\npath = \"../plan\"\n", "wire may not depend on plan"},
		{"an unknown crate", "utils/Cargo.toml", "[package]\n", "a crate that no rule knows"},
		{"a runtime in a pure crate", "plan/Cargo.toml", "[dependencies]\ntokio.workspace = true\n", "may not depend on tokio"},
		{"a runtime for building or testing only", "plan/Cargo.toml",
			"[dev-dependencies]\ntokio.workspace = true\n[build-dependencies.rand]\nversion = \"1\"\n[dependencies]\n", ""},

		{"a floor uses one above it", "forwarder/src/process/clock.rs", "use crate::observe::{health, page};\nfn f() {}\n",
			"forwarder/src/process/clock.rs:1: process may not use observe"},
		{"the test of a floor does", "forwarder/src/process/clock.rs",
			"fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::observe::health;\n}\n", ""},
		{"a folder that is no floor", "forwarder/src/misc/x.rs", "fn f() {}\n", "a floor of the forwarder that no rule knows"},
		{"a sink imports a sink", "controller/sinks/routes/s.go",
			"package routes\n\nimport _ \"github.com/guideway/guideway/controller/sinks/prober\"\n",
			"s.go:3: controller/sinks/routes may not import controller/sinks/prober"},
		{"config imports compile", "controller/config/c.go",
			"package config\n\nimport _ \"github.com/guideway/guideway/controller/compile\"\n", "controller/config may not import"},
		{"the installed program imports the lab", "cli/demo.go",
			"package main\n\nimport _ \"github.com/guideway/guideway/lab/events\"\n", "cli may not import lab/events"},
		{"a test of it enters a namespace", "cli/trace_test.go",
			"package main\n\nimport _ \"github.com/guideway/guideway/lab/topology\"\n", ""},
		{"the network knows what runs in it", "lab/topology/network.go",
			"package topology\n\nimport _ \"github.com/guideway/guideway/lab/hosts\"\n", "lab/topology may not import lab/hosts"},
		{"the brain imports net", "controller/brain/b.go", "package brain\n\nimport _ \"net/http\"\n", "may not import net/http"},
		{"the brain may hold addresses", "controller/brain/b.go", "package brain\n\nimport _ \"net/netip\"\n", ""},
		{"the brain looks at the clock", "controller/brain/b.go",
			"package brain\n\nimport \"time\"\n\nvar start = time.Now()\n", "b.go:5: time.Now reads a clock"},

		{"a clock in the datapath", "datapath/src/track.rs", "use std::time::Instant;\n", "Instant reads a clock"},
		{"a print in wire", "wire/src/ip.rs", "fn f() { println!(\"x\") }\n", "println! prints"},
		{"a print in a test", "wire/src/ip.rs", "#[cfg(test)]\nmod tests {\n    fn f() { println!(\"}\") }\n}\n", ""},
		{"a print in a test's file", "wire/src/oracle.rs", "fn f() { println!(\"x\") }\n", ""},
		{"a print in a comment", "wire/src/ip.rs", "// println!(\n/* println!( /* */ println!( */\n", ""},
		{"a print in a literal", "wire/src/ip.rs", "const A: &str = r#\"println!(\"#; const B: char = '\"'; const C: &str = \"\\\"println!(\";\n", ""},
		{"a random hasher in plan", "plan/src/ids.rs", "type S = std::hash::RandomState;\n", "uses randomness"},

		{"a document names a metric that is gone", "docs/start.md", "watch\n`guideway_old_total`\n", "start.md:2: guideway_old_total is no metric in docs/counters.md"},
		{"a test names a metric that is gone", "lab/scenarios/a_test.go", "package a\n\nconst old = `guideway_old_total{reason=\"x\"}`\n", "guideway_old_total is no metric in docs/counters.md"},
		{"a document names a metric", "docs/start.md", "watch `guideway_agent_drops_total`\n", ""},
		{"a reason without a test", "datapath/tests/drops.rs", "", "no test has a packet dropped for DropReason::NoService"},

		{"a folder that is not on the map", "extras/main.rs", "fn main() {}\n", "extras/ is missing from the code map"},
		{"a map of what is gone", architecture, "wire/  headers\n\nold/  gone\n", "ARCHITECTURE.md:3: old/ is in the code map"},
		{"a folder that its entry does not name", "lab/hosts/lab.go", "package hosts\n", "the code map does not name hosts/ in lab/"},
		{"a folder of tests", "nic/tests/ring.rs", "fn t() {}\n", ""},
		{"a thread that is not in the table", "forwarder/src/page.rs", "fn f() { Builder::new().name(\"probes\".into()) }\n", "page.rs:1: the thread probes is not in ARCHITECTURE.md"},
		{"a path to what is gone", "docs/start.md", "see\n`wire/src/old.rs`\n", "start.md:2: wire/src/old.rs is not there"},
		{"a path of another tree", "docs/start.md", "see `usr/lib`, `forwarder/<name>`\n", ""},
		{"a dead link", "docs/start.md", "see\n[this](../START.md)\n", "start.md:2: a link to START.md, which is not there"},

		{"a machine's path", "docs/start.md", "see /ro" + "ot/.cargo", "start.md:1: /ro" + "ot/. belongs to one machine"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			files := goodTree()
			files[c.file] = c.text
			output, clean := lintFiles(files)
			if c.want == "" && !clean {
				t.Errorf("should be clean:\n%s", output)
			}
			if c.want != "" && (clean || !strings.Contains(output, c.want)) {
				t.Errorf("want %q:\n%s", c.want, output)
			}
		})
	}
}

func TestADropReasonNeedsATestInWhichItHappens(t *testing.T) {
	const golden = "forwarder/tests/golden/nobody-wants-it/counters.json"
	for _, c := range []struct {
		file, text string
		enough     bool
	}{
		{golden, `{"dropped": {"no_service": 3}}`, true},
		{golden, `{"dropped": {"no_service": 0}}`, false},
		{"datapath/tests/match.rs", "fn t() { assert_eq!(dropped(&(a, b)),\n [(\"no_service\", 1)]); }", true},
		{"datapath/tests/match.rs", "fn t() { expect(\"no_service\"); assert!(true); }", false},
		{"datapath/tests/match.rs", "fn t() { assert!(dropped[DropReason::NoService.index()] > 0); }", true},
		{"datapath/tests/match.rs", "fn t() { assert_eq!(dropped[DropReason::NoService.index()], 0); }", false},
		{"datapath/tests/match.rs", "fn t() { assert!(dropped[DropReason::NoService.index()] == 0); }", false},
		{"datapath/tests/match.rs", "// assert_eq!(verdict, DropReason::NoService);\n", false},
		{"datapath/src/match.rs", "#[cfg(test)]\nmod tests {\n    const R: R = DropReason::NoService;\n}\n", false},
		{"datapath/src/match.rs", "#[cfg(test)]\nmod tests {\n    fn t() { prop_assert_eq!(verdict, DropReason::NoService); }\n}\n", true},
		{"datapath/src/match.rs", "#[cfg(test)]\nmod tests {\n    fn t() { assert_eq!(verdict, DropReason::NoServiceAtAll); }\n}\n", false},
		{"datapath/src/match.rs", "fn f() -> R { assert!(r != DropReason::NoService) }\n#[cfg(test)]\nmod tests {}\n", false},
		{"datapath/src/match.rs", "fn f() -> R { DropReason::NoService }\n#[cfg(test)]\nmod tests {}\n", false},
	} {
		files := goodTree()
		delete(files, "datapath/tests/drops.rs")
		files[c.file] = c.text
		output, clean := lintFiles(files)
		if clean != c.enough || !c.enough && !strings.Contains(output, "no test has a packet dropped for") {
			t.Errorf("%s: %s\n%s", c.file, c.text, output)
		}
	}
}
