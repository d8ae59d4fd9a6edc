// Package packaging holds what `make install` puts on a machine. Its tests
// hold it equal to what the documents and the programs say.
package packaging

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guideway/guideway/controller/config"
)

const exampleConfig = "config/guideway.yaml"

func TestTheInstalledConfigIsGoodAndWithoutWarnings(t *testing.T) {
	checkConfig(t, read(t, exampleConfig))
}

// checkConfig as it is on a machine where `make install` made a secret.
func checkConfig(t *testing.T, text string) {
	t.Helper()
	c, err := config.Parse([]config.Source{{Name: "/etc/guideway/guideway.yaml", Data: []byte(text)}}, installedSecret)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Warnings) > 0 {
		t.Errorf("warnings: %v", c.Warnings)
	}
}

func installedSecret(path string) ([]byte, fs.FileMode, error) {
	if path != config.DefaultSecretFile {
		return nil, 0, fs.ErrNotExist
	}
	return []byte("a secret of more than sixteen bytes"), 0o640, nil
}

// Config and forwarder's unit mean the same file, also in a take-over.
func TestTheForwardersUnitReadsTheConfigsSecret(t *testing.T) {
	unit := read(t, "systemd/guideway-forwarder.service")
	if n := strings.Count(unit, "--secret-file "+config.DefaultSecretFile+" $FORWARDER_OPTIONS"); n != 2 {
		t.Errorf("%d of 2 commands of the unit read %s", n, config.DefaultSecretFile)
	}
}

// With the line that the README adds for BGP, too.
func TestTheInstalledConfigIsGoodWithBGP(t *testing.T) {
	text := strings.ReplaceAll(read(t, exampleConfig), "# bgp:", "bgp:")
	if !strings.Contains(text, "\nbgp:") {
		t.Fatal("the example has no commented line for bgp")
	}
	checkConfig(t, text)
}

func TestTheReadmeShowsTheInstalledConfig(t *testing.T) {
	_, rest, _ := strings.Cut(read(t, "../README.md"), "```yaml\n")
	shown, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("README.md shows no YAML")
	}
	var installed strings.Builder
	for line := range strings.Lines(read(t, exampleConfig)) {
		if !strings.HasPrefix(line, "#") {
			installed.WriteString(line)
		}
	}
	if shown != installed.String() {
		t.Errorf("README.md shows\n%s\nbut installed is\n%s", shown, installed.String())
	}
}

func TestTheUnitsConfineTheirPrograms(t *testing.T) {
	for _, unit := range units(t) {
		text := read(t, unit)
		kind := "Type=notify"
		if filepath.Base(unit) == "guideway-backend.service" {
			kind = "Type=oneshot"
		}
		for _, line := range []string{kind, "CapabilityBoundingSet=", "NoNewPrivileges=yes", "ProtectSystem=strict"} {
			if !strings.Contains(text, "\n"+line) {
				t.Errorf("%s lacks %s", unit, line)
			}
		}
	}
}

// systemd-analyze needs the programs to exist, so the units are checked as
// installed into a directory with stand-ins for them.
func TestSystemdUnderstandsTheUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("needs systemd-analyze: tools/install-deps.sh lab installs it, as root")
	}
	folder := t.TempDir()
	for _, unit := range units(t) {
		verifyUnit(t, analyze, folder, filepath.Base(unit), read(t, unit))
	}
}

func units(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("systemd/*.service")
	if err != nil || len(files) != 6 {
		t.Fatalf("units: %v, %v", files, err)
	}
	return files
}

func verifyUnit(t *testing.T, analyze, folder, name, text string) {
	t.Helper()
	for _, program := range []string{"guideway", "guideway-forwarder", "guideway-agent"} {
		stand := filepath.Join(folder, program)
		if err := os.WriteFile(stand, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		text = strings.ReplaceAll(text, "/usr/bin/"+program+" ", stand+" ")
	}
	file := filepath.Join(folder, strings.Replace(name, "@.", "@eth0.", 1))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(analyze, "verify", file).CombinedOutput()
	// It also speaks of units that this machine lacks; those are not ours.
	if err != nil || strings.Contains(string(out), filepath.Base(file)) {
		t.Errorf("%s: %v\n%s", name, err, out)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
