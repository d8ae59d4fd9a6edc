package config

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/commandline"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// target is a config file in a folder of its own, with an unusual mode.
func target(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "guideway.yaml")
	if err := os.WriteFile(file, []byte(clitest.FormerConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o464); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(file, 65534, 65533); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

// holds: the file, its owner and mode, and nothing beside it.
func holds(t *testing.T, file, text string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil || string(data) != text {
		t.Errorf("%s holds %q, %v", file, data, err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o464 {
		t.Errorf("%v %v", info, err)
	}
	if owner := info.Sys().(*syscall.Stat_t); os.Getuid() == 0 && (owner.Uid != 65534 || owner.Gid != 65533) {
		t.Errorf("it belongs to %d:%d", owner.Uid, owner.Gid)
	}
	if entries, _ := os.ReadDir(filepath.Dir(file)); len(entries) != 1 {
		t.Errorf("beside it: %v", entries)
	}
}

func TestConfigApplyReplacesTheFile(t *testing.T) {
	c := &clitest.FakeController{Target: target(t)}
	runDir := clitest.Both(t, c, nil)
	file := configFileOf(t, "different: 1\n")
	stdout, _, err := guideway(t, "config", "apply", file, "--run-dir", runDir, "--config", c.Target, "--message", "more room")
	if err != nil || !strings.Contains(stdout, "changes to what runs (config 42)") || !strings.HasSuffix(stdout, "\napplied: config 7 runs\n") {
		t.Errorf("%v\n%s", err, stdout)
	}
	if !strings.Contains(stdout, "\nchanges to "+c.Target+":\n") || !strings.Contains(stdout, "\n-former: 1\n+different: 1\n") {
		t.Errorf("the lines that change are not shown:\n%s", stdout)
	}
	holds(t, c.Target, "different: 1\n")
	if c.Order.Number != 42 || c.Order.Message != "more room" || c.Order.From != file || c.Order.RollbackTo != 0 {
		t.Errorf("order %v", c.Order)
	}
}

func TestConfigApplyBindsToTheNumberThatIsGiven(t *testing.T) {
	c := &clitest.FakeController{Target: target(t)}
	runDir := clitest.Both(t, c, nil)
	if _, _, err := guideway(t, "config", "apply", configFileOf(t, "different"), "--run-dir", runDir, "--config", c.Target, "--seen-against", "41"); err != nil || c.Order.Number != 41 {
		t.Errorf("%v %v", c.Order, err)
	}
}

func TestARefusedConfigIsTakenBack(t *testing.T) {
	c := &clitest.FakeController{Target: target(t), Failure: status.Error(codes.FailedPrecondition, "the forwarder refuses the plan")}
	runDir := clitest.Both(t, c, nil)
	_, _, err := guideway(t, "config", "apply", configFileOf(t, "different"), "--run-dir", runDir, "--config", c.Target)
	if err == nil || !strings.Contains(err.Error(), "the forwarder refuses the plan; "+c.Target+" holds the former config again") || commandline.ExitCode(err) != commandline.ExitFailed {
		t.Errorf("got %v", err)
	}
	holds(t, c.Target, clitest.FormerConfig)
	if c.Reloads != 1 {
		t.Errorf("%d reloads", c.Reloads)
	}
}

func TestWhereTheOutcomeIsUnknownTheNewFileStays(t *testing.T) {
	c := &clitest.FakeController{Target: target(t), Failure: status.Error(codes.DeadlineExceeded, "not accepted yet")}
	runDir := clitest.Both(t, c, nil)
	_, _, err := guideway(t, "config", "apply", configFileOf(t, "different"), "--run-dir", runDir, "--config", c.Target)
	if err == nil || !strings.Contains(err.Error(), "holds the new config all the same") || c.Reloads != 0 {
		t.Errorf("got %v", err)
	}
	holds(t, c.Target, "different")
}

func TestAnEditedFileIsNotOverwritten(t *testing.T) {
	c := &clitest.FakeController{Target: target(t)}
	runDir := clitest.Both(t, c, nil)
	if err := os.WriteFile(c.Target, []byte("edited"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := guideway(t, "config", "apply", configFileOf(t, "different"), "--run-dir", runDir, "--config", c.Target)
	if err == nil || !strings.Contains(err.Error(), "was edited since it was loaded") {
		t.Errorf("got %v", err)
	}
	holds(t, c.Target, "edited")
}

func TestAnEditThatNeverRanIsPutAside(t *testing.T) {
	c := &clitest.FakeController{Target: target(t), Edited: true}
	runDir := clitest.Both(t, c, nil)
	stdout, _, err := guideway(t, "config", "rollback", "5", "--run-dir", runDir, "--config", c.Target)
	if err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(c.Target + ".edited-*")
	if err != nil || len(found) != 1 || !strings.Contains(stdout, "held an edit that never ran: it is kept in "+found[0]+"\n") {
		t.Fatalf("%v %v\n%s", found, err, stdout)
	}
	if text, err := os.ReadFile(found[0]); err != nil || string(text) != clitest.FormerConfig {
		t.Errorf("%q %v", text, err)
	}
	if err := os.Remove(found[0]); err != nil {
		t.Fatal(err)
	}
	holds(t, c.Target, "different: 1\nb: 3\n")
}

func TestAFileThatHoldsItAlreadyIsNotWritten(t *testing.T) {
	c := &clitest.FakeController{Target: target(t), Failure: status.Error(codes.FailedPrecondition, "the forwarder refuses the plan")}
	runDir := clitest.Both(t, c, nil)
	_, _, err := guideway(t, "config", "apply", c.Target, "--run-dir", runDir, "--config", c.Target)
	if err == nil || strings.Contains(err.Error(), "holds the former config again") || c.Reloads != 0 {
		t.Errorf("got %v", err)
	}
	holds(t, c.Target, clitest.FormerConfig)
}

func TestAfterARefusalRollbackReturnsToWhatRuns(t *testing.T) {
	c := &clitest.FakeController{Target: target(t), Refused: "a.yaml:3: unknown field"}
	runDir := clitest.Both(t, c, nil)
	if _, _, err := guideway(t, "config", "rollback", "--run-dir", runDir, "--config", c.Target); err != nil || c.Order.RollbackTo != 6 {
		t.Errorf("%v %v", c.Order, err)
	}
	if _, stderr, err := guideway(t, "config", "history", "--run-dir", runDir); err != nil || !strings.Contains(stderr, "what was loaded last is refused, and the one in use goes on: a.yaml:3: unknown field\n") {
		t.Errorf("%v\n%s", err, stderr)
	}
}

func TestADirectoryOfConfigsIsNotApplied(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"a.yaml", "b.yaml"} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := guideway(t, "config", "apply", folder, "--run-dir", "nowhere")
	if err == nil || !strings.Contains(err.Error(), "one file can be applied, a directory cannot") {
		t.Errorf("got %v", err)
	}
}

func TestConfigRollbackReturnsToTheOneBefore(t *testing.T) {
	for _, args := range [][]string{{}, {"5"}} {
		c := &clitest.FakeController{Target: target(t)}
		runDir := clitest.Both(t, c, nil)
		_, _, err := guideway(t, append([]string{"config", "rollback", "--run-dir", runDir, "--config", c.Target, "-m", "why"}, args...)...)
		if err != nil || c.Order.RollbackTo != 5 || c.Order.Message != "why" || c.Order.From != "number 5" {
			t.Errorf("%v %v", c.Order, err)
		}
		holds(t, c.Target, "different: 1\nb: 3\n")
	}
}

func TestConfigRollbackToWhatIsNotThere(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{Target: target(t)}, nil)
	_, _, err := guideway(t, "config", "rollback", "99", "--run-dir", runDir)
	if err == nil || !strings.Contains(err.Error(), "no such config") || commandline.ExitCode(err) != commandline.ExitFailed {
		t.Errorf("got %v", err)
	}
}

func TestConfigHistoryHasWhoWhenAndWhy(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, nil)
	stdout, stderr, err := guideway(t, "config", "history", "--run-dir", runDir)
	if err != nil || !strings.Contains(stderr, "disk full") {
		t.Errorf("%v %q", err, stderr)
	}
	for _, want := range []string{"apply alice too early", "6 (in use)", "rollback to 4 root -", "reload - -"} {
		if !strings.Contains(clitest.Fields(stdout), want) {
			t.Errorf("%q is missing in\n%s", want, stdout)
		}
	}
	stdout, _, err = guideway(t, "config", "history", "-o", "json", "--run-dir", runDir)
	var shown controllerv1.GetConfigHistoryResponse
	if decoded := protojson.Unmarshal([]byte(stdout), &shown); decoded != nil || err != nil {
		t.Fatal(decoded, err)
	}
	if shown.Records[0].User != "alice" || !strings.Contains(stdout, `"time": "2023-11-14T22:13:20Z"`) || !shown.Records[1].InUse || shown.NotRecorded != "disk full" {
		t.Error(stdout)
	}
}

func TestConfigDiffShowsLines(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, nil)
	stdout, _, err := guideway(t, "config", "diff", "5", "6", "--run-dir", runDir)
	want := "--- /etc/g.yaml (number 5)\n+++ /etc/g.yaml (number 6)\n@@ -1,2 +1,2 @@\n different: 1\n-b: 3\n+b: 2\n"
	if err != nil || !strings.HasSuffix(stdout, want) {
		t.Errorf("%v\n%s", err, stdout)
	}
	if stdout, _, err := guideway(t, "config", "diff", "6", "0", "--run-dir", runDir); err != nil || stdout != "" {
		t.Errorf("%q %v", stdout, err)
	}
}
