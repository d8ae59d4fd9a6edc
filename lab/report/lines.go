package report

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/guideway/guideway/cli/commandline"
)

// width of the narrowest terminal that is common.
const width = 80

// lines of at most that width, in colour where somebody looks.
type lines struct {
	output  io.Writer
	colours bool
}

func newLines(output io.Writer) *lines {
	return &lines{output, os.Getenv("NO_COLOR") == "" && commandline.IsTerminal(output)}
}

func (l *lines) line(format string, values ...any) { l.wrapped("", fmt.Sprintf(format, values...)) }

// detail of the line above.
func (l *lines) detail(text string) {
	if text != "" {
		l.wrapped("    ", text)
	}
}

const (
	red   = "\x1b[31m"
	green = "\x1b[32m"
)

func (l *lines) verdict(good bool, format string, values ...any) {
	colour := red
	if good {
		colour = green
	}
	l.coloured(colour, fmt.Sprintf(format, values...))
}

func (l *lines) bad(format string, values ...any) { l.coloured(red, fmt.Sprintf(format, values...)) }

func (l *lines) coloured(colour, text string) {
	if l.colours {
		fmt.Fprint(l.output, colour)
		defer fmt.Fprint(l.output, "\x1b[0m")
	}
	l.line("%s", text)
}

// wrapped text behind a head, below which it goes on where it does not fit. Columns stay: only
// a text that is too wide is taken apart.
func (l *lines) wrapped(head, text string) {
	indent := strings.Repeat(" ", max(len(head), 2))
	for len(head)+len(text) > width {
		at := strings.LastIndexByte(text[:width-len(head)+1], ' ')
		if at <= 0 {
			break
		}
		fmt.Fprintln(l.output, head+text[:at])
		head, text = indent, text[at+1:]
	}
	fmt.Fprintln(l.output, strings.TrimRight(head+text, " "))
}
