package keepalived

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/guideway/guideway/controller/outside"
)

// Limits of what is read; each is far above what people write.
const (
	// Each file is at most 1 MiB: whoever reads it sees to that.
	filesMax     = 1000
	includesMax  = 16
	lineBytesMax = 64 << 10
	// After parameters were replaced: a line takes some 200 bytes.
	linesMax = 500_000
	// Bytes that were looked at for parameters, some seconds of work: definitions of definitions
	// can grow without end, also those that leave nothing.
	workMax    = 64 << 20
	workOfLine = 100
	// Definitions inside definitions, and replacements in one line.
	definitionsMax  = 32
	replacementsMax = 1000
)

// Place of a line.
type Place struct {
	File string
	// From 1.
	Line int
}

func (p Place) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// errorf says what is wrong at a place, and the cure.
func (p Place) errorf(format string, values ...any) error {
	return fmt.Errorf("%s: %w", outside.Line(p.String(), textMax), fmt.Errorf(format, values...))
}

// Of one thing that is quoted from the file.
const textMax = 200

// Files are where a configuration is read from. Read returns at most 1 MiB, of a regular file.
type Files struct {
	Read func(path string) ([]byte, error)
	Glob func(pattern string) ([]string, error)
}

// line of a file after comments, conditions and parameters.
type line struct {
	Place
	text string
	// Why it is not taken, and what that means; empty for all others.
	skipped string
	kind    Kind
}

// reader makes lines of files: it follows includes, takes the lines that are for this machine, and
// replaces parameters. It knows no keyword but `include`.
type reader struct {
	files Files
	// Lines for others, `@name`, are not taken.
	id         string
	parameters map[string]parameter
	lines      []line
	work       int
	// Files that are being read, the first is the outermost; and how many were.
	open []string
	read int
}

// parameter is what `$NAME=` defined: lines, of which all but the last ended with a backslash.
type parameter []string

var (
	definition = regexp.MustCompile(`^\$([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*)$`)
	// Without braces a parameter ends with white space.
	reference = regexp.MustCompile(`\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*)(?:[ \t]|$))`)
	include   = regexp.MustCompile(`^include[rmwba]?[ \t]+(.*)$`)
)

// file is read, which the line at `from` includes; the first one no line does.
func (r *reader) file(path string, from Place) error {
	if slices.Contains(r.open, path) {
		return from.errorf("%s includes itself: remove one include", outside.Text(path))
	}
	if len(r.open) == includesMax {
		return from.errorf("includes are nested more than %d deep: include the file from one further up", includesMax)
	}
	if r.read++; r.read > filesMax {
		return from.errorf("more than %d files are included: import them in several parts", filesMax)
	}
	data, err := r.files.Read(path)
	if err != nil && from.Line == 0 {
		return err
	}
	if err != nil {
		return from.errorf("%s: correct the path, or remove the include", outside.Error(err))
	}
	r.open = append(r.open, path)
	defer func() { r.open = r.open[:len(r.open)-1] }()
	var unfinished string // the parameter whose definition continues
	for i, text := range strings.Split(string(data), "\n") {
		at := Place{path, i + 1}
		switch {
		case len(text) > lineBytesMax:
			return at.errorf("the line has more than %d bytes: is it keepalived's configuration?", lineBytesMax)
		case strings.ContainsRune(text, 0):
			return at.errorf("there is a NUL byte: is it keepalived's configuration?")
		}
		text, continues := withoutComment(strings.TrimRight(text, "\r"))
		if unfinished == "" {
			if unfinished, err = r.line(at, text, continues, 0); err != nil {
				return err
			}
			continue
		}
		if text != "" {
			r.parameters[unfinished] = append(r.parameters[unfinished], text)
		}
		if !continues {
			unfinished = ""
		}
	}
	return nil
}

// line is taken after its condition was looked at and its parameters were replaced. It names the
// parameter that it defines if the next line continues that.
func (r *reader) line(at Place, text string, continues bool, depth int) (unfinished string, err error) {
	var more parameter
	for range replacementsMax {
		if r.work += workOfLine + len(text); r.work > workMax {
			return "", at.errorf("parameters make the configuration too long: import it in several parts")
		}
		var isHere bool
		if text, isHere = r.forThisMachine(at, text); !isHere || text == "" {
			return "", r.rest(at, more, depth)
		}
		if defined := definition.FindStringSubmatch(text); defined != nil {
			r.parameters[defined[1]] = parameter{defined[2]}
			if continues {
				unfinished = defined[1]
			}
			return unfinished, r.rest(at, more, depth)
		}
		replaced, following, found := r.replace(text)
		if !found || strings.HasPrefix(text, "~") {
			if err := r.complete(at, text); err != nil {
				return "", err
			}
			return "", r.rest(at, more, depth)
		}
		text, more = strings.TrimSpace(replaced), slices.Concat(following, more)
		r.work += workOfLine * len(more)
		if len(text) > lineBytesMax {
			return "", at.errorf("the line has more than %d bytes after its parameters were replaced: shorten them", lineBytesMax)
		}
	}
	return "", at.errorf("parameters are replaced more than %d times: does one name itself?", replacementsMax)
}

// rest of the lines that a parameter stands for.
func (r *reader) rest(at Place, more parameter, depth int) error {
	if len(more) > 0 && depth == definitionsMax {
		return at.errorf("definitions are nested more than %d deep: does one name itself?", definitionsMax)
	}
	for _, text := range more {
		if _, err := r.line(at, text, false, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// forThisMachine says whether a line is taken that may begin with `@name` or `@^name`.
func (r *reader) forThisMachine(at Place, text string) (rest string, isHere bool) {
	condition, isConditional := strings.CutPrefix(text, "@")
	if !isConditional {
		return text, true
	}
	condition, isNegative := strings.CutPrefix(condition, "^")
	end := strings.IndexAny(condition, " \t")
	if end < 0 {
		return "", true // nothing follows
	}
	if name := condition[:end]; (name == r.id) == isNegative {
		r.lines = append(r.lines, line{at, text, fmt.Sprintf("the line is for another machine than %q (--config-id)", outside.Text(r.id)), Differs})
		return "", false
	}
	return strings.TrimSpace(condition[end:]), true
}

// replace the first parameter that is known.
func (r *reader) replace(text string) (replaced string, following parameter, found bool) {
	for from := 0; ; {
		at := reference.FindStringSubmatchIndex(text[from:])
		if at == nil {
			return "", nil, false
		}
		start, end, after := at[2], at[3], at[1]
		if start < 0 { // without braces: the white space stays
			start, end, after = at[4], at[5], at[5]
		}
		if value, known := r.parameter(text[from+start : from+end]); known {
			return text[:from+at[0]] + value[0] + text[from+after:], value[1:], true
		}
		from += after
	}
}

func (r *reader) parameter(name string) (parameter, bool) {
	if value, known := r.parameters[name]; known {
		return value, true
	}
	predefined := map[string]string{"_HASH": "#", "_BANG": "!", "_INSTANCE": r.id, "_PWD": filepath.Dir(r.open[len(r.open)-1])}
	value, known := predefined[name]
	return parameter{value}, known
}

// complete lines are kept, or name files to read in their place.
func (r *reader) complete(at Place, text string) error {
	if included := include.FindStringSubmatch(text); included != nil {
		return r.include(at, text, strings.Trim(included[1], ` "`))
	}
	complete := line{Place: at, text: text}
	if strings.HasPrefix(text, "~") {
		complete.skipped, complete.kind = "~SEQ and ~LST are not expanded: write the lines out and import again", LeftOut
	}
	r.lines = append(r.lines, complete)
	if len(r.lines) > linesMax {
		return at.errorf("there are more than %d lines: import the configuration in several parts", linesMax)
	}
	return nil
}

func (r *reader) include(at Place, text, pattern string) error {
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(filepath.Dir(at.File), pattern)
	}
	if strings.ContainsAny(pattern, "{}") {
		return at.errorf("braces in the name of an included file are not understood: write an include for each file")
	}
	if !strings.ContainsAny(pattern, "*?[") {
		return r.file(pattern, at)
	}
	paths, err := r.files.Glob(pattern)
	if err != nil {
		return at.errorf("include %s: %w: correct the pattern", outside.Text(pattern), err)
	}
	if len(paths) == 0 {
		r.lines = append(r.lines, line{at, text, "no file matches", Ignored})
	}
	for _, path := range paths {
		if err := r.file(path, at); err != nil {
			return err
		}
	}
	return nil
}
