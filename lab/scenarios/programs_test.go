package scenarios_test

// Programs that are replaced while processes run them.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guideway/guideway/lab/topology"
)

// ownPrograms is a folder of this lab's own with the programs, which the test may
// replace.
func ownPrograms(t *testing.T, o topology.Options) string {
	t.Helper()
	folder := filepath.Join(filepath.Dir(o.RunDir), "bin")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	programs, err := filepath.Glob(filepath.Join(o.BinDir, "guideway*"))
	if err != nil || len(programs) == 0 {
		t.Fatalf("no programs in %s: %v", o.BinDir, err)
	}
	for _, program := range programs {
		installProgram(t, program, folder)
	}
	return folder
}

// installProgram as a package does: a new file in the place of the former, which
// goes on in the processes that run it.
func installProgram(t *testing.T, program, folder string) {
	t.Helper()
	content, err := os.ReadFile(program)
	if err == nil {
		err = replaceProgram(filepath.Join(folder, filepath.Base(program)), content)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func replaceProgram(at string, content []byte) error {
	if err := os.WriteFile(at+".new", content, 0o755); err != nil {
		return err
	}
	return os.Rename(at+".new", at)
}

// replaced counts the processes that run a file that another has taken the place of.
func replaced(t *testing.T, folder, program string) (count int) {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range processes {
		runs, _ := os.Readlink(process) // ended meanwhile: not it
		if strings.HasSuffix(runs, " (deleted)") && strings.HasPrefix(runs, fmt.Sprintf("%s/%s ", folder, program)) {
			count++
		}
	}
	return count
}
