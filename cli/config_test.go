package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// execute a command line.
func execute(args ...string) (stdout, stderr string, err error) {
	var out, errOut bytes.Buffer
	command := root()
	command.SetArgs(args)
	command.SetOut(&out)
	command.SetErr(&errOut)
	err = command.Execute()
	return out.String(), errOut.String(), err
}

const golden = "../controller/compile/testdata/golden/"

func Test_compile_prints_the_plan_byte_for_byte_and_warnings_apart(t *testing.T) {
	folders, err := filepath.Glob(golden + "*/plan.json")
	if err != nil || len(folders) == 0 {
		t.Fatalf("no golden plans: %v", err)
	}
	for _, file := range folders {
		wanted, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 { // the same each time: nothing may depend on a map's order
			stdout, stderr, err := execute("config", "compile", filepath.Join(filepath.Dir(file), "config.yaml"))
			if err != nil || stdout != string(wanted) {
				t.Fatalf("%s: error %v, plan\n%s", file, err, stdout)
			}
			if !strings.Contains(stderr, "warning: ") {
				t.Errorf("%s: no warning on standard error: %q", file, stderr)
			}
		}
	}
}

func Test_check_sums_up_a_good_config(t *testing.T) {
	stdout, stderr, err := execute("config", "check", golden+"a-first-try/config.yaml")
	if err != nil || stdout != "config is good: 1 service, 1 vip, 2 backends; 1 warning\n" {
		t.Errorf("error %v, said %q", err, stdout)
	}
	if !strings.HasPrefix(stderr, "warning: ") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("warnings are %q", stderr)
	}
}

func Test_check_and_compile_refuse_a_bad_config_with_all_errors_and_no_output(t *testing.T) {
	for _, verb := range []string{"check", "compile"} {
		stdout, stderr, err := execute("config", verb, "../controller/config/testdata/bad/ports.yaml")
		if !errors.Is(err, errReported) || stdout != "" {
			t.Errorf("%s: error %v, said %q", verb, err, stdout)
		}
		if strings.Count(stderr, "error: ") != 8 || strings.Count(stderr, "\nwarning: ") != 1 || !strings.HasSuffix(stderr, "\n8 errors, 1 warning\n") {
			t.Errorf("%s: errors are\n%s", verb, stderr)
		}
	}
}

func Test_mistakes_on_the_command_line_are_told(t *testing.T) {
	for _, one := range []struct{ line, says string }{
		{"config chek", `unknown command "chek" for "guideway config": did you mean check?`},
		{"config zzz", "give one of apply, backend, cancel, check, compile, diff, history, plan, promote, rollback, seed"},
		{"konfig", `unknown command "konfig"`},
		{"config", "give one of apply, backend, cancel, check, compile, diff, history, plan, promote, rollback, seed"},
		{"config check", "give a config file"},
		{"version extra", `"extra" is too much`},
	} {
		_, _, err := execute(strings.Fields(one.line)...)
		if err == nil || !strings.Contains(err.Error(), one.says) {
			t.Errorf("%s: error is %v, wanted %q", one.line, err, one.says)
		}
		if exitCode(err) != exitUsage {
			t.Errorf("%s: ends with %d", one.line, exitCode(err))
		}
	}
	_, _, err := execute("config", "check", "no-such-file.yaml")
	if err == nil || !strings.Contains(err.Error(), "no-such-file.yaml: no such file") || exitCode(err) != exitFailed {
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
	stdout, _, err := execute("completion", "bash")
	if err != nil || !strings.Contains(stdout, "guideway") {
		t.Errorf("completion: %v", err)
	}
}
