package run

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Every curl of docs/api.md at a unix socket, as typed there.
func TestTheCurlsOfTheDocsWorkAsTyped(t *testing.T) {
	page, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	h := newHarness(t)
	h.write(h.config(", {name: web-2, address: 10.1.0.12}"))
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	typed := 0
	for block := range strings.SplitSeq(string(page), "\n\n") {
		if !strings.HasPrefix(block, "    curl -sS --unix-socket ") {
			continue
		}
		typed++
		command := strings.ReplaceAll(block, "/run/guideway/", h.runDir()+"/")
		answer, err := exec.Command("bash", "-ec", command).CombinedOutput()
		var read map[string]any
		if err != nil || json.Unmarshal(answer, &read) != nil || read["code"] != nil {
			t.Errorf("%s\n%v %s", command, err, answer)
		}
	}
	if typed < 5 {
		t.Errorf("the docs have %d curls", typed)
	}
	h.until("the drain of the docs", backendState("web-1", "draining"))
	lines, err := os.ReadFile(filepath.Join(h.stateDir(), "audit.log"))
	if err != nil || !strings.Contains(string(lines), `"call":"DrainBackend","request":{"backend":"web-1","drain":true,"force":false,"fleet":false},"result":"done","config":`) {
		t.Errorf("%v\n%s", err, lines)
	}
	h.stop()
}
