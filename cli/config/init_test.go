package config

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/packaging"
)

func initialize(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return clitest.Execute(t, clitest.Program(InitCommand()), append([]string{"init"}, args...)...)
}

var goodAnswers = []string{
	"--vip", "203.0.113.10", "--ports", "80,443", "--servers", "10.1.0.11, 10.1.0.12",
	"--interface", "eth1", "--address", "10.0.0.1", "--bgp-router", "10.0.0.254", "--bgp-router-asn", "64513",
}

func TestInitWritesAConfigThatIsGood(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "guideway.yaml")
	stdout, _, err := initialize(t, append(goodAnswers, "--file", file)...)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	service := c.Services[0]
	if len(service.VIPs) != 1 || len(service.Members) != 2 || c.BGP == nil {
		t.Errorf("%+v", service)
	}
	for _, warning := range c.Warnings { // The secret is an installation's.
		if !strings.Contains(warning.String(), "cluster.secret_file: is not given") {
			t.Errorf("warning: %s", warning)
		}
	}
	for _, wanted := range []string{
		"config is good: 1 service, 1 vip, 2 backends",
		"guideway config backend web-2 " + file + " | ssh root@10.1.0.12 guideway-agent setup --from -",
		"systemctl enable --now",
	} {
		if !strings.Contains(stdout, wanted) {
			t.Errorf("it does not say %q: %s", wanted, stdout)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v %v", info, err)
	}
	// The command it prints.
	if _, _, err := guideway(t, "config", "backend", "web-2", "--plain", file); err != nil {
		t.Error(err)
	}
}

func TestInitTouchesNoConfigButTheExample(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "guideway.yaml")
	mine := packaging.ExampleConfig + "# mine"
	if err := os.WriteFile(file, []byte(mine), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := initialize(t, append(goodAnswers, "--file", file)...)
	if text, _ := os.ReadFile(file); err == nil || !strings.Contains(err.Error(), "is there already, and stays as it is") || string(text) != mine {
		t.Errorf("%v %q", err, text)
	}
	if err := os.WriteFile(file, []byte(packaging.ExampleConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := initialize(t, append(goodAnswers, "--file", file)...); err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(folder); len(entries) != 1 {
		t.Errorf("beside it: %v", entries)
	}
}

func TestInitWritesNothingThatIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "guideway.yaml")
	_, stderr, err := initialize(t, append(goodAnswers, "--servers", "10.1.0.300", "--file", file)...)
	if _, missing := os.Stat(file); err == nil || !strings.Contains(stderr, "10.1.0.300") || missing == nil {
		t.Errorf("%v %s", err, stderr)
	}
	// In tests nobody is asked.
	_, _, err = initialize(t, "--ports", "80", "--file", file)
	if err == nil || commandline.ExitCode(err) != commandline.ExitUsage || !strings.Contains(err.Error(), "--vip is missing: Address that clients connect to") {
		t.Error(err)
	}
}

func TestInitAsksWhatIsMissing(t *testing.T) {
	var out bytes.Buffer
	a := answers{service: "web", ports: "53"}
	person := strings.NewReader("203.0.113.10\n127.0.0.1\n\n\n\n")
	if err := a.complete(person, &out); err != nil {
		t.Fatal(err, out.String())
	}
	if a.router != "none" || a.address != "127.0.0.1" || a.device == "" || a.asn != "" {
		t.Errorf("%+v", a)
	}
	for _, asked := range []string{"Address that clients connect to (the VIP) []: ", "Address of the router that speaks BGP [none]: ", "This machine's address [127.0.0.1]: "} {
		if !strings.Contains(out.String(), asked) {
			t.Errorf("it did not ask %q: %s", asked, out.String())
		}
	}
	if strings.Contains(out.String(), "ports") {
		t.Errorf("it asked what a flag says: %s", out.String())
	}
}
