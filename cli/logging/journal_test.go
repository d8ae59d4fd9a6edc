package logging

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"
)

func TestTheJournalGetsAPriorityForEachLine(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(newJournalHandler(&out, func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) }))
	log = log.With("machine", "lb-1")
	log.Debug("unseen")
	log.Info("one")
	log.Warn("two\nlines")
	log.WithGroup("g").Error("three")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("%q", lines)
	}
	for i, prefix := range []string{"<6>", "<4>", "<3>"} {
		if !strings.HasPrefix(lines[i], prefix) || !strings.Contains(lines[i], "machine=lb-1") {
			t.Errorf("line %d is %q", i, lines[i])
		}
	}
}
