package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/config/keepalived"
	"github.com/guideway/guideway/controller/config"
)

var importFlags = []string{"--machine", "lb-1", "--address", "10.0.0.1,2001:db8::1"}

// Configurations for keepalived and what they become, with all that is said of it.
// UPDATE_GOLDEN=1 rewrites that.
func Test_each_imported_config_is_as_reviewed_and_good(t *testing.T) {
	home, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	folders, _ := filepath.Glob("testdata/import/*")
	if len(folders) == 0 {
		t.Fatal("no configurations to import")
	}
	for _, folder := range folders {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			t.Chdir(filepath.Join(home, folder))
			stdout, stderr, err := guideway(t, append(importFlags, "config", "import", "keepalived.conf")...)
			if !errors.Is(err, commandline.ErrLeftOut) {
				t.Errorf("it ends with %v", err)
			}
			stdout, report := ofNoMachine(stdout), ofNoMachine(stderr)
			if strings.Contains(stdout+report, "not-to-be-shown") {
				t.Error("a password is shown")
			}
			for file, text := range map[string]string{"guideway.yaml": stdout, "report.txt": report} {
				if os.Getenv("UPDATE_GOLDEN") != "" {
					if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				if reviewed, err := os.ReadFile(file); err != nil || string(reviewed) != text {
					t.Errorf("%s is not what is written (%v): `make golden`, and read the difference\n%s", file, err, text)
				}
			}
			if _, err := config.Load("guideway.yaml"); err != nil {
				t.Error(err)
			}
		})
	}
}

// ofNoMachine has neither the secret of an installation, nor the warning that there is none.
func ofNoMachine(text string) string {
	return regexp.MustCompile(`, secret_file: [^}]*|(?m)^warning: .*cluster.secret_file.*\n|; \d+ warnings?`).ReplaceAllString(text, "")
}

func Test_the_page_for_those_who_come_from_keepalived_shows_what_is_written(t *testing.T) {
	page, err := os.ReadFile("../../docs/from-keepalived.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```")
	if len(blocks) < 4 {
		t.Fatal("the page has no example")
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("keepalived.conf", []byte(strings.TrimPrefix(blocks[1], "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, _, err := guideway(t, "config", "import", "keepalived.conf", "--machine", "lb-1", "--address", "10.0.0.1", "--interface", "eth1")
	if shown := strings.TrimPrefix(blocks[3], "yml\n"); !errors.Is(err, commandline.ErrLeftOut) || ofNoMachine(stdout) != shown {
		t.Errorf("%v\n%s", err, stdout)
	}
}

func Test_an_import_writes_a_file_that_is_new_and_says_what_it_lacks(t *testing.T) {
	folder := t.TempDir()
	conf, file := filepath.Join(folder, "keepalived.conf"), filepath.Join(folder, "new", "guideway.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("virtual_server 203.0.113.1 80 {\n lb_kind TUN\n real_server 127.1.2.3 80 { }\n real_server 10.1.0.1 80 { }\n}\n")
	_, stderr, err := guideway(t, append(importFlags, "config", "import", conf, "-o", file)...)
	if !errors.Is(err, commandline.ErrLeftOut) || !strings.Contains(stderr, "left out: "+conf+":3: real_server 127.1.2.3 80: is 127.1.2.3, a loopback address") {
		t.Errorf("%v %s", err, stderr)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v %v", info, err)
	}
	if _, _, err := guideway(t, append(importFlags, "config", "import", conf, "-o", file)...); err == nil || !strings.Contains(err.Error(), "is there already, and stays as it is: give another --output") {
		t.Error(err)
	}
	// Nothing is left out.
	write("virtual_server 203.0.113.1 80 {\n lb_kind TUN\n real_server 10.1.0.1 80 { }\n}\n")
	if stdout, stderr, err := guideway(t, append(importFlags, "config", "import", conf, "--interface", "eth1")...); err != nil || !strings.Contains(stdout, "forwarder: {interfaces: [{name: eth1}]}") {
		t.Errorf("%v %s", err, stderr)
	}
	// Nothing is left.
	write("virtual_server 203.0.113.1 80 {\n real_server 10.1.0.1 80 { }\n}\n")
	stdout, stderr, err := guideway(t, append(importFlags, "config", "import", conf)...)
	if commandline.ExitCode(err) != commandline.ExitFailed || !strings.Contains(err.Error(), "no virtual_server that could be converted") || stdout != "" || !strings.Contains(stderr, "lb_kind NAT") {
		t.Errorf("%v %s", err, stderr)
	}
}

func Test_a_machine_has_an_address_of_each_family_that_its_backends_have(t *testing.T) {
	const here, there6 = "127.0.0.2", "2001:db8:ffff::1"
	for _, c := range []struct{ given, backends, vips, addresses, missing []string }{
		{given: []string{"10.0.0.1"}, backends: []string{"10.1.0.1"}, addresses: []string{"10.0.0.1"}},
		{given: []string{"10.0.0.1"}, backends: []string{"nothing"}, addresses: []string{"10.0.0.1"}},
		{backends: []string{here}, addresses: []string{"127.0.0.1"}},
		// The source is a VIP or a backend itself.
		{backends: []string{here, "192.0.2.1"}, vips: []string{"127.0.0.1"}, addresses: []string{"192.0.2.2"}, missing: []string{"192.0.2.2"}},
		{given: []string{"2001:db8::7"}, backends: []string{there6}, addresses: []string{"2001:db8::7"}},
	} {
		addresses, missing := machineAddresses(c.given, c.backends, c.vips)
		if !slices.Equal(addresses, c.addresses) || !slices.Equal(missing, c.missing) {
			t.Errorf("%+v: %v, missing %v", c, addresses, missing)
		}
	}
}

// Whatever is imported, what is written is a good config with each note in it.
func FuzzImport(f *testing.F) {
	folders, _ := filepath.Glob("testdata/import/*/keepalived.conf")
	for _, file := range folders {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, seed := range []string{
		"$A= \\\n $A $A \\\n$A\n$A\n${A}", "@ @^\n@^x y {", "a { { }", "}", "\"", "a \"\\x\\c\\7777\\", "include f", "include *", "~SEQ(a,1,2) b",
		"virtual_server \"1.1.1.1\\n- evil\" \"8:0\" {\nlb_kind DR\nreal_server ::1%\x1b[31m 80 { }\nreal_server \xff 80 { weight 1 }\nreal_server 10.0.0.9 { SMTP_CHECK { } } }",
		"virtual_server_group g { 10.0.0.0/8 80\n ::/0 80\n 1.1.1.1-0 x\n::1-f\n}\nvirtual_server group g { lb_kind TUN\n lb_algo fo\n real_server ::5 { weight 0 } }",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		files := keepalived.Files{
			Read: func(path string) ([]byte, error) {
				if path != "f" {
					return nil, fs.ErrNotExist
				}
				return data, nil
			},
			Glob: func(string) ([]string, error) { return nil, nil },
		}
		result, err := keepalived.Import("f", "lb-1", files)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("it does not say where: %v", err)
			}
			return
		}
		vips := 0
		for _, service := range result.Config.Services {
			vips += len(service.Vips)
		}
		if vips > 1000 { // a range: what is slow then is the check of the config
			return
		}
		importing{machine: "lb-1", addresses: "10.255.255.1,2001:db8::1", device: "eth1"}.addMachine(result)
		if err := result.Settle(config.ReadFromDisk); err != nil {
			t.Fatal(err)
		}
		if len(result.Config.Services) == 0 {
			return
		}
		if report := strings.Join(result.Report(), ""); strings.ContainsAny(report, "\n\r\x00\x1b") {
			t.Errorf("%q", report)
		}
		text := importedText("f", result)
		if _, err := config.Parse([]config.Source{{Name: "f", Data: []byte(text)}}, config.ReadFromDisk); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	})
}
