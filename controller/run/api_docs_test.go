package run

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guideway/guideway/controller/api"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// Each call is in docs/api.md with a line of curl, which does what it says.
func TestEachLineOfCurlOfTheDocsIsAnswered(t *testing.T) {
	page, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	shell, rest, found := strings.Cut(string(page), "    api GetState")
	_, shell, isThere := strings.Cut(shell, "    api() {")
	if !found || !isThere {
		t.Fatal("docs/api.md has no function api")
	}
	commands, _, _ := strings.Cut("    api GetState"+rest, "\n(`--json` requires")
	h := newHarness(t)
	h.write(h.config(secondBackend))
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	h.until("the second backend is in use", backendState("web-2", "active"))
	next := strings.Replace(h.config(secondBackend), "vips: [", anotherVIP, 1)
	if err := os.WriteFile(filepath.Join(h.dir, "new.yaml"), []byte(next), 0o600); err != nil {
		t.Fatal(err)
	}
	shell = strings.ReplaceAll("api() {"+shell, "/run/guideway/controller/controller.sock", api.OperateSocket(h.runDir()))
	// What needs other machines, or an installed program.
	refused := map[string]string{
		"GetFleet": "names no others", "DrainService": "no other load balancer", "DrainMachine": "no other load balancer",
		"EndCanary": "in files alone", "Restart": "forwarder",
	}
	called := map[string]bool{}
	for command := range strings.SplitSeq(strings.ReplaceAll(commands, "\\\n", ""), "\n") {
		call := regexp.MustCompile(`\bapi (\w+)`).FindStringSubmatch(command)
		if call == nil {
			continue
		}
		called[call[1]] = true
		script := exec.Command("bash", "-ec", shell+"\n"+command)
		script.Dir = h.dir
		out, err := script.Output()
		var answer map[string]any
		if err != nil || json.Unmarshal(out, &answer) != nil {
			t.Fatalf("%s: %v %s", command, err, out)
		}
		if why := refused[call[1]]; answer["code"] != nil && (why == "" || !strings.Contains(string(out), why)) {
			t.Errorf("%s: %s", command, out)
		}
		if call[1] == "PlanConfig" && (answer["changed"] != true || answer["number"] != 1.0) {
			t.Errorf("%s: %s", command, out)
		}
	}
	for _, method := range controllerv1.Controller_ServiceDesc.Methods {
		if !called[method.MethodName] {
			t.Errorf("docs/api.md does not show %s", method.MethodName)
		}
	}
	audit, err := os.ReadFile(filepath.Join(h.stateDir(), "audit.log"))
	if err != nil || !strings.Contains(string(audit), `"call":"DrainBackend","request":{"backend":"web-1","drain":true,"force":false,"fleet":false},"result":"done","config":`) {
		t.Errorf("%v\n%s", err, audit)
	}
	h.until("the new config is in use", func(s *controllerv1.GetStateResponse) bool { return len(s.Services[0].Vips) == 2 })
}
