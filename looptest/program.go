package looptest

import (
	"os"
	"path/filepath"
	"testing"
)

// Programs is the folder of our programs: what GUIDEWAY_BIN names, or bin/ of the
// tree that the test is in.
func Programs(t testing.TB) string {
	t.Helper()
	if folder := os.Getenv("GUIDEWAY_BIN"); folder != "" {
		return folder
	}
	root, err := os.Getwd()
	for ; err == nil; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return filepath.Join(root, "bin")
		}
		if root == filepath.Dir(root) {
			break
		}
	}
	t.Fatalf("no go.mod above the test's folder, %v", err)
	return ""
}

// Program is the path of one of our programs; the test is skipped where it was not built.
func Program(t testing.TB, name string) string {
	t.Helper()
	program := filepath.Join(Programs(t), name)
	if _, err := os.Stat(program); err != nil {
		t.Skipf("needs %s: `make build` makes it", program)
	}
	return program
}
