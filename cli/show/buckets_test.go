package show

import (
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
		for _, choice := range []string{"web", "--only-trouble", "--sort=buckets"} {
			out, _, err = guideway(t, "show", line.verb, "-o", "json", choice, "--run-dir", runDir)
			if want := `[ { "name": "web", "buckets": { "count": 256, "generation": 7, "generation_acknowledged": 6, "moving": 128, "waiting": 3, "move_age_max": "86400s", "backends": [ { "backend": "web-1", "owned": 100,`; err != nil || !strings.HasPrefix(clitest.Fields(out), want) || strings.Count(out, `"count"`) != 1 {
				t.Errorf("%s %s: %v %s", line.verb, choice, err, out)
			}
		}
	}
}
