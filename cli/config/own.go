package config

// The file on this machine that a config is applied to. The controller reports its path and
// contents as well, but which file root writes is decided here, by root's own arguments or
// by the unit that root installed.

import (
	"context"
	"fmt"
	"io"
	"math"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/guideway/guideway/controller/configs"
	"github.com/guideway/guideway/controller/outside"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// ownConfig is the path that --config gives; empty: the installed unit's.
type ownConfig string

func addOwnConfig(command *cobra.Command, own *ownConfig) {
	command.Flags().StringVar((*string)(own), "config", "", "the controller's config `FILE`, which is replaced [default: the --config of the unit guideway-controller]")
}

// replace the file, after its changes were printed; nil if nothing was written.
func (own ownConfig) replace(ctx context.Context, stdout io.Writer, target *controllerv1.ApplyConfigResponse, data []byte) (*configs.Replacement, error) {
	path, saidBy, err := own.path(ctx)
	if err != nil {
		return nil, err
	}
	if path != target.Path {
		return nil, fmt.Errorf("the controller says that its config file is %s, but %s names %s: nothing is written; if the controller is right, give --config", target.Path, saidBy, path)
	}
	file, err := configs.NewReplacement(path, target.Digest, data)
	if err != nil {
		return nil, err
	}
	if file.ChangesNothing() {
		return nil, nil
	}
	fmt.Fprintf(stdout, "\nchanges to %s:\n\n%s", path, printable(diff.Diff("former", file.Former, "applied", data)))
	if target.Edited {
		aside, err := file.PutAside()
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(stdout, "\n%s held an edit that never ran: it is kept in %s\n", path, aside)
	}
	if err := file.Write(); err != nil {
		return nil, err
	}
	return file, nil
}

// printable on a terminal: former configs are the controller's word.
func printable(lines []byte) string { return outside.Lines(string(lines), math.MaxInt) }

func (own ownConfig) path(ctx context.Context) (path, saidBy string, err error) {
	saidBy = "--config"
	path = string(own)
	if path == "" {
		saidBy = "the unit guideway-controller"
		if path, err = unitConfig(ctx); err != nil {
			return "", "", err
		}
	}
	path, err = filepath.Abs(path)
	return path, saidBy, err
}

// unitConfig is the file that the installed unit gives its controller.
func unitConfig(ctx context.Context) (string, error) {
	const cure = "give the controller's config file by --config"
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=ExecStart", "--value", "guideway-controller.service").Output()
	if err != nil {
		return "", fmt.Errorf("find the installed unit guideway-controller by systemctl: %w: %s", err, cure)
	}
	paths := configArguments(string(out))
	if len(paths) != 1 || !filepath.IsAbs(paths[0]) {
		return "", fmt.Errorf("the installed unit guideway-controller names %d config files by an absolute path: %s", len(paths), cure)
	}
	return paths[0], nil
}

// configArguments of the command lines that systemctl shows.
func configArguments(shown string) (paths []string) {
	words := strings.Fields(shown)
	for i, word := range words {
		if path, given := strings.CutPrefix(word, "--config="); given {
			paths = append(paths, path)
		} else if word == "--config" && i+1 < len(words) {
			paths = append(paths, words[i+1])
		}
	}
	return paths
}
