// Lint checks the rules of this tree that no existing linter knows: which part may depend on
// which, what the pure parts may not use, what must be tested and documented. clippy, vet,
// staticcheck and revive check all others.
//
//	go run ./tools/lint [directory]
//
// It reads the files that git tracks or would track and prints one line per violation: file,
// line, what is wrong and what to do. Each check reports how many things it looked at. If it
// found none, that is itself a violation, so that a rule cannot pass because a folder was
// moved.
package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// A check looks at the tree and returns what it found wrong and how many
// things (crates, functions, ...) it looked at.
type check struct {
	name string
	run  func(*tree) (violations []violation, looked int)
}

var checks = []check{
	{"crates depend only on the crates they may know", rustEdges},
	{"the forwarder's floors use only those below them", forwarderEdges},
	{"Go packages import only the packages they may know", goEdges},
	{"the thinking Rust crates touch no world", rustPurity},
	{"the thinking Go packages touch no world", goPurity},
	{"drop reasons are tested", dropReasons},
	{"documents and tests name metrics that there are", metricNames},
	{"the code map is true", codeMap},
	{"the code map has every folder", codeFolders},
	{"every thread is in ARCHITECTURE.md", threads},
	{"documents' links lead somewhere", documentLinks},
	{"documents' paths are there", documentPaths},
	{"no machine's paths, no registry's hosts", foreignPlaces},
}

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	files, err := trackedFiles(root)
	if err != nil {
		fmt.Fprintln(os.Stderr, "lint:", err)
		os.Exit(2)
	}
	if !lint(newTree(os.DirFS(root), files), os.Stdout) {
		os.Exit(1)
	}
}

// lint runs every check and reports whether the tree is clean.
func lint(t *tree, out io.Writer) bool {
	clean := true
	for _, c := range checks {
		violations, looked := c.run(t)
		if looked == 0 {
			violations = append(violations, violation{what: "found nothing to look at: did something move?"})
		}
		for _, v := range violations {
			fmt.Fprintf(out, "%s  [%s]\n", v, c.name)
			clean = false
		}
		if len(violations) == 0 {
			fmt.Fprintf(out, "ok  %-54s %5d looked at\n", c.name, looked)
		}
	}
	return clean
}

// A violation of a rule, at a place.
type violation struct {
	path string
	line int
	what string
}

func (v violation) String() string {
	switch {
	case v.path == "":
		return v.what
	case v.line == 0:
		return v.path + ": " + v.what
	default:
		return fmt.Sprintf("%s:%d: %s", v.path, v.line, v.what)
	}
}

// trackedFiles lists what git tracks under root, or would once it is added.
func trackedFiles(root string) ([]string, error) {
	cmd := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the files of %s: %w", root, err)
	}
	files := strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
	slices.Sort(files)
	return slices.Compact(files), nil
}

// A tree is the files to check.
type tree struct {
	fsys  fs.FS
	paths []string
	texts map[string]string
}

func newTree(fsys fs.FS, paths []string) *tree {
	return &tree{fsys: fsys, paths: paths, texts: map[string]string{}}
}

// read returns a file's text; empty for one that was deleted but is still
// tracked, and for binary ones.
func (t *tree) read(path string) string {
	if text, known := t.texts[path]; known {
		return text
	}
	content, err := fs.ReadFile(t.fsys, path)
	if err != nil || bytes.IndexByte(content, 0) >= 0 {
		content = nil
	}
	t.texts[path] = string(content)
	return t.texts[path]
}

// under returns the paths in folder (or everywhere, if it is empty) with the
// given ending.
func (t *tree) under(folder, suffix string) []string {
	var found []string
	for _, path := range t.paths {
		if (folder == "" || strings.HasPrefix(path, folder+"/")) && strings.HasSuffix(path, suffix) {
			found = append(found, path)
		}
	}
	return found
}

// lineOf is the line number of offset in text.
func lineOf(text string, offset int) int {
	return 1 + strings.Count(text[:offset], "\n")
}
