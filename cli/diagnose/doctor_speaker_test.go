package diagnose

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/controller/sinks/routes"
)

func TestAProcessThatHangsIsSaidToHang(t *testing.T) {
	runDir := t.TempDir()
	socket := routes.Socket(runDir)
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	// The kernel goes on to take connections for a process that is stopped.
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	findings := examine(t.Context(), machine.Machine{RunDir: runDir}, fakeHost{""})
	for _, f := range findings {
		if f.What == "speaker" {
			if want := "the speaker at " + socket + ": takes connections, but does not answer: it hangs"; !strings.HasPrefix(f.Text, want) || !strings.HasSuffix(f.Text, "systemctl restart guideway-speaker") {
				t.Errorf("doctor says %q", f.Text)
			}
			return
		}
	}
	t.Errorf("nothing is said of the speaker: %+v", findings)
}
