//go:build nightly

// Package changes applies ARCHITECTURE's table of changes: a dummy driver, tunnel, drop
// reason and kind of check go into a copy of the tree, by edits of what their rows
// name and of nothing else, and the copy has to build and to know them.
package changes

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const architecture = "ARCHITECTURE.md"

// changes by their rows of the table.
var changes = map[string]func(c *tree){
	"add an I/O driver": func(c *tree) {
		c.write("nic/src/drivers/dummy/mod.rs", strings.Replace(c.read("nic/src/drivers/memory/mod.rs"), `name: "memory"`, `name: "dummy"`, 1))
		c.replace("nic/src/drivers/mod.rs", "    pcap\n}", "    pcap\n    dummy\n}")
		c.replace("proto/guideway/plan/v1/plan.proto", "  DRIVER_AF_PACKET = 1;\n", "  DRIVER_AF_PACKET = 1;\n  DRIVER_DUMMY = 2;\n")
		c.replace("proto/guideway/config/v1/config.proto", `"af_packet"]`, `"af_packet", "dummy"]`)
	},
	"add a tunnel": func(c *tree) {
		file := strings.Replace(c.read("wire/src/tunnel/gre.rs"), `name: "gre"`, `name: "dummy"`, 1)
		c.write("wire/src/tunnel/dummy.rs", strings.Replace(file, "v4: Protocol::GRE, v6: Protocol::GRE", "v4: Protocol(253), v6: Protocol(253)", 1))
		c.replace("wire/src/tunnel/mod.rs", "tunnels! {\n", "tunnels! {\n    Dummy dummy \"A dummy, by a protocol for trials (RFC 3692).\"\n")
		c.replace("proto/guideway/plan/v1/plan.proto", "  ENCAP_GENEVE = 3;\n", "  ENCAP_GENEVE = 3;\n  ENCAP_DUMMY = 1000;\n")
		c.replace("proto/guideway/config/v1/config.proto", `{in: ["gre",`, `{in: ["dummy", "gre",`)
	},
	"give a packet a new reason to be dropped": func(c *tree) {
		c.replace("datapath/src/drop_reason.rs", "drop_reasons! {\n", "drop_reasons! {\n    Dummy \"dummy\"\n        \"It is a dummy.\"\n        \"None.\"\n")
	},
	"add a kind of health check": func(c *tree) {
		c.replace("proto/guideway/config/v1/config.proto", "message HttpCheck {\n", "message DummyCheck {\n  // TCP port.\n  uint32 port = 1;\n}\n\nmessage HttpCheck {\n")
		c.replace("proto/guideway/config/v1/config.proto", "  TcpCheck tcp = 3;\n", "  TcpCheck tcp = 3;\n  // Always passes.\n  DummyCheck dummy = 1000;\n")
		c.replace("controller/check/check.go", "var kinds = []kind{\n", "var kinds = []kind{\n\tkindOf(\"dummy\", (*configv1.HealthCheck).GetDummy, readDummy),\n")
		c.write("controller/check/dummy.go", `package check

import (
	"context"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// Dummy always passes.
type Dummy struct{ Port uint16 }

func readDummy(given *configv1.DummyCheck, _ Reader) Dummy { return Dummy{uint16(given.GetPort())} }

// Probe nothing.
func (Dummy) Probe(context.Context, Dialer) (Answer, error) { return Answer{}, nil }
`)
	},
}

const config = `machine: {name: lb-1, addresses: [10.0.0.1]}
forwarder: {interfaces: [{name: eth1, driver: dummy}]}
services:
- {name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}], pools: [web], encap: dummy}
pools: [{name: web, backends: [{address: 10.1.0.11}], health_checks: [dummy]}]
health_checks: [{name: dummy, dummy: {port: 80}}]
`

func TestAChangeTakesWhatTheTableOfChangesNames(t *testing.T) {
	c := copied(t)
	for row, apply := range changes {
		c.row = row
		apply(c)
	}
	c.run("tools/generate.sh")
	if !strings.Contains(c.read("docs/counters.md"), "| `dummy` | It is a dummy.") || !strings.Contains(c.read("docs/config.md"), "| `dummy` | fields | Always passes.") {
		t.Error("the documents know no dummy")
	}
	c.run("go", "build", "./...")
	c.run("go", "vet", "./controller/...")
	c.run("go", "test", "-count=1", "./controller/compile", "-run", "^Test_the_config_and_the_plan_have_the_same_words$")
	c.write(outside, config)
	plan := c.run("go", "run", "./cli", "config", "compile", outside)
	for _, word := range []string{"DRIVER_DUMMY", "ENCAP_DUMMY", "encap-dummy"} {
		if !strings.Contains(plan, word) {
			t.Errorf("there is no %s in the plan\n%s", word, plan)
		}
	}
	c.run("cargo", "check", "--workspace", "--all-targets")
	c.run("cargo", "test", "-p", "guideway-forwarder", "--lib", "every_driver_of_the_contract_is_there")
}

// tree is a copy of ours.
type tree struct {
	t         *testing.T
	root, own string
	// The row that is applied.
	row   string
	table string
}

// copied is what git has or would add.
func copied(t *testing.T) *tree {
	t.Helper()
	own, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		t.Fatal(err)
	}
	c := &tree{t: t, root: t.TempDir(), own: strings.TrimSpace(string(own))}
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = c.own
	files, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for path := range strings.SplitSeq(strings.Trim(string(files), "\x00"), "\x00") {
		from := filepath.Join(c.own, path)
		info, err := os.Stat(from)
		if os.IsNotExist(err) {
			continue // removed, and not yet committed
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		c.put(path, content, info.Mode().Perm())
	}
	// The generators are built already, where they are.
	if err := os.MkdirAll(filepath.Join(c.root, ".cache"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(c.own, ".cache", "bin"), filepath.Join(c.root, ".cache", "bin")); err != nil {
		t.Fatal(err)
	}
	c.table = c.read(architecture)
	return c
}

func (c *tree) put(path string, content []byte, mode os.FileMode) {
	c.t.Helper()
	to := filepath.Join(c.root, path)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(to, content, mode); err != nil {
		c.t.Fatal(err)
	}
}

func (c *tree) read(path string) string {
	c.t.Helper()
	content, err := os.ReadFile(filepath.Join(c.root, path))
	if err != nil {
		c.t.Fatal(err)
	}
	return string(content)
}

// outside the table: no part of the change.
const outside = "dummy.yaml"

// write a file that the row names, or whose folder it names.
func (c *tree) write(path, content string) {
	c.t.Helper()
	named := c.named()
	if path != outside && !slices.ContainsFunc(named, func(name string) bool { return path == name || strings.HasPrefix(path, name+"/") }) {
		c.t.Errorf("%q takes a change of %s, and %s names %v", c.row, path, architecture, named)
	}
	c.put(path, []byte(content), 0o644)
}

func (c *tree) replace(path, former, latter string) {
	c.t.Helper()
	content := c.read(path)
	if strings.Count(content, former) != 1 {
		c.t.Fatalf("%s has %q not once", path, former)
	}
	c.write(path, strings.Replace(content, former, latter, 1))
}

var quoted = regexp.MustCompile("`([^`]+)`")

// named by the row: files and folders.
func (c *tree) named() (paths []string) {
	c.t.Helper()
	for line := range strings.Lines(c.table) {
		if cell, is := strings.CutPrefix(line, "| "+c.row+" | "); is {
			for _, name := range quoted.FindAllStringSubmatch(cell, -1) {
				paths = append(paths, strings.TrimSuffix(name[1], "/"))
			}
			return paths
		}
	}
	if c.row != "" {
		c.t.Fatalf("%s has no row %q in its table of changes", architecture, c.row)
	}
	return nil
}

// run a program in the copy. What does not depend on the change is built already.
func (c *tree) run(program string, args ...string) (out string) {
	c.t.Helper()
	command := exec.Command(program, args...)
	command.Dir = c.root
	if strings.Contains(program, "/") {
		command.Path = filepath.Join(c.root, program)
	}
	command.Env = append(os.Environ(), "CARGO_TARGET_DIR="+filepath.Join(c.own, "target"))
	var said strings.Builder
	command.Stderr = &said
	answer, err := command.Output()
	if err != nil {
		c.t.Fatalf("%s %v: %v\n%s%s", program, args, err, answer, said.String())
	}
	return string(answer)
}
