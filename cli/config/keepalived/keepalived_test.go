package keepalived

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// inMemory are files by their path.
func inMemory(files map[string]string) Files {
	return Files{
		Read: func(path string) ([]byte, error) {
			text, is := files[path]
			if !is {
				return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
			}
			return []byte(text), nil
		},
		Glob: func(pattern string) (paths []string, err error) {
			for path := range files {
				if fits, err := filepath.Match(pattern, path); err != nil {
					return nil, err
				} else if fits {
					paths = append(paths, path)
				}
			}
			slices.Sort(paths)
			return paths, nil
		},
	}
}

// tree of items, in braces.
func tree(i *item) string {
	var text []string
	for _, inner := range i.items {
		one := fmt.Sprintf("%q", inner.words)
		if inner.skipped != "" {
			one = "skipped"
		}
		if inner.isBlock {
			one += "{" + tree(inner) + "}"
		}
		text = append(text, one)
	}
	return strings.Join(text, " ")
}

func Test_the_grammar_is_keepaliveds(t *testing.T) {
	for text, wanted := range map[string]string{
		"":                                    ``,
		"a b\tc":                              `["a" "b" "c"]`,
		"a # b\n! c\nd!e":                     `["a"] ["d"]`,
		`a \# b \! "c # ! d"`:                 `["a" "#" "b" "!" "c # ! d"]`,
		"a{b}c":                               `["a"]{["b"]} ["c"]`,
		"a\n{\nb\n}":                          `["a"]{["b"]}`,
		"a { b { c } d }":                     `["a"]{["b"]{["c"]} ["d"]}`,
		`a "b { c" '} d' e'f`:                 `["a" "b { c" "} d" "e'f"]`,
		`a b"c d"e ""`:                        `["a" "bc de" ""]`,
		`a "\n\x41\101\"\\\cA\E\q"`:           `["a" "\nAA\"\\\x01\x1bq"]`,
		`a "\xff"`:                            `["a" "�"]`,
		"$A=1\na $A ${A}2 $A3 $B":             `["a" "1" "12" "$A3" "$B"]`,
		"$A=${B}\n$B=1\na ${A}\n$B=2\na ${A}": `["a" "1"] ["a" "2"]`,
		"$A=\\\nb { \\\nc $X \\\n}\n$X=1\n$A\n$X=2\n$A": `["b"]{["c" "1"]} ["b"]{["c" "2"]}`,
		"$A=x \\\n\nb $A": `["b" "x"]`,
		"@here a\n@there b\n@^here c\n@^there d\n@here":     `["a"] skipped skipped ["d"]`,
		"@here $A=1\n@there $A=2\na $A":                     `skipped ["a" "1"]`,
		"$IF=@here\n$IF a":                                  `["a"]`,
		"a ${_INSTANCE} ${_PWD} ${_HASH}${_BANG}":           `["a" "here" "/etc/k" "#!"]`,
		"include sub/b.conf\ninclude *.d\ninclude \"/abs\"": `["in" "b"] ["in" "sub"] ["one"] ["two"] ["in" "abs"]`,
		"~SEQ(a, 1, 2) b":                                   `skipped`,
		"include *.none\na":                                 `skipped ["a"]`,
	} {
		r := &reader{id: "here", parameters: map[string]parameter{}, files: inMemory(map[string]string{
			"/etc/k/keepalived.conf": text, "/etc/k/sub/b.conf": "in b\ninclude c.conf", "/etc/k/sub/c.conf": "in sub",
			"/etc/k/1.d": "one", "/etc/k/2.d": "two", "/abs": "in abs",
		})}
		if err := r.file("/etc/k/keepalived.conf", Place{}); err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if outermost, err := blocks(r.lines); err != nil || tree(outermost) != wanted {
			t.Errorf("%q is read as %s, not %s: %v", text, tree(outermost), wanted, err)
		}
	}
}

func Test_what_is_wrong_has_its_place_and_its_cure(t *testing.T) {
	deep := strings.Repeat("a {\n", 100)
	for text, wanted := range map[string]string{
		"a\n}":                               "/k:2: `}` ends no block: remove it",
		"a {\nb {\n}":                        "/k:1: the block of `a` is not closed: add `}`",
		"\n{ a }":                            "/k:2: `{` stands without a keyword before it",
		"a { b }\n{ c }":                     "/k:2: `{` stands without a keyword",
		"a \"b\nc\"":                         "/k:1: a quote is not closed: end the text with \"",
		deep:                                 "/k:17: blocks are nested more than 16 deep",
		"a\x00":                              "/k:1: there is a NUL byte: is it keepalived's",
		strings.Repeat("a", 70_000):          "/k:1: the line has more than 65536 bytes",
		"\ninclude gone":                     "/k:2: open /gone: file does not exist: correct the path",
		"include k":                          "/k:1: /k includes itself",
		"include to":                         "/to:1: /k includes itself",
		"include {a,b}":                      "/k:1: braces in the name of an included file",
		"include [":                          "/k:1: include /[: syntax error in pattern: correct the pattern",
		"include 1":                          "/15:1: includes are nested more than 16 deep",
		strings.Repeat("include *.e\n", 400): "/k:334: more than 1000 files are included",
		"$A=$A\n$A":                          "/k:2: parameters are replaced more than 1000 times: does one name itself?",
		"$A=\\\n$A \\\n$A\n$A":               "/k:4: definitions are nested more than 32 deep",
		"$A=" + strings.Repeat("x", 60_000) + "\n${A}${A}": "/k:2: the line has more than 65536 bytes after its parameters were replaced",
		definitions("x"):               "/k:62: parameters make the configuration too long",
		definitions("$NOTHING="):       "/k:62: parameters make the configuration too long",
		strings.Repeat("a\n", 500_001): "/k:500001: there are more than 500000 lines",
	} {
		files := map[string]string{"/k": text, "/to": "include k", "/1.e": "", "/2.e": "", "/3.e": ""}
		for n := 1; n < 20; n++ {
			files[fmt.Sprintf("/%d", n)] = fmt.Sprintf("include %d", n+1)
		}
		started := time.Now()
		_, err := Import("/k", "here", inMemory(files))
		if err == nil || !strings.HasPrefix(err.Error(), wanted) {
			t.Errorf("%.40q: %v, not %s", text, err, wanted)
		}
		if took := time.Since(started); took > time.Minute {
			t.Errorf("%.40q takes %v", text, took)
		}
	}
}

// definitions of two lines, each of which is the definition before.
func definitions(line string) string {
	text := "$L0=" + line + "\n"
	for n := range 20 {
		text += fmt.Sprintf("$L%d= \\\n${L%d} \\\n${L%d}\n", n+1, n, n)
	}
	return text + "$L20"
}

func Test_ranges_of_addresses(t *testing.T) {
	for text, wanted := range map[string]string{
		"192.0.2.1":               "invalid IP 1 ",
		"192.0.2.1-9":             "192.0.2.1 9 ",
		"192.0.2.9-192.0.3.0":     "192.0.2.9 248 ",
		"192.0.2.5/29":            "192.0.2.0 8 ",
		"192.0.2.5/32":            "192.0.2.5 1 ",
		"2001:db8::fe-101":        "2001:db8::fe 4 ",
		"2001:db8::1-2001:db8::2": "2001:db8::1 2 ",
		"0.0.0.0/0":               "0.0.0.0 1073741824 ",
		"::/0":                    ":: 1073741824 ",
		"192.0.2.9-8":             "192.0.2.9 0 the range does not end with an address, or a last number, behind its first",
		"192.0.2.9-256":           "192.0.2.9 0 the range does not end with an address, or a last number, behind its first",
		"192.0.2.9-::1":           "192.0.2.9 0 the range does not end with an address, or a last number, behind its first",
		"x-9":                     "invalid IP 0 the range does not begin with an address",
		"192.0.2.0/33":            "invalid IP 0 it is no prefix",
	} {
		first, count, why := addressRange(text)
		if got := fmt.Sprintf("%s %d %s", first, count, why); got != wanted {
			t.Errorf("%s: %s", text, got)
		}
	}
	if first, count, why := addressRange("::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"); count <= vipsMax {
		t.Error(first, count, why)
	}
}

// Whatever is read ends, and each note can be shown.
func FuzzRead(f *testing.F) {
	folders, _ := filepath.Glob("../testdata/import/*/keepalived.conf")
	for _, file := range folders {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	for _, seed := range []string{
		"$A= \\\n $A $A \\\n$A\n$A\n${A}", "@ @^\n@^x y {", "a { { }", "}", "\"", "a \"\\x\\c\\7777\\", "include f", "include *", "~SEQ(a,1,2) b",
		"virtual_server_group g { 10.0.0.0/8 80\n ::/0 80\n 1.1.1.1-0 x\n::1-ffff\n}\nvirtual_server group g { lb_kind TUN\n lb_algo fo\n real_server ::5 { weight 0 } }",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		result, err := Import("f", "here", inMemory(map[string]string{"f": text}))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("it does not say where: %v", err)
			}
			return
		}
		for _, line := range result.Report() {
			if strings.ContainsAny(line, "\n\r\x00\x1b") || !utf8.ValidString(line) {
				t.Errorf("%q", line)
			}
		}
		_, _ = result.Comments()
	})
}
