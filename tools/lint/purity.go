package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

// The thinking parts (wire, plan, datapath, sim, and in Go those of thinkingPackages) have
// no clock, randomness, socket, file, environment or log: these come in as arguments and
// go out as values. That is what makes replay and the golden tests possible.

var thinkingCrates = []string{"wire", "plan", "datapath", "sim"}

// worldCrates: a thinking crate that depends on one of these does not think.
var worldCrates = []string{
	"tokio", "tonic", "rand", "fastrand", "getrandom", "tracing", "log", "env_logger",
	"libc", "rustix", "nix", "socket2", "mio", "aya", "rtnetlink", "arc-swap", "chrono", "time",
}

var rustWorld = []struct {
	pattern *regexp.Regexp
	what    string
}{
	{regexp.MustCompile(`\bInstant\b|\bSystemTime\b`), "reads a clock: time comes in as u32 milliseconds"},
	{regexp.MustCompile(`\bstd::(?:net::(?:Tcp|Udp)|os::unix::net)`), "opens a socket"},
	{regexp.MustCompile(`\bstd::(?:env|fs|process|thread)\b`), "touches the machine (environment, files, processes, threads)"},
	{regexp.MustCompile(`\bRandomState\b|\brand::|\bthread_rng\b`), "uses randomness: hashes must be the same on every machine"},
	{regexp.MustCompile(`\b(?:e?print(?:ln)?|dbg)!`), "prints: return a value instead"},
	{regexp.MustCompile(`\b(?:tracing|log)::`), "logs: return a value instead"},
}

// rustPurity looked at product files of the thinking crates.
func rustPurity(t *tree) (violations []violation, looked int) {
	for _, crate := range thinkingCrates {
		violations = append(violations, worldDependencies(t, crate)...)
		for _, file := range t.under(crate+"/src", ".rs") {
			code := t.rustProduct(file)
			if code == "" {
				continue
			}
			looked++
			for _, world := range rustWorld {
				for _, at := range world.pattern.FindAllStringIndex(code, -1) {
					violations = append(violations, violation{file, lineOf(code, at[0]),
						fmt.Sprintf("%s %s", code[at[0]:at[1]], world.what)})
				}
			}
		}
	}
	return violations, looked
}

func worldDependencies(t *tree, crate string) (violations []violation) {
	manifest := crate + "/Cargo.toml"
	for _, d := range dependencies(t.read(manifest)) {
		if d.product && slices.Contains(worldCrates, d.name) {
			violations = append(violations, violation{manifest, d.line,
				fmt.Sprintf("%s is a thinking crate and may not depend on %s", crate, d.name)})
		}
	}
	return violations
}

// thinkingPackages, and everything below them.
var thinkingPackages = []string{"controller/brain", "speaker/judge", "speaker/vrrp/election", "speaker/vrrp/packet"}

// thinkersMayNotImport: packages, and everything below them.
var thinkersMayNotImport = []string{
	"net", "os", "log", "io/fs", "math/rand", "crypto/rand", "syscall",
	"google.golang.org/grpc", "github.com/osrg/gobgp", "github.com/prometheus", "go.etcd.io",
	"github.com/vishvananda/netlink",
}

// thinkersMayImport: below those, but values only.
var thinkersMayImport = []string{"net/netip"}

// clockFunctions of package time. Durations and times that are handed in are fine.
var clockFunctions = []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"}

// goPurity looked at product files of the thinking packages.
func goPurity(t *tree) (violations []violation, looked int) {
	for _, folder := range thinkingPackages {
		for _, file := range t.under(folder, ".go") {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			looked++
			violations = append(violations, worldImports(t, folder, file)...)
			violations = append(violations, clockCalls(t, file)...)
		}
	}
	return violations, looked
}

func worldImports(t *tree, folder, file string) (violations []violation) {
	for _, imported := range goImports(t, file) {
		banned := slices.ContainsFunc(thinkersMayNotImport, func(b string) bool { return within(imported.path, b) })
		if banned && !slices.Contains(thinkersMayImport, imported.path) {
			violations = append(violations, violation{file, imported.line,
				folder + " may not import " + imported.path + ": it gets events and returns what follows"})
		}
	}
	return violations
}

func clockCalls(t *tree, file string) (violations []violation) {
	positions := token.NewFileSet()
	parsed, err := parser.ParseFile(positions, file, t.read(file), 0)
	if err != nil {
		return nil
	}
	ast.Inspect(parsed, func(node ast.Node) bool {
		selector, ok := node.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := selector.X.(*ast.Ident)
		if ok && pkg.Name == "time" && slices.Contains(clockFunctions, selector.Sel.Name) {
			violations = append(violations, violation{file, positions.Position(node.Pos()).Line,
				"time." + selector.Sel.Name + " reads a clock: the time comes with the event"})
		}
		return true
	})
	return violations
}
