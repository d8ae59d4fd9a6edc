package outside

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

func TestTextIsOneShortLineThatNoTerminalObeys(t *testing.T) {
	for given, want := range map[string]string{
		"":                               "",
		"status 503, wanted 200":         "status 503, wanted 200",
		"größer als ✓":                   "größer als ✓",
		"\x1b[2Jgone":                    `\x1b[2Jgone`,
		"\u009b2J":                       `\u009b2J`,
		"a\r\nb\tc\x00\x7f":              `a\r\nb\tc\x00\x7f`,
		"abc\u202edef\u200b\u2028\ufeff": `abc\u202edef\u200b\u2028\ufeff`,
		"bad \xff\xfe utf-8 \ufffd":      `bad \xff\xfe utf-8 ` + "\ufffd",
		`C:\x1b "quoted"`:                `C:\x1b "quoted"`,
	} {
		got := Text(given)
		if got != want {
			t.Errorf("%q became %q, wanted %q", given, got, want)
		}
		if Text(got) != got {
			t.Errorf("%q changes when it is cleaned again", got)
		}
	}
}

func TestTextIsCut(t *testing.T) {
	for _, piece := range []string{"a", "\x1b", "ü", "\xff", "\U0001f600"} {
		got := Text(strings.Repeat(piece, 16<<20))
		if len(got) > TextBytesMax || Text(got) != got || !strings.HasSuffix(got, " ... (cut)") || !utf8.ValidString(got) {
			t.Errorf("%q: %d bytes: %q", piece, len(got), got)
		}
	}
	if exact := strings.Repeat("a", TextBytesMax); Text(exact) != exact {
		t.Error("a text that fits is cut")
	}
}

func TestLinesKeepLineEnds(t *testing.T) {
	if got := Lines("a.yaml:1: x\n\tb\x1b\r\n", 100); got != "a.yaml:1: x\n\tb\\x1b\\r\n" {
		t.Errorf("%q", got)
	}
}

func TestAnErrorStaysWhatItIs(t *testing.T) {
	err := Error(&fs.PathError{Op: "open", Path: "\x1b]0;owned\a", Err: fs.ErrNotExist})
	if !errors.Is(err, fs.ErrNotExist) || err.Error() != `open \x1b]0;owned\a: file does not exist` {
		t.Errorf("%q", err)
	}
	if Error(nil) != nil {
		t.Error("no error became one")
	}
}

func TestEachStringOfAMessageIsCleaned(t *testing.T) {
	m := &fleetv1.Verdicts{Groups: map[string]*fleetv1.GroupVerdicts{
		"web\x1b": {Down: []string{"web-1", "web-2\x1b[2J"}},
		"dns":     {Keeps: []string{"\u202e"}},
	}}
	Message(m, 100)
	want := &fleetv1.Verdicts{Groups: map[string]*fleetv1.GroupVerdicts{
		`web\x1b`: {Down: []string{"web-1", `web-2\x1b[2J`}},
		"dns":     {Keeps: []string{`\u202e`}},
	}}
	if !proto.Equal(m, want) {
		t.Errorf("%v", m)
	}
	record := &fleetv1.ConfigRecord{Message: strings.Repeat("x", 1000), User: "root"}
	Message(record, 100)
	if len(record.Message) > 100 || record.User != "root" {
		t.Errorf("%v", record)
	}
}
