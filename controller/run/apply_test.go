package run

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/apitest"
	configfiles "github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/configs"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func oneFile(config string) []*controllerv1.ConfigFile {
	return []*controllerv1.ConfigFile{{Name: "/new.yaml", Data: []byte(config)}}
}

// apply as the CLI does, but never puts the file back.
func (h *harness) apply(config string, order *controllerv1.ApplyOrder) (*controllerv1.ApplyConfigResponse, error) {
	h.t.Helper()
	stream, err := h.client.ApplyConfig(h.deadline())
	if err != nil {
		h.t.Fatal(err)
	}
	request := &controllerv1.ApplyConfigRequest{Files: oneFile(config), Order: order}
	if err := stream.Send(request); err != nil {
		h.t.Fatal(err)
	}
	target, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if target.Path != h.configFile() {
		h.t.Errorf("to be replaced: %s", target.Path)
	}
	if onDisk, _ := os.ReadFile(target.Path); target.Digest != configs.DigestOf([]configfiles.Source{{Data: onDisk}}) {
		h.t.Errorf("the digest of something else: %v", target)
	}
	h.write(config)
	if err := stream.Send(&controllerv1.ApplyConfigRequest{Written: true}); err != nil {
		h.t.Fatal(err)
	}
	return stream.Recv()
}

func (h *harness) running() uint64 { return h.peer.running().GetGeneration() }

func (h *harness) numberInUse() uint64 {
	h.t.Helper()
	record := h.recordInUse()
	if record == nil {
		h.t.Fatal("the history has no config in use")
	}
	return record.Number
}

// recordInUse of the history; nil: it has none yet.
func (h *harness) recordInUse() *controllerv1.ConfigRecord {
	h.t.Helper()
	for _, record := range h.history().Records {
		if record.InUse {
			return record
		}
	}
	return nil
}

func (h *harness) history() *controllerv1.GetConfigHistoryResponse {
	h.t.Helper()
	history, err := h.client.GetConfigHistory(h.deadline(), &controllerv1.GetConfigHistoryRequest{})
	if err != nil {
		h.t.Fatal(err)
	}
	return history
}

func applied(t *testing.T) *harness {
	t.Helper()
	h := newHarness(t)
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	h.until("in the history", func(*controllerv1.GetStateResponse) bool { return h.recordInUse() != nil })
	return h
}

const secondBackend = ", {name: web-2, address: 10.1.0.12}"

func TestAnAppliedConfigIsInUseAndInTheHistory(t *testing.T) {
	h := applied(t)
	before := h.running()
	order := &controllerv1.ApplyOrder{Number: h.numberInUse(), Message: "more room", From: "/new.yaml"}
	response, err := h.apply(h.config(secondBackend), order)
	if err != nil || h.running() <= before || response.Number != 2 {
		t.Fatalf("%v %v", response, err)
	}
	h.until("in use", backendState("web-2", "active"))
	for range 2 {
		history := h.history()
		if len(history.Records) != 2 || history.NotRecorded != "" {
			t.Fatalf("history %v", history)
		}
		now, start := history.Records[0], history.Records[1]
		if !now.InUse || now.How != "apply" || now.User != "root" || now.Message != "more room" || now.From[0] != "/new.yaml" {
			t.Errorf("applied: %v", now)
		}
		if start.InUse || start.How != "start" || start.User != "" || start.From[0] != h.configFile() {
			t.Errorf("at the start: %v", start)
		}
		former, err := h.client.GetConfig(h.deadline(), &controllerv1.GetConfigRequest{Number: 1})
		if err != nil || string(former.Files[0].Data) != h.config("") {
			t.Errorf("%v %v", former, err)
		}
		latest, err := h.client.GetConfig(h.deadline(), &controllerv1.GetConfigRequest{})
		if err != nil || latest.Record.Number != 2 {
			t.Errorf("%v %v", latest, err)
		}
		// A restart with the same files is no other config.
		h.stop()
		h.start()
		h.until("announced again", announced)
	}
	if _, err := h.client.GetConfig(h.deadline(), &controllerv1.GetConfigRequest{Number: 9}); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown number: %v", err)
	}
	// Back by the same means.
	response, err = h.apply(h.config(""), &controllerv1.ApplyOrder{Number: h.numberInUse(), RollbackTo: 1})
	if err != nil || response.Number != 3 {
		t.Fatalf("%v %v", response, err)
	}
	if latest := h.history().Records[0]; latest.How != "rollback" || latest.RollbackTo != 1 {
		t.Errorf("rolled back: %v", latest)
	}
	h.stop()
}

func TestWhatIsReloadedIsInTheHistoryToo(t *testing.T) {
	h := applied(t)
	h.write(h.config(secondBackend))
	if _, err := h.client.Reload(h.deadline(), &controllerv1.ReloadRequest{}); err != nil {
		t.Fatal(err)
	}
	h.until("in use", backendState("web-2", "active"))
	if latest := h.history().Records[0]; latest.How != "reload" || latest.User != "root" || !latest.InUse {
		t.Errorf("reloaded: %v", latest)
	}
	h.stop()
}

func TestAConfigIsRefusedThatWasComparedWithSomethingElse(t *testing.T) {
	h := applied(t)
	refused := func(what, config string, number uint64, code codes.Code, why string) {
		t.Helper()
		before := h.running()
		_, err := h.apply(config, &controllerv1.ApplyOrder{Number: number})
		if status.Code(err) != code || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", what, err)
		}
		if h.running() != before || len(h.history().Records) != 1 {
			t.Errorf("%s: generation %d after %d; %v", what, h.running(), before, h.history())
		}
	}
	refused("another number", h.config(secondBackend), h.numberInUse()+1, codes.FailedPrecondition, "runs now")
	refused("a mistake", "nonsense: 1\n", h.numberInUse(), codes.InvalidArgument, "/new.yaml:1")
	if onDisk, _ := os.ReadFile(h.configFile()); string(onDisk) != h.config("") {
		t.Error("the file changed")
	}
	h.write(h.config("") + "# edited\n")
	refused("an edited file", h.config(secondBackend), h.numberInUse(), codes.FailedPrecondition, "was edited since it was loaded")
	h.stop()
}

func TestAConfigOfSeveralFilesIsNotReplaced(t *testing.T) {
	h := newHarness(t)
	folder := filepath.Join(h.dir, "config.d")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(h.configFile(), filepath.Join(folder, "all.yaml")); err != nil {
		t.Fatal(err)
	}
	h.peer.serve(t, h.runDir())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Options{Config: []string{folder}, RunDir: h.runDir(), StateDir: h.stateDir(), Log: slog.New(slog.DiscardHandler)})
	}()
	h.client = apitest.Controller(t, api.OperateSocket(h.runDir()))
	h.until("announced", announced)
	if _, err := h.plan("/new.yaml", h.config("")); err != nil {
		t.Errorf("its changes can be seen all the same: %v", err)
	}
	_, err := h.apply(h.config(secondBackend), &controllerv1.ApplyOrder{Number: h.numberInUse()})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "config.d, which is not replaced") {
		t.Errorf("got %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestOneFileIsForSeveralMachines(t *testing.T) {
	h := newHarness(t)
	h.write(strings.Replace(h.config(""), "machine: {name: lb-1, addresses: [10.0.0.1]}",
		"machines: [{name: other, addresses: [10.0.0.9]}, {name: lb-1, addresses: [10.0.0.1]}]", 1))
	h.machine = "lb-1"
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	if state := h.state(); state.Machine.Name != "lb-1" || len(state.Peers) != 1 || state.Peers[0].Name != "other" {
		t.Errorf("machine %v, peers %v", state.Machine, state.Peers)
	}
	h.stop()
}

func TestAHookHearsOfABackend(t *testing.T) {
	h := newHarness(t)
	told := filepath.Join(h.dir, "told")
	if err := os.MkdirAll(h.hooksDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.hooksDir(), "notify"), []byte("#!/bin/sh\ncat >>"+told+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	h.write(h.config("") + "hooks: [{program: notify}]\n")
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("it is told", func(*controllerv1.GetStateResponse) bool {
		text, _ := os.ReadFile(told)
		return strings.Contains(string(text), `"machine":"lb-1","object":"backend web/web-1","from":"down","to":"active","cause":"ok: status 200"`)
	})
	h.stop()
}

func TestNothingElseIsLoadedWhileAConfigIsApplied(t *testing.T) {
	h := applied(t)
	ctx, cancel := context.WithCancel(h.deadline())
	stream, err := h.client.ApplyConfig(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&controllerv1.ApplyConfigRequest{Files: oneFile(h.config(secondBackend)), Order: &controllerv1.ApplyOrder{Number: h.numberInUse()}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	short, cancelShort := context.WithTimeout(h.deadline(), 200*time.Millisecond)
	defer cancelShort()
	if _, err := h.client.Reload(short, &controllerv1.ReloadRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a reload meanwhile: %v", err)
	}
	// The client dies: what it began is forgotten.
	cancel()
	if _, err := h.client.Reload(h.deadline(), &controllerv1.ReloadRequest{}); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(h.stateDir(), configs.HistoryDir, configs.Unfinished+"*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	h.stop()
}

// reload, which is refused.
func (h *harness) reloadRefused(config string) {
	h.t.Helper()
	h.write(config)
	if _, err := h.client.Reload(h.deadline(), &controllerv1.ReloadRequest{}); err == nil {
		h.t.Fatal("loaded")
	}
	if history := h.history(); len(history.Records) != 1 || !history.Records[0].InUse || history.Refused == "" {
		h.t.Errorf("history %v", history)
	}
}

func TestAFileThatIsEditedInPlaceIsAppliedLikeAnother(t *testing.T) {
	h := applied(t)
	h.write(h.config(secondBackend))
	response, err := h.apply(h.config(secondBackend), &controllerv1.ApplyOrder{Number: h.numberInUse(), Message: "by hand"})
	if err != nil || response.Number != 2 {
		t.Fatalf("%v %v", response, err)
	}
	if latest := h.history().Records[0]; latest.How != "apply" || latest.Message != "by hand" || !latest.InUse {
		t.Errorf("applied: %v", latest)
	}
	h.stop()
}

func TestABadEditDoesNotStandInTheWayOfARollback(t *testing.T) {
	for what, edit := range map[string]func(*harness) string{
		"refused by the parser":    func(*harness) string { return "nonsense: 1\n" },
		"refused by the forwarder": func(h *harness) string { return h.config("") },
	} {
		t.Run(what, func(t *testing.T) {
			h := newHarness(t)
			h.peer.backendsMin.Store(2)
			h.write(h.config(secondBackend))
			h.peer.serve(t, h.runDir())
			h.start()
			h.until("announced", announced)
			h.reloadRefused(edit(h))
			h.until("the former plan runs", func(s *controllerv1.GetStateResponse) bool {
				return s.Forwarder.GenerationAccepted == s.Forwarder.GenerationWanted && s.Forwarder.GenerationWanted == h.running()
			})
			_, err := h.apply(h.config(secondBackend)+"# another\n", &controllerv1.ApplyOrder{Number: h.numberInUse()})
			if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "`guideway config rollback 1` puts it aside") {
				t.Errorf("overwritten: %v", err)
			}
			if _, err := h.apply(h.config(secondBackend), &controllerv1.ApplyOrder{Number: h.numberInUse(), RollbackTo: 1}); err != nil {
				t.Fatal(err)
			}
			h.until("in order", func(s *controllerv1.GetStateResponse) bool { return !s.Config.Stale && announced(s) })
			if history := h.history(); history.Refused != "" || len(history.Records) != 1 || !history.Records[0].InUse {
				t.Errorf("history %v", history)
			}
			h.stop()
		})
	}
}

func TestAConfigThatTheForwarderRefusesIsNotInUse(t *testing.T) {
	h := applied(t)
	h.peer.refuse.Store(true)
	_, err := h.apply(h.config(secondBackend), &controllerv1.ApplyOrder{Number: h.numberInUse()})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "the forwarder refuses the plan") {
		t.Errorf("got %v", err)
	}
	history := h.history()
	if len(history.Records) != 1 || !history.Records[0].InUse {
		t.Errorf("history %v", history)
	}
	h.peer.refuse.Store(false)
	h.write(h.config(""))
	if _, err := h.client.Reload(h.deadline(), &controllerv1.ReloadRequest{}); err != nil {
		t.Error(err)
	}
	h.until("the former config is in order", func(s *controllerv1.GetStateResponse) bool { return !s.Config.Stale && announced(s) })
	h.stop()
}

func TestNothingIsAppliedThatCannotBeRecorded(t *testing.T) {
	h := applied(t)
	folder := filepath.Join(h.stateDir(), configs.HistoryDir)
	if err := os.Rename(folder, folder+".away"); err != nil {
		t.Fatal(err)
	}
	before := h.running()
	_, err := h.apply(h.config(secondBackend), &controllerv1.ApplyOrder{Number: h.numberInUse()})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "make room in") {
		t.Errorf("got %v", err)
	}
	if onDisk, _ := os.ReadFile(h.configFile()); string(onDisk) != h.config("") || h.running() != before {
		t.Error("something changed")
	}
	// By hand it goes on, is told, and recorded later.
	h.write(h.config(secondBackend))
	if _, err := h.client.Reload(h.deadline(), &controllerv1.ReloadRequest{}); err != nil {
		t.Fatal(err)
	}
	h.until("told", func(s *controllerv1.GetStateResponse) bool {
		return strings.Contains(s.Config.NotKept, "record the config")
	})
	if h.history().NotRecorded == "" {
		t.Error("the history does not say that one is missing")
	}
	if err := os.Rename(folder+".away", folder); err != nil {
		t.Fatal(err)
	}
	h.until("recorded", func(s *controllerv1.GetStateResponse) bool { return s.Config.NotKept == "" })
	if history := h.history(); len(history.Records) != 2 || history.Records[0].How != "reload" {
		t.Errorf("history %v", history)
	}
	h.stop()
}
