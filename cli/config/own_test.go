package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/guideway/guideway/cli/clitest"
)

// A controller that was taken over names files of others, or has links lead to them.
func TestABadControllerDoesNotChooseTheFileThatIsWritten(t *testing.T) {
	folder := t.TempDir()
	victim := filepath.Join(folder, "victim")
	at := func(name string) string { return filepath.Join(folder, name) }
	for _, made := range []error{
		os.WriteFile(victim, []byte(clitest.FormerConfig), 0o600), // so that any digest is right
		os.Symlink(victim, at("link.yaml")),
		os.Mkdir(at("real"), 0o700),
		os.Link(victim, at("real/g.yaml")),
		os.Symlink(at("real"), at("folder")),
		syscall.Mkfifo(at("pipe.yaml"), 0o600),
		os.Mkdir(at("directory.yaml"), 0o700),
	} {
		if made != nil {
			t.Fatal(made)
		}
	}
	own := target(t)
	for _, c := range []struct{ names, config, want string }{
		{victim, own, "nothing is written"},
		{at("link.yaml"), at("link.yaml"), "is a symbolic link"},
		{at("folder/g.yaml"), at("folder/g.yaml"), "its directory is reached by a symbolic link"},
		{at("pipe.yaml"), at("pipe.yaml"), "is not a regular file"},
		{at("directory.yaml"), at("directory.yaml"), "is not a regular file"},
		{"../" + filepath.Base(folder) + "/victim", victim, "nothing is written"},
	} {
		runDir := clitest.Both(t, &clitest.FakeController{Target: c.names}, nil)
		for _, verb := range [][]string{{"apply", configFileOf(t, "different: 1\n")}, {"rollback"}} {
			args := slices.Concat([]string{"config"}, verb, []string{"--run-dir", runDir, "--config", c.config})
			if _, _, err := guideway(t, args...); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, named %s: %v", args, c.names, err)
			}
		}
	}
	if data, err := os.ReadFile(victim); err != nil || string(data) != clitest.FormerConfig {
		t.Errorf("%q %v", data, err)
	}
	holds(t, own, clitest.FormerConfig)
	for _, in := range []string{folder, at("real")} {
		if entries, err := filepath.Glob(filepath.Join(in, ".*")); err != nil || len(entries) > 0 {
			t.Errorf("left behind: %v %v", entries, err)
		}
	}
}

func TestTheInstalledUnitSaysWhichFileIsWritten(t *testing.T) {
	c := &clitest.FakeController{Target: target(t)}
	runDir := clitest.Both(t, c, nil)
	apply := func(unit string) error {
		bin := t.TempDir()
		if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte("#!/bin/sh\n"+unit+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", bin)
		_, _, err := guideway(t, "config", "apply", configFileOf(t, "different: 1\n"), "--run-dir", runDir)
		return err
	}
	const shown = "echo '{ path=/usr/bin/guideway ; argv[]=/usr/bin/guideway controller %s --run-dir /run/guideway ; ignore_errors=no }'"
	for options, want := range map[string]string{
		"--config /etc/guideway/guideway.yaml": "the unit guideway-controller names /etc/guideway/guideway.yaml",
		"--config /etc/a.yaml --config=/b":     "names 2 config files",
		"--config relative.yaml":               "by an absolute path",
	} {
		if err := apply(strings.Replace(shown, "%s", options, 1)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", options, err)
		}
	}
	if err := apply("exit 1"); err == nil || !strings.Contains(err.Error(), "by --config") {
		t.Error(err)
	}
	holds(t, c.Target, clitest.FormerConfig)
	if err := apply(strings.Replace(shown, "%s", "--config "+c.Target, 1)); err != nil {
		t.Error(err)
	}
	holds(t, c.Target, "different: 1\n")
}
