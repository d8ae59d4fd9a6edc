// Package logging is the log of long-running processes: the controller, the speaker, the
// prober. Under systemd each line has its priority.
package logging

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
)

// Priorities of syslog(3), by which journalctl -p selects.
func priorityOf(level slog.Level) int {
	switch {
	case level >= slog.LevelError:
		return 3
	case level >= slog.LevelWarn:
		return 4
	case level >= slog.LevelInfo:
		return 6
	}
	return 7
}

// ToJournal reports whether stderr is the journal's: systemd names its device
// and inode (systemd.exec(5), JOURNAL_STREAM).
func ToJournal(stderr *os.File) bool {
	info, err := stderr.Stat()
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
}

// journalHandler puts `<6>` in front of each line, which the journal takes for
// its priority. Inner writes into line.
type journalHandler struct {
	inner slog.Handler
	line  *line
}

type line struct {
	sync.Mutex
	bytes.Buffer
	out io.Writer
}

func newJournalHandler(out io.Writer, inner func(io.Writer) slog.Handler) slog.Handler {
	l := &line{out: out}
	return journalHandler{inner: inner(&l.Buffer), line: l}
}

func (h journalHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.inner.Enabled(ctx, level)
}

func (h journalHandler) Handle(ctx context.Context, record slog.Record) error {
	h.line.Lock()
	defer h.line.Unlock()
	h.line.Reset()
	fmt.Fprintf(&h.line.Buffer, "<%d>", priorityOf(record.Level))
	if err := h.inner.Handle(ctx, record); err != nil {
		return err
	}
	_, err := h.line.out.Write(h.line.Bytes())
	return err
}

func (h journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return journalHandler{inner: h.inner.WithAttrs(attrs), line: h.line}
}

func (h journalHandler) WithGroup(name string) slog.Handler {
	return journalHandler{inner: h.inner.WithGroup(name), line: h.line}
}

// New log on standard error: for the journal if that is its, else as text or JSON.
func New(format string, verbose bool) *slog.Logger {
	options := &slog.HandlerOptions{}
	if verbose {
		options.Level = slog.LevelDebug
	}
	handler := func(w io.Writer) slog.Handler {
		if format == "json" {
			return slog.NewJSONHandler(w, options)
		}
		return slog.NewTextHandler(w, options)
	}
	if !ToJournal(os.Stderr) {
		return slog.New(handler(os.Stderr))
	}
	options.ReplaceAttr = withoutTime // the journal has its own
	return slog.New(newJournalHandler(os.Stderr, handler))
}

func withoutTime(groups []string, attr slog.Attr) slog.Attr {
	if len(groups) == 0 && attr.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return attr
}
