package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// All that `--help` says, in one file to be read through. UPDATE_GOLDEN=1 rewrites it.
func TestHelpIsAsReviewed(t *testing.T) {
	const file = "testdata/help.txt"
	var all bytes.Buffer
	helpOf(t, root(), &all)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, all.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	reviewed, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(reviewed, all.Bytes()) {
		t.Errorf("%s is not what --help says (%v): `make golden`, and read the difference", file, err)
	}
}

func helpOf(t *testing.T, command *cobra.Command, all *bytes.Buffer) {
	t.Helper()
	if command.Hidden || command.Name() == "help" || command.Name() == "completion" {
		return
	}
	all.WriteString("# " + command.CommandPath() + "\n")
	command.SetOut(all)
	if err := command.Help(); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(all.String(), "\n\n") {
		all.WriteString("\n")
	}
	for _, sub := range command.Commands() {
		helpOf(t, sub, all)
	}
}
