package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guideway/guideway/looptest"
)

// The README's third command, as typed at the root of the tree, prints what the
// README shows.
func TestTheReadmesReplayPrintsWhatItShows(t *testing.T) {
	folder := filepath.Dir(looptest.Program(t, "guideway-forwarder"))
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, from, _ := strings.Cut(string(readme), "\n    make build\n")
	typed, after, _ := strings.Cut(from, "\n\n")
	_, shown, _ := strings.Cut(after, "```json\n")
	shown, _, _ = strings.Cut(shown, "```")
	if !strings.Contains(typed, "bin/guideway-forwarder replay") || shown == "" {
		t.Fatalf("the README has no replay: %q, %q", typed, shown)
	}
	command := exec.Command("bash", "-ec", strings.ReplaceAll(typed, "bin/", folder+"/"))
	command.Dir = ".."
	printed, err := command.Output()
	if err != nil || string(printed) != shown {
		t.Errorf("%v\n%s\nthe README shows\n%s", err, printed, shown)
	}
}
