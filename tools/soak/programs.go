package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// program is what is run again and again: a test program, or one test of the
// lab's, which takes minutes.
type program struct {
	name string
	dir  string
	args []string
}

const (
	// built Go test programs.
	built = ".cache/soak-programs"
	// scenarios take so long that each test is a program of its own.
	scenarios = "lab/scenarios"
)

// inNamespaces is how the source of tests looks that build namespaces.
var inNamespaces = regexp.MustCompile(`netns|CLONE_NEWNET|"unshare"|\btestnet::`)

// build the test programs of all crates and packages that have tests in
// namespaces.
func build(ctx context.Context) ([]program, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	rust, err := buildRust(ctx, root)
	if err != nil {
		return nil, err
	}
	golang, err := buildGo(ctx, root)
	if err == nil && (len(rust) == 0 || len(golang) == 0) {
		err = errors.New("found no tests in namespaces: is this the root of the tree?")
	}
	return append(rust, golang...), err
}

func buildRust(ctx context.Context, root string) ([]program, error) {
	files, err := filesInNamespaces(os.DirFS(root), ".rs")
	if err != nil {
		return nil, err
	}
	crates := ownersOf(files, func(file string) (string, bool) {
		crate, _, found := strings.Cut(file, "/tests/")
		return filepath.Join(root, crate), found
	})
	// The whole workspace at once, as `make test` does: crate by crate the
	// dependencies have other features, and all of them would be built again.
	messages, err := output(ctx, "cargo", "test", "--workspace", "--no-run", "--message-format=json-render-diagnostics")
	if err != nil {
		return nil, err
	}
	return executables(messages, crates)
}

// executables of the crates' tests, as cargo's messages name them; each runs
// in its crate's folder.
func executables(messages []byte, crates []string) ([]program, error) {
	var programs []program
	lines := bufio.NewScanner(bytes.NewReader(messages))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var message struct {
			Target struct {
				Name string
				Kind []string
			}
			Profile struct{ Test bool }
			// Null for what is no program.
			Executable string
			Manifest   string `json:"manifest_path"`
		}
		if err := json.Unmarshal(lines.Bytes(), &message); err != nil {
			return nil, fmt.Errorf("message of cargo: %w", err)
		}
		crate := filepath.Dir(message.Manifest)
		if message.Executable != "" && message.Profile.Test && slices.Contains(crates, crate) {
			name := filepath.Base(crate) + "/" + message.Target.Name
			if !slices.Contains(message.Target.Kind, "test") {
				name += "-" + message.Target.Kind[0]
			}
			programs = append(programs, program{name, crate, []string{message.Executable}})
		}
	}
	return programs, lines.Err()
}

func buildGo(ctx context.Context, root string) ([]program, error) {
	files, err := filesInNamespaces(os.DirFS(root), "_test.go")
	if err != nil {
		return nil, err
	}
	var programs []program
	for _, folder := range ownersOf(files, func(file string) (string, bool) { return path.Dir(file), true }) {
		file := filepath.Join(root, built, strings.ReplaceAll(folder, "/", "-"))
		if _, err := output(ctx, "go", "test", "-c", "-o", file, "./"+folder); err != nil {
			return nil, err
		}
		whole := program{folder, filepath.Join(root, folder), []string{file, "-test.v"}}
		if folder != scenarios {
			programs = append(programs, whole)
			continue
		}
		list, err := output(ctx, file, "-test.list", ".")
		if err != nil {
			return nil, err
		}
		for test := range strings.FieldsSeq(string(list)) {
			one := append(slices.Clone(whole.args), "-test.run", "^"+test+"$")
			programs = append(programs, program{folder + "/" + test, whole.dir, one})
		}
	}
	return programs, nil
}

// filesInNamespaces are those of the tree that build namespaces.
func filesInNamespaces(tree fs.FS, suffix string) (files []string, err error) {
	err = fs.WalkDir(tree, ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && (name == "target" || strings.HasPrefix(name, ".") && file != ".") {
			return fs.SkipDir
		}
		// This program's own tests build none; they speak of it.
		if entry.IsDir() || !strings.HasSuffix(name, suffix) || strings.HasPrefix(file, "tools/") {
			return nil
		}
		content, err := fs.ReadFile(tree, file)
		if err == nil && inNamespaces.Match(content) {
			files = append(files, file)
		}
		return err
	})
	return files, err
}

// ownersOf files: each crate or package once, in the files' order.
func ownersOf(files []string, owner func(string) (string, bool)) (owners []string) {
	for _, file := range files {
		if name, found := owner(file); found && !slices.Contains(owners, name) {
			owners = append(owners, name)
		}
	}
	return owners
}

// output of a command that has to succeed.
func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, name, args...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return out, nil
}
