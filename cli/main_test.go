package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/commandline"
)

func Test_mistakes_on_the_command_line_are_told(t *testing.T) {
	for _, one := range []struct{ line, says string }{
		{"config chek", `unknown command "chek" for "guideway config": did you mean check?`},
		{"config zzz", "give one of apply, backend, cancel, check, compile, diff, history, import, plan, promote, rollback, seed"},
		{"konfig", `unknown command "konfig"`},
		{"config", "give one of apply, backend, cancel, check, compile, diff, history, import, plan, promote, rollback, seed"},
		{"config check", "give a config file"},
		{"version extra", `"extra" is too much`},
	} {
		_, _, err := guideway(t, strings.Fields(one.line)...)
		if err == nil || !strings.Contains(err.Error(), one.says) {
			t.Errorf("%s: error is %v, wanted %q", one.line, err, one.says)
		}
		if commandline.ExitCode(err) != commandline.ExitUsage {
			t.Errorf("%s: ends with %d", one.line, commandline.ExitCode(err))
		}
	}
	_, _, err := guideway(t, "config", "check", "no-such-file.yaml")
	if err == nil || !strings.Contains(err.Error(), "no-such-file.yaml: no such file") || commandline.ExitCode(err) != commandline.ExitFailed {
		t.Errorf("a missing file: %v", err)
	}
}

// Words in back quotes stand for the value in the help; a sentence there would
// be printed twice.
func Test_no_help_is_mangled_by_quotes(t *testing.T) {
	var visit func(*cobra.Command)
	visit = func(command *cobra.Command) {
		command.Flags().VisitAll(func(flag *pflag.Flag) {
			if name, _ := pflag.UnquoteUsage(flag); strings.Contains(name, " ") {
				t.Errorf("%s --%s takes a %q", command.CommandPath(), flag.Name, name)
			}
		})
		for _, below := range command.Commands() {
			visit(below)
		}
	}
	visit(root())
}

func Test_every_command_says_what_it_is_for(t *testing.T) {
	for _, command := range root().Commands() {
		if command.Short == "" {
			t.Errorf("%s has no short description", command.CommandPath())
		}
	}
	stdout, _, err := guideway(t, "completion", "bash")
	if err != nil || !strings.Contains(stdout, "guideway") {
		t.Errorf("completion: %v", err)
	}
}

func Test_shells_complete_names(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, nil)
	for _, c := range []struct{ line, want string }{
		{"drain backend --run-dir DIR", "web-1\nweb-2\n"}, {"undrain backend --run-dir DIR", "web-1\nweb-2\n"},
		{"drain service --run-dir DIR", "web\n"}, {"undrain service --run-dir DIR", "web\n"},
		{"show backends --run-dir DIR", "web-1\nweb-2\n"}, {"capture --run-dir DIR --service", "web\n"},
	} {
		line := strings.Fields("__complete " + strings.ReplaceAll(c.line, "DIR", runDir))
		out, _, err := guideway(t, append(line, "")...)
		if err != nil || !strings.HasPrefix(out, c.want) {
			t.Errorf("%s: %v %q", c.line, err, out)
		}
	}
}

// As packages have them; what is hidden has none.
func Test_each_command_has_a_man_page(t *testing.T) {
	folder := t.TempDir()
	if _, _, err := guideway(t, "pages", folder); err != nil {
		t.Fatal(err)
	}
	var visit func(*cobra.Command)
	visit = func(command *cobra.Command) {
		page := filepath.Join(folder, "man/man1", strings.ReplaceAll(command.CommandPath(), " ", "-")+".1")
		text, err := os.ReadFile(page)
		if command.Hidden != errors.Is(err, fs.ErrNotExist) || !command.Hidden && !strings.Contains(string(text), command.CommandPath()) {
			t.Errorf("%s: %v", page, err)
		}
		for _, below := range command.Commands() {
			visit(below)
		}
	}
	visit(root())
	for _, file := range []string{"bash-completion/completions/guideway.bash", "fish/vendor_completions.d/guideway.fish", "zsh/site-functions/_guideway"} {
		if text, err := os.ReadFile(filepath.Join(folder, file)); err != nil || !strings.Contains(string(text), "guideway") {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func guideway(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return clitest.Execute(t, root(), args...)
}
