package main

import (
	"strings"
	"testing"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/commandline"
)

func TestOperating(t *testing.T) {
	c := &clitest.FakeController{}
	runDir := clitest.Both(t, c, nil)
	if _, _, err := guideway(t, "reload", "--run-dir", runDir); err == nil || !strings.Contains(err.Error(), "a.yaml:3: unknown field") {
		t.Errorf("reload: %v", err)
	}
	if _, _, err := guideway(t, "drain", "backend", "web-1", "--run-dir", runDir); err != nil || len(c.Drained) != 1 {
		t.Errorf("drain: %v %v", err, c.Drained)
	}
	if _, _, err := guideway(t, "drain", "backend", "wbe-1", "--run-dir", runDir); err == nil || !strings.Contains(err.Error(), `did you mean "web-1"?`) || commandline.ExitCode(err) != commandline.ExitFailed {
		t.Errorf("drain of an unknown backend: %v", err)
	}
}
