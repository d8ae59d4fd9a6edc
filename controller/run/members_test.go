package run

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func TestMembersFromAFileAreKeptOverARestartWithoutIt(t *testing.T) {
	h := newHarness(t)
	path := filepath.Join(h.dir, "web.json")
	lists := func(addresses ...string) {
		t.Helper()
		text, err := json.Marshal([]map[string][]string{{"targets": append([]string{}, addresses...)}})
		if err != nil {
			t.Fatal(err)
		}
		// In one step, as writers should.
		if err := os.WriteFile(path+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	static := h.config("")
	lists("10.1.0.11:80", "10.1.0.12:80")
	fromFile := strings.Replace(static, "backends: [{name: web-1, address: 10.1.0.11}]", "from: {file: web.json}, drain_time: 0s", 1)
	h.write(fromFile)
	h.peer.serve(t, h.runDir())
	h.start()
	has := func(want string) func(*controllerv1.GetStateResponse) bool {
		return func(s *controllerv1.GetStateResponse) bool {
			var names []string
			for _, b := range s.Backends {
				names = append(names, b.Name+" "+b.State)
			}
			return strings.Join(names, ", ") == want
		}
	}
	const two = "10.1.0.11 active, 10.1.0.12 active"
	h.until("two backends", has(two))
	if _, err := h.client.Reload(h.deadline(), &controllerv1.ReloadRequest{}); err != nil {
		t.Errorf("reload: %v", err)
	}
	h.until("two backends, running and kept", func(s *controllerv1.GetStateResponse) bool {
		return has(two)(s) && s.Config.NotKept == "" && !s.Config.Stale && s.Forwarder.GenerationAccepted == s.Forwarder.GenerationWanted
	})

	lists("10.1.0.11:80", "10.1.0.12:80", "10.1.0.13:80")
	h.until("a third one", func(s *controllerv1.GetStateResponse) bool { return len(s.Backends) == 3 })
	lists("10.1.0.11:80", "10.1.0.12:80")
	h.until("it is gone", has(two))
	lists()
	h.until("an empty set waits", func(s *controllerv1.GetStateResponse) bool {
		return has(two)(s) && s.MemberSources[0].Waiting == 2 && s.MemberSources[0].WaitingUntil != nil
	})
	h.stop()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	h.start()
	h.until("a restart without the file changes nothing", func(s *controllerv1.GetStateResponse) bool {
		source := s.MemberSources[0]
		return has(two)(s) && strings.Contains(source.Problem, "no such file") && source.LastSuccess != nil && announced(s)
	})
	lists("10.1.0.12:80", "10.1.0.11:80")
	h.until("the file is back", func(s *controllerv1.GetStateResponse) bool { return s.MemberSources[0].Problem == "" })

	// A config that the members do not fit is refused, and says why.
	h.write(strings.Replace(fromFile, "services: [{", "services: [{table_size: 3, ", 1))
	lists("10.1.0.11", "10.1.0.12", "10.1.0.13", "10.1.0.14")
	h.until("four backends", func(s *controllerv1.GetStateResponse) bool { return len(s.Backends) == 4 })
	if _, err := h.client.Reload(h.deadline(), &controllerv1.ReloadRequest{}); err == nil || !strings.Contains(fmt.Sprint(err), "smaller than the service's 4 backends") {
		t.Errorf("reload: %v", err)
	}
	h.until("the former config serves", func(s *controllerv1.GetStateResponse) bool { return s.Config.Stale && len(s.Backends) == 4 })
	h.stop()
}
