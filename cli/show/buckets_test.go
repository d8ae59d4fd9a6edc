package show

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/guideway/guideway/cli/clitest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func TestBucketsAndMovesAreShown(t *testing.T) {
	c := &clitest.FakeController{States: []*controllerv1.GetStateResponse{clitest.Draining()}}
	runDir := clitest.Both(t, c, nil)
	for _, line := range []struct {
		verb string
		rows []string
	}{
		{"buckets", []string{"web web-1 100 39.1 % - 28", "web web-2 156 60.9 % 100 -"}},
		{"moves", []string{"web web-1 web-2 100 prepared - - -", "web web-1 web-2 28 moved 1h0m0s 12 23h0m0s", "web - - 3 waiting - - -"}},
	} {
		out, _, err := guideway(t, "show", line.verb, "--run-dir", runDir)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		table, notes, _ := strings.Cut(out, "\n\n")
		if !strings.Contains(notes, "web: the forwarder of this machine does not have the latest bucket map yet") {
			t.Errorf("%s: notes %q", line.verb, notes)
		}
		for _, row := range strings.Split(strings.TrimSpace(table), "\n")[1:] {
			got = append(got, strings.Join(strings.Fields(row), " "))
		}
		if strings.Join(got, "\n") != strings.Join(line.rows, "\n") {
			t.Errorf("%s:\n%s", line.verb, out)
		}
		var parsed []map[string]any
		out, _, err = guideway(t, "show", line.verb, "-o", "json", "--run-dir", runDir)
		if err != nil || json.Unmarshal([]byte(out), &parsed) != nil || len(parsed) != len(line.rows) || parsed[0]["service"] != "web" {
			t.Errorf("%s: %v %s", line.verb, err, out)
		}
	}
}
