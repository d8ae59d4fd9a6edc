package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guideway/guideway/looptest"
)

// The first example of docs/replay.md for a checkout, as typed at its root, prints what the page
// shows.
func TestTheDocumentedReplayPrintsWhatItShows(t *testing.T) {
	folder := filepath.Dir(looptest.Program(t, "guideway-forwarder"))
	page, err := os.ReadFile("../docs/replay.md")
	if err != nil {
		t.Fatal(err)
	}
	_, from, _ := strings.Cut(string(page), "\n    make build\n")
	typed, after, _ := strings.Cut(from, "\n\n")
	_, shown, _ := strings.Cut(after, "```json\n")
	shown, _, _ = strings.Cut(shown, "```")
	if !strings.Contains(typed, "bin/guideway-forwarder replay") || shown == "" {
		t.Fatalf("the page has no replay: %q, %q", typed, shown)
	}
	command := exec.Command("bash", "-ec", strings.ReplaceAll(typed, "bin/", folder+"/"))
	command.Dir = ".."
	printed, err := command.Output()
	if err != nil || string(printed) != shown {
		t.Errorf("%v\n%s\nthe page shows\n%s", err, printed, shown)
	}
}
