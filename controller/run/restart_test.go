package run

import (
	"errors"
	"os/user"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func TestARestartTakesTheForwarderOverAndEndsTheController(t *testing.T) {
	h := newHarness(t)
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	refused := func(says string) {
		t.Helper()
		_, err := h.client.Restart(h.deadline(), &controllerv1.RestartRequest{})
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	refused("version 1.0, which cannot be restarted by request")
	h.peer.successors.Store(true)
	h.peer.refuse.Store(true)
	refused("the forwarder goes on as it is: the successor ended")
	if !announced(h.state()) {
		t.Error("a refused restart has changed something")
	}
	h.peer.refuse.Store(false)
	done, err := h.client.Restart(h.deadline(), &controllerv1.RestartRequest{})
	if err != nil || done.ForwarderVersion != "1.0" || done.PauseUs != 5000 || h.peer.takenOver.Load() != 1 {
		t.Fatalf("%v: %v", done, err)
	}
	select {
	case err := <-h.result:
		if !errors.Is(err, ErrRestart) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it goes on")
	}
	h.start() // as the program that is installed does
	h.until("announced again", announced)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	h.untilEvents(&controllerv1.WatchEventsRequest{Object: "controller controller"}, "controller controller:  > started (",
		"controller controller: started > restarting (the installed program goes on in its place) lb-1 "+me.Username, "controller controller:  > started (")
}
