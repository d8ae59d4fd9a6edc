package members

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/controller/config"
)

func textOf(members []config.PoolMember) string {
	var words []string
	for _, m := range members {
		word := m.Address.String()
		if m.Name != word {
			word = m.Name + "=" + word
		}
		if m.Weight != 1 {
			word += fmt.Sprint("*", m.Weight)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func TestTargetsBecomeMembers(t *testing.T) {
	for what, one := range map[string]struct{ text, want string }{
		"none":            {`[]`, ""},
		"JSON":            {`[{"targets": ["10.1.0.1:80", "10.1.0.2:80"], "labels": {"__meta_x": "y", "job": "web"}}]`, "10.1.0.1 10.1.0.2"},
		"YAML":            {"- targets:\n  - 10.1.0.1:80\n  - '[2001:db8::1]:80'\n", "10.1.0.1 2001:db8::1"},
		"no port":         {`[{"targets": ["10.1.0.1", "2001:db8::1"]}]`, "10.1.0.1 2001:db8::1"},
		"name and weight": {`[{"targets": ["10.1.0.1:80"], "labels": {"name": "web-1", "weight": "3"}}]`, "web-1=10.1.0.1*3"},
		"a bare number":   {"- {targets: [10.1.0.1], labels: {weight: 0}}", "10.1.0.1*0"},
		"several ports":   {`[{"targets": ["10.1.0.1:80", "10.1.0.1:443"]}, {"targets": ["10.1.0.1"]}]`, "10.1.0.1"},
		"an alias":        {"- {targets: &a [10.1.0.1]}\n- {targets: *a}\n", "10.1.0.1"},
	} {
		got, err := parseTargets("web.json", []byte(one.text), 0)
		if err != nil || textOf(got) != one.want {
			t.Errorf("%s: %q, %v", what, textOf(got), err)
		}
	}
}

func TestABadFileIsToldByItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "web.json is empty: for no members write `[]`",
		"[{\"targets\": [\n\"10.1":     "web.json:2:",
		"{}":                           "web.json:1: there is no list here",
		"[1]":                          "web.json:1: there are no fields here",
		"[{}]":                         "web.json:1: the group has no `targets`",
		"- target: [10.1.0.1]":         "web.json:1: there is no field \"target\"",
		"- targets: [[10.1.0.1]]":      "web.json:1: there is no target here",
		"- targets:\n  - web-1:80":     "web.json:2: target \"web-1:80\": the address is \"web-1:80\": give an IPv4 or IPv6 address",
		"- targets: [127.0.0.1:80]":    "a loopback address",
		"- targets: ['10.1.0.1:8080']": "web.json:1: target \"10.1.0.1:8080\": it has port 8080, and the pool's `port` is 80",
		"- {targets: [10.1.0.1, 10.1.0.2], labels: {name: a}}":                                                "the label `name` and 2 targets",
		"- {targets: [10.1.0.1], labels: {name: a}}\n- {targets: [10.1.0.2], labels: {name: a}}":              "web.json:2: target \"10.1.0.2\": a is listed twice",
		"- {targets: [10.1.0.1]}\n- {targets: [10.1.0.1], labels: {weight: 2}}":                               "with address 10.1.0.1, weight 1 and address 10.1.0.1, weight 2",
		"- {targets: [10.1.0.1], labels: {weight: many}}":                                                     "the weight is \"many\"",
		"- {targets: [10.1.0.1], targets: []}":                                                                "\"targets\" is given twice",
		"- {targets: [10.1.0.1], labels: [a]}":                                                                "there are no fields here: give labels",
		"- targets: [" + strings.Repeat("10.1.0.1, ", config.MembersMax+1) + "]":                              "more than 10000 targets",
		"- targets: &a [" + strings.Repeat("10.1.0.1, ", 5000) + "]\n" + strings.Repeat("- targets: *a\n", 2): "more than 10000 targets",
		strings.Repeat("[", 200_001):                                                                          "is it the right file?",
		strings.Repeat("[", 100_000):                                                                          "this is not YAML",
	} {
		if _, err := parseTargets("web.json", []byte(text), 80); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %.300v, want %q", text, err, want)
		}
	}
}

func TestAFileOfTenThousandTargetsIsRead(t *testing.T) {
	var b strings.Builder
	for n := range config.MembersMax {
		fmt.Fprintf(&b, "- targets:\n  - 10.1.%d.%d:80\n  labels:\n    name: web-%d\n    weight: '5'\n", n>>8, n&255, n)
	}
	if got, err := parseTargets("web.yaml", []byte(b.String()), 80); err != nil || len(got) != config.MembersMax {
		t.Errorf("%d members, %v", len(got), err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyARegularFileOfSomeSizeIsRead(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := unix.Mkfifo(in("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(in("loop"), in("loop")); err != nil {
		t.Fatal(err)
	}
	write(t, in("huge"), strings.Repeat(" ", 1<<20+1))
	write(t, in("target"), "[{targets: [10.1.0.1]}]")
	if err := os.Symlink(in("target"), in("link")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"fifo": "no regular file", "loop": "too many levels of symbolic links", "huge": "more than 1 MiB",
		"missing": "no such file", ".": "no regular file", "link": "",
	} {
		set, _, err := (&file{path: in(name)}).read(t.Context())
		if want == "" && (err != nil || textOf(set) != "10.1.0.1") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %v, want %q", name, set, err, want)
		}
	}
}

// A writer that does not rename is seen half-way; time goes as fast as the test does.
func TestAChangeCountsWhenItIsThereTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.json")
	write(t, path, `[{"targets": ["10.1.0.1", "10.1.0.2"]}]`)
	synctest.Test(t, func(t *testing.T) {
		f := &file{path: path}
		if set, _, err := f.read(t.Context()); err != nil || textOf(set) != "10.1.0.1 10.1.0.2" {
			t.Fatal(set, err)
		}
		write(t, path, `[]`) // in part
		time.AfterFunc(fileInterval/2, func() { write(t, path, `[{"targets": ["10.1.0.3"]}]`) })
		if set, _, err := f.read(t.Context()); err != nil || textOf(set) != "10.1.0.3" {
			t.Error(textOf(set), err)
		}
		for n := range 10 {
			time.AfterFunc(time.Duration(n)*fileInterval, func() { write(t, path, fmt.Sprintf(`[{"targets": ["10.1.0.%d"]}]`, n+10)) })
		}
		time.Sleep(fileInterval / 2)
		if _, _, err := f.read(t.Context()); err == nil || !strings.Contains(err.Error(), "differs each time") {
			t.Error(err)
		}
	})
}
