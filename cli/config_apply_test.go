package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

const formerConfig = "former: 1\n"

// ApplyConfig takes what was written to the target, or fails.
func (f *fakeController) ApplyConfig(stream grpc.BidiStreamingServer[controllerv1.ApplyConfigRequest, controllerv1.ApplyConfigResponse]) error {
	for f.order = nil; f.order == nil; {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		f.order = request.Order
	}
	sum := sha256.Sum256([]byte(formerConfig))
	if err := stream.Send(&controllerv1.ApplyConfigResponse{Path: f.target, Digest: hex.EncodeToString(sum[:])}); err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if f.failure != nil {
		return f.failure
	}
	return stream.Send(&controllerv1.ApplyConfigResponse{Generation: 43, Number: 7})
}

func (f *fakeController) GetConfigHistory(context.Context, *controllerv1.GetConfigHistoryRequest) (*controllerv1.GetConfigHistoryResponse, error) {
	at := timestamppb.New(time.Unix(1_700_000_000, 0))
	return &controllerv1.GetConfigHistoryResponse{NotRecorded: "disk full", Records: []*controllerv1.ConfigRecord{
		{Number: 7, Time: at, How: "apply", User: "alice", Message: "too\nearly", From: []string{"/new.yaml"}, Digest: "77"},
		{Number: 6, Time: at, How: "rollback", RollbackTo: 4, User: "root", InUse: true},
		{Number: 5, Time: at, How: "reload"},
	}}, nil
}

func (f *fakeController) GetConfig(_ context.Context, r *controllerv1.GetConfigRequest) (*controllerv1.GetConfigResponse, error) {
	text := map[uint64]string{0: "different: 1\nb: 2\n", 5: "different: 1\nb: 3\n", 6: "different: 1\nb: 2\n"}[r.Number]
	if text == "" {
		return nil, status.Error(codes.NotFound, "the history has no such config")
	}
	files := []*controllerv1.ConfigPart{{Name: "/etc/g.yaml", Data: []byte(text)}}
	return &controllerv1.GetConfigResponse{Record: &controllerv1.ConfigRecord{Number: r.Number}, Files: files}, nil
}

// target is a config file in a folder of its own, with an unusual mode.
func target(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "guideway.yaml")
	if err := os.WriteFile(file, []byte(formerConfig), 0o600); err != nil {
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
	c := &fakeController{target: target(t)}
	runDir := both(t, c, nil)
	file := configFileOf(t, "different: 1\n")
	stdout, _, err := guideway(t, "config", "apply", file, "--run-dir", runDir, "--message", "more room")
	if err != nil || !strings.Contains(stdout, "changes to what runs (generation 42)") || !strings.HasSuffix(stdout, "\napplied: generation 43 runs; it is number 7 of the history\n") {
		t.Errorf("%v\n%s", err, stdout)
	}
	holds(t, c.target, "different: 1\n")
	if c.order.Generation != 42 || c.order.Message != "more room" || c.order.From != file || c.order.RollbackTo != 0 {
		t.Errorf("order %v", c.order)
	}
}

func TestConfigApplyBindsToTheGenerationThatIsGiven(t *testing.T) {
	c := &fakeController{target: target(t)}
	runDir := both(t, c, nil)
	if _, _, err := guideway(t, "config", "apply", configFileOf(t, "different"), "--run-dir", runDir, "--generation", "41"); err != nil || c.order.Generation != 41 {
		t.Errorf("%v %v", c.order, err)
	}
}

func TestARefusedConfigIsTakenBack(t *testing.T) {
	c := &fakeController{target: target(t), failure: status.Error(codes.FailedPrecondition, "the forwarder refuses the plan")}
	runDir := both(t, c, nil)
	_, _, err := guideway(t, "config", "apply", configFileOf(t, "different"), "--run-dir", runDir)
	if err == nil || !strings.Contains(err.Error(), "the forwarder refuses the plan; "+c.target+" holds the former config again") || exitCode(err) != exitFailed {
		t.Errorf("got %v", err)
	}
	holds(t, c.target, formerConfig)
	if c.reloads != 1 {
		t.Errorf("%d reloads", c.reloads)
	}
}

func TestWhereTheOutcomeIsUnknownTheNewFileStays(t *testing.T) {
	c := &fakeController{target: target(t), failure: status.Error(codes.DeadlineExceeded, "not accepted yet")}
	runDir := both(t, c, nil)
	_, _, err := guideway(t, "config", "apply", configFileOf(t, "different"), "--run-dir", runDir)
	if err == nil || !strings.Contains(err.Error(), "holds the new config all the same") || c.reloads != 0 {
		t.Errorf("got %v", err)
	}
	holds(t, c.target, "different")
}

func TestAnEditedFileIsNotOverwritten(t *testing.T) {
	c := &fakeController{target: target(t)}
	runDir := both(t, c, nil)
	if err := os.WriteFile(c.target, []byte("edited"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := guideway(t, "config", "apply", configFileOf(t, "different"), "--run-dir", runDir)
	if err == nil || !strings.Contains(err.Error(), "was edited since it was loaded") {
		t.Errorf("got %v", err)
	}
	holds(t, c.target, "edited")
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
		c := &fakeController{target: target(t)}
		runDir := both(t, c, nil)
		_, _, err := guideway(t, append([]string{"config", "rollback", "--run-dir", runDir, "-m", "why"}, args...)...)
		if err != nil || c.order.RollbackTo != 5 || c.order.Message != "why" || c.order.From != "number 5" {
			t.Errorf("%v %v", c.order, err)
		}
		holds(t, c.target, "different: 1\nb: 3\n")
	}
}

func TestConfigRollbackToWhatIsNotThere(t *testing.T) {
	runDir := both(t, &fakeController{target: target(t)}, nil)
	_, _, err := guideway(t, "config", "rollback", "99", "--run-dir", runDir)
	if err == nil || !strings.Contains(err.Error(), "no such config") || exitCode(err) != exitFailed {
		t.Errorf("got %v", err)
	}
}

func TestConfigHistoryHasWhoWhenAndWhy(t *testing.T) {
	runDir := both(t, &fakeController{}, nil)
	stdout, stderr, err := guideway(t, "config", "history", "--run-dir", runDir)
	if err != nil || !strings.Contains(stderr, "disk full") {
		t.Errorf("%v %q", err, stderr)
	}
	for _, want := range []string{"apply alice too early", "6 (in use)", "rollback to 4 root -", "reload - -"} {
		if !strings.Contains(fields(stdout), want) {
			t.Errorf("%q is missing in\n%s", want, stdout)
		}
	}
	stdout, _, err = guideway(t, "config", "history", "-o", "json", "--run-dir", runDir)
	var shown shownHistory
	if decoded := json.Unmarshal([]byte(stdout), &shown); decoded != nil || err != nil {
		t.Fatal(decoded, err)
	}
	if shown.Records[0].User != "alice" || shown.Records[0].Time != "2023-11-14T22:13:20Z" || !shown.Records[1].InUse || shown.NotRecorded != "disk full" {
		t.Errorf("%+v", shown)
	}
}

func TestConfigDiffShowsLines(t *testing.T) {
	runDir := both(t, &fakeController{}, nil)
	stdout, _, err := guideway(t, "config", "diff", "5", "6", "--run-dir", runDir)
	want := "--- /etc/g.yaml (number 5)\n+++ /etc/g.yaml (number 6)\n@@ -1,2 +1,2 @@\n different: 1\n-b: 3\n+b: 2\n"
	if err != nil || !strings.HasSuffix(stdout, want) {
		t.Errorf("%v\n%s", err, stdout)
	}
	if stdout, _, err := guideway(t, "config", "diff", "6", "0", "--run-dir", runDir); err != nil || stdout != "" {
		t.Errorf("%q %v", stdout, err)
	}
}
