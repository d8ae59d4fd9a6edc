package main

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// What the modules of one crate may know of each other: no circles, and in the
// forwarder only the floors below.

// forwarderFloors: each folder or file of forwarder/src and those that its
// product code may use. `run` and `main` bring everything up and may know all.
var forwarderFloors = map[string][]string{
	"proto":     {},
	"process":   {"proto"},
	"options":   {},
	"netlink":   {"proto", "process"},
	"dataplane": {"proto", "process", "netlink"},
	"observe":   {"proto", "process", "netlink", "dataplane"},
	"control":   {"proto", "process", "options", "netlink", "dataplane", "observe"},
	"api":       {"proto", "process", "control", "observe"},
	"takeover":  {"proto", "process", "control", "netlink", "dataplane"},
	"offline":   {"proto", "process", "observe"},
}

// moduleEdges looked at modules of the workspace's crates.
func moduleEdges(t *tree) (violations []violation, looked int) {
	for _, crate := range slices.Sorted(maps.Keys(crateEdges)) {
		g := moduleGraph(t, crate)
		looked += len(g.files)
		for _, circle := range g.circles() {
			violations = append(violations, violation{crate + "/src", 0,
				"modules import one another in a circle: " + strings.Join(circle, " -> ") + ": move what they share into a module of its own"})
		}
		if crate == "forwarder" {
			violations = append(violations, g.climbs(forwarderFloors)...)
		}
	}
	return violations, looked
}

// modules of one crate, by path as `dataplane::worker`; the root is "".
type modules struct {
	files map[string]string
	uses  map[string]map[string]bool
}

func moduleGraph(t *tree, crate string) modules {
	g := modules{files: map[string]string{}, uses: map[string]map[string]bool{}}
	source := crate + "/src"
	codes := map[string]string{}
	for _, file := range t.under(source, ".rs") {
		if code := t.rustProduct(file); code != "" {
			module := moduleOf(strings.TrimPrefix(file, source+"/"))
			g.files[module], codes[module] = file, codes[module]+code
		}
	}
	exports := map[string]map[string]string{} // module, name: the path it stands for
	for module, code := range codes {
		exports[module] = map[string]string{}
		for _, use := range useItem.FindAllStringSubmatch(code, -1) {
			if use[1] == "" {
				continue
			}
			for _, leaf := range useLeaves(use[2]) {
				if target, ok := absolute(module, leaf.path, g.files); ok {
					exports[module][leaf.name] = target
				}
			}
		}
	}
	for module, code := range codes {
		g.uses[module] = map[string]bool{}
		for _, used := range usedPaths(code) {
			if target, ok := absolute(module, used, g.files); ok {
				g.uses[module][resolve(target, g.files, exports)] = true
			}
		}
	}
	return g
}

func moduleOf(file string) string {
	name := strings.TrimSuffix(file, ".rs")
	switch path.Base(name) {
	case "lib", "main":
		return ""
	case "mod":
		name = path.Dir(name)
	}
	return strings.ReplaceAll(name, "/", "::")
}

var (
	useItem    = regexp.MustCompile(`(?m)^\s*(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);`)
	inlinePath = regexp.MustCompile(`\b(?:crate|super)(?:::\w+)+`)
)

// usedPaths of a file, as they are written.
func usedPaths(code string) (paths []string) {
	for _, use := range useItem.FindAllStringSubmatch(code, -1) {
		for _, leaf := range useLeaves(use[2]) {
			paths = append(paths, leaf.path)
		}
	}
	return append(paths, inlinePath.FindAllString(useItem.ReplaceAllString(code, ""), -1)...)
}

type useLeaf struct{ path, name string }

// useLeaves of a tree as `a::{self, b::C as D}`.
func useLeaves(text string) (leaves []useLeaf) {
	text = strings.TrimSpace(text)
	open := strings.Index(text, "{")
	if open < 0 {
		written, name, renamed := strings.Cut(text, " as ")
		written = strings.TrimSuffix(strings.TrimSpace(written), "::self")
		if !renamed {
			name = written[strings.LastIndex(written, ":")+1:]
		}
		return []useLeaf{{written, strings.TrimSpace(name)}}
	}
	prefix, inner := text[:open], strings.TrimSuffix(text[open+1:], "}")
	depth, start := 0, 0
	for i := 0; i <= len(inner); i++ {
		switch {
		case i == len(inner) || inner[i] == ',' && depth == 0:
			if item := strings.TrimSpace(inner[start:i]); item != "" {
				leaves = append(leaves, useLeaves(prefix+item)...)
			}
			start = i + 1
		case inner[i] == '{':
			depth++
		case inner[i] == '}':
			depth--
		}
	}
	return leaves
}

// absolute path, within the crate, of what a module calls by that path.
func absolute(module, used string, files map[string]string) (string, bool) {
	first, rest, _ := strings.Cut(used, "::")
	switch first {
	case "crate":
		return rest, true
	case "self":
		return join(module, rest), true
	case "super":
		for first == "super" {
			module = parent(module)
			first, rest, _ = strings.Cut(rest, "::")
		}
		return join(module, join(first, rest)), true
	}
	// A child, by its name alone; everything else is another crate's.
	_, ours := files[join(module, first)]
	return join(module, used), ours
}

// resolve a path to the module that defines it, through `pub use`.
func resolve(target string, files map[string]string, exports map[string]map[string]string) string {
	for range 10 { // re-exports of re-exports
		module, rest := target, ""
		for files[module] == "" && module != "" {
			rest = join(module[strings.LastIndex(module, ":")+1:], rest)
			module = parent(module)
		}
		name, tail, _ := strings.Cut(rest, "::")
		exported, ok := exports[module][name]
		if !ok || name == "" {
			return module
		}
		target = join(exported, tail)
	}
	return ""
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "::" + b
}

func parent(module string) string {
	if at := strings.LastIndex(module, "::"); at >= 0 {
		return module[:at]
	}
	return ""
}

// siblings are the modules, side by side under one parent, in which the ends
// of an edge lie; none if one end holds the other.
func siblings(from, to string) (a, b string, apart bool) {
	x, y := strings.Split(from, "::"), strings.Split(to, "::")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return strings.Join(x[:i+1], "::"), strings.Join(y[:i+1], "::"), from != "" && to != ""
		}
	}
	return "", "", false
}

// circles of siblings, each told once, from its first module by name.
func (g modules) circles() (found [][]string) {
	next := map[string]map[string]bool{}
	for from, targets := range g.uses {
		for to := range targets {
			if a, b, apart := siblings(from, to); apart {
				if next[a] == nil {
					next[a] = map[string]bool{}
				}
				next[a][b] = true
			}
		}
	}
	told := map[string]bool{}
	for _, start := range slices.Sorted(maps.Keys(next)) {
		if way := wayBack(next, start); way != nil && !told[start] {
			for _, module := range way {
				told[module] = true
			}
			found = append(found, way)
		}
	}
	return found
}

// wayBack is a shortest path from a module to itself.
func wayBack(next map[string]map[string]bool, start string) []string {
	paths := [][]string{{start}}
	seen := map[string]bool{}
	for len(paths) > 0 {
		path := paths[0]
		paths = paths[1:]
		for _, module := range slices.Sorted(maps.Keys(next[path[len(path)-1]])) {
			longer := append(slices.Clone(path), module)
			if module == start {
				return longer
			}
			if !seen[module] {
				seen[module] = true
				paths = append(paths, longer)
			}
		}
	}
	return nil
}

// climbs are uses of a floor that is not below.
func (g modules) climbs(floors map[string][]string) (violations []violation) {
	floorOf := func(module string) string { floor, _, _ := strings.Cut(module, "::"); return floor }
	for _, from := range slices.Sorted(maps.Keys(g.uses)) {
		floor := floorOf(from)
		if floor == "" || floor == "run" {
			continue
		}
		allowed, known := floors[floor]
		if !known {
			violations = append(violations, violation{g.files[from], 0,
				"a floor of the forwarder that no rule knows: add it to forwarderFloors in tools/lint"})
			continue
		}
		for _, to := range slices.Sorted(maps.Keys(g.uses[from])) {
			if other := floorOf(to); other != "" && other != floor && !slices.Contains(allowed, other) {
				violations = append(violations, violation{g.files[from], 0,
					fmt.Sprintf("%s may not use %s: it may know %v", floor, to, allowed)})
			}
		}
	}
	return violations
}
