package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guideway/guideway/cli/commandline"
)

const golden = "../../controller/compile/testdata/golden/"

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
			stdout, stderr, err := guideway(t, "config", "compile", filepath.Join(filepath.Dir(file), "config.yaml"))
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
	stdout, stderr, err := guideway(t, "config", "check", golden+"a-first-try/config.yaml")
	if err != nil || stdout != "config is good: 1 service, 1 vip, 2 backends; 1 warning\n" {
		t.Errorf("error %v, said %q", err, stdout)
	}
	if !strings.HasPrefix(stderr, "warning: ") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("warnings are %q", stderr)
	}
}

func Test_check_and_compile_refuse_a_bad_config_with_all_errors_and_no_output(t *testing.T) {
	for _, verb := range []string{"check", "compile"} {
		stdout, stderr, err := guideway(t, "config", verb, "../../controller/config/testdata/bad/ports.yaml")
		if !errors.Is(err, commandline.ErrReported) || stdout != "" {
			t.Errorf("%s: error %v, said %q", verb, err, stdout)
		}
		if strings.Count(stderr, "error: ") != 8 || strings.Count(stderr, "\nwarning: ") != 1 || !strings.HasSuffix(stderr, "\n8 errors, 1 warning\n") {
			t.Errorf("%s: errors are\n%s", verb, stderr)
		}
	}
}
