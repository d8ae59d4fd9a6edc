package config

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"time"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// want marks the lines, at the end of a test file, that say what Parse must
// report: all of it, word for word. UPDATE_GOLDEN=1 rewrites them.
const want = "# want: "

func Test_each_bad_config_gets_all_its_errors_with_place_and_cure(t *testing.T) {
	forEachFile(t, "testdata/bad", func(t *testing.T, source Source) Problems {
		_, err := Parse([]Source{source}, groupReadable)
		var problems Problems
		if !errors.As(err, &problems) {
			t.Fatalf("Parse returned %v, not Problems", err)
		}
		return problems
	})
}

func Test_each_doubtful_config_gets_its_warnings(t *testing.T) {
	forEachFile(t, "testdata/warned", func(t *testing.T, source Source) Problems {
		c, err := Parse([]Source{source}, groupReadable)
		if err != nil {
			t.Fatal(err)
		}
		return c.Warnings
	})
}

func forEachFile(t *testing.T, folder string, parse func(*testing.T, Source) Problems) {
	files, err := filepath.Glob(folder + "/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", folder, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			body, wanted := cutWanted(string(data))
			got := lines(file, parse(t, Source{Name: file, Data: []byte(body)}))
			if os.Getenv("UPDATE_GOLDEN") != "" {
				if err := os.WriteFile(file, []byte(body+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got == "" {
				t.Error("nothing was reported")
			}
			if got != wanted {
				t.Errorf("reported:\n%swanted:\n%s", got, wanted)
			}
		})
	}
}

func cutWanted(text string) (body, wanted string) {
	if i := strings.Index(text, want); i >= 0 {
		return text[:i], text[i:]
	}
	return text, ""
}

func lines(file string, problems Problems) string {
	var b strings.Builder
	for _, problem := range problems {
		text := strings.ReplaceAll(problem.String(), file, "FILE")
		b.WriteString(want + strings.ReplaceAll(text, filepath.Dir(file)+"/", "DIR/") + "\n")
	}
	return b.String()
}

// groupReadable reads with the mode that a secret should have, which a
// checkout does not keep.
func groupReadable(path string) ([]byte, fs.FileMode, error) {
	data, err := os.ReadFile(path)
	return data, 0o640, err
}

// Each mistake is told in its own line, whatever the library notices first.
func Test_errors_of_syntax_stand_where_the_mistake_is(t *testing.T) {
	const above = "cluster: {name: c1}\nmachine: {name: lb-1, addresses: [10.0.0.1]}\n"
	const below = "pools:\n- {name: web, backends: [{address: 10.1.0.11}]}\nhealth_checks: [{name: t, tcp: {port: 80}}]\n"
	for _, one := range []struct{ name, text, at, says string }{
		{"a key indented too far", "services:\n- name: web\n  vips: [{address: 203.0.113.10}]\n   pools: [web]\n", "6:4", "indented"},
		{"a key indented too little", "services:\n- name: web\n  vips: [{address: 203.0.113.10}]\n pools: [web]\n", "6:2", "indented"},
		{"no ] before the next line", "services:\n- name: web\n  vips: [{address: 203.0.113.10}\n  pools: [web]\n", "6:3", "`]` is missing before this place; the list in `[ ]` begins at line 5, column 9"},
		{"no } before ]", "services:\n- name: web\n  vips: [{address: 203.0.113.10, ports: [80]]\n", "5:45", "`}` is missing"},
		{"no ] at the end", "services: []\nspare: [{name: web}", "4:8", "the list in `[ ]` begins at line 4"},
		{"an ] too many", "services: []]\n", "3:13", "closed twice"},
		{"a tab", "services:\n- name: web\n\tpools: [web]\n", "5:1", "never by tabs"},
		{"no : behind a name", "services\n- name: web\n", "4:1", "the line before has no `:`"},
		{"no space behind :", "services:\n- name:web\n  pools: [web]\n", "5:8", "with the space"},
		{"a : in a value", "services:\n- name: web: x\n", "4:12", "needs quotes"},
		{"an open quote", "services:\n- name: \"web\n  pools: [web]\n", "4:9", "not closed"},
		{"an unknown alias", "services: *s\n", "3:11", "unknown anchor"},
		{"a reserved letter", "services:\n- name: @web\n", "4:9", "needs quotes"},
	} {
		t.Run(one.name, func(t *testing.T) {
			text := above + one.text
			if one.name != "no ] at the end" {
				text += below
			}
			_, err := Parse([]Source{{Name: "t.yaml", Data: []byte(text)}}, noFiles)
			if err == nil || !strings.HasPrefix(err.Error(), "t.yaml:"+one.at+": this is not YAML: ") || !strings.Contains(err.Error(), one.says) {
				t.Errorf("said %v, wanted %s and %q", err, one.at, one.says)
			}
		})
	}
}

func noFiles(string) ([]byte, fs.FileMode, error) { return nil, 0, fs.ErrNotExist }

const small = `
machine: {addresses: [10.0.0.1, "2001:db8:0:1::1"]}
services:
- {name: web, vips: [{address: 203.0.113.10, ports: [443, "8000-8100", 80, 81], protocol: tcp}], pools: [web]}
pools:
- {name: web, backends: [{name: b, address: 10.1.0.11, weight: 0}, {address: "2001:DB8::A"}]}
`

func parseText(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse([]Source{{Name: "t.yaml", Data: []byte(text)}}, noFiles)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func Test_what_is_left_out_gets_its_documented_default(t *testing.T) {
	c := parseText(t, small)
	web := c.Services[0]
	for _, one := range []struct{ what, got, wanted any }{
		{"cluster.name", c.Cluster.Name, "default"},
		{"key id", c.Cluster.KeyID, KeyDerived},
		{"machine.name", c.Machine.Name, "lb"},
		{"machine.shard", c.Machine.Shard, "default"},
		{"machine.probe_ports", c.Machine.ProbePorts, PortRange{20000, 32767}},
		{"shard", web.Shard, "default"},
		{"mode", web.Mode, ModeStateful},
		{"affinity", web.Affinity, AffinityFlow},
		{"encap", web.Encap, EncapGRE},
		{"table_size", web.TableSize, uint32(65537)},
		{"idle_timeouts", web.IdleTimeouts, IdleTimeouts{15 * time.Minute, 30 * time.Second, 2 * time.Minute, time.Minute}},
		{"connections_quota", web.ConnectionsQuota, uint64(0)},
		{"on_down", web.OnDown, OnDownMove},
		{"when_none", web.WhenNone, WhenNoneWithdraw},
		{"fragments", web.Fragments, FragmentsAuto},
		{"dscp", web.DSCP == nil, true},
		{"unmatched", web.Unmatched, UnmatchedDrop},
		{"backends_min", web.BackendsMin, 1},
		{"backup_pools", len(web.BackupPools), 0},
		{"ejection_max", c.Pools[0].EjectionMax, uint32(100)},
		{"damping", c.Pools[0].Damping == nil, true},
		{"slow_start", c.Pools[0].SlowStart, time.Duration(0)},
		{"backend name", c.Pools[0].Backends[1].Name, "2001:db8::a"},
		{"backend weight", c.Pools[0].Backends[1].Weight, uint32(1)},
		{"bgp", c.BGP == nil, true},
		{"forwarder", c.Forwarder == nil, true},
		{"metrics.listen", c.Metrics.Listen, "127.0.0.1:9470"},
	} {
		if one.got != one.wanted {
			t.Errorf("%s is %v, wanted %v", one.what, one.got, one.wanted)
		}
	}
}

func Test_ports_are_sorted_and_joined_where_they_touch(t *testing.T) {
	got := parseText(t, small).Services[0].VIPs[0].Ports
	wanted := []PortRange{{80, 81}, {443, 443}, {8000, 8100}}
	if !slices.Equal(got, wanted) {
		t.Errorf("ports are %v, wanted %v", got, wanted)
	}
}

func Test_members_do_not_depend_on_the_order_of_pools_and_backends(t *testing.T) {
	shuffle := rand.New(rand.NewPCG(1, 2))
	var first []string
	for range 50 {
		var backends, pools []string
		for i := range 20 {
			backends = append(backends, fmt.Sprintf("{name: b%d, address: 10.1.0.%d, weight: %d}", i, i+1, i))
		}
		shuffle.Shuffle(len(backends), func(i, j int) { backends[i], backends[j] = backends[j], backends[i] })
		names := []string{"a", "b", "c"}
		for i, name := range names {
			// Overlapping parts of the backends: some are reached twice.
			part := strings.Join(backends[i*5:i*5+10], ", ")
			pools = append(pools, fmt.Sprintf("- {name: %s, backends: [%s]}\n", name, part))
		}
		shuffle.Shuffle(3, func(i, j int) { pools[i], pools[j] = pools[j], pools[i]; names[i], names[j] = names[j], names[i] })
		c := parseText(t, "machine: {addresses: [10.0.0.1]}\nservices: [{name: s, vips: [{address: 203.0.113.1, protocol: tcp}], pools: ["+
			strings.Join(names, ", ")+"]}]\npools:\n"+strings.Join(pools, ""))
		var got []string
		for _, member := range c.Services[0].Members {
			got = append(got, fmt.Sprintf("%s %s %d", member.Backend.Name, member.Backend.Address, member.Weight))
		}
		if first == nil {
			first = got
		}
		if len(got) != 20 || !slices.Equal(got, first) || !slices.IsSorted(got) {
			t.Fatalf("members are\n%v\nwanted\n%v", got, first)
		}
	}
}

func Test_a_config_may_be_spread_over_files_but_a_key_not(t *testing.T) {
	half := strings.Index(small, "\npools:")
	sources := []Source{{Name: "a.yaml", Data: []byte(small[:half])}, {Name: "b.yaml", Data: []byte(small[half:])}}
	if _, err := Parse(sources, noFiles); err != nil {
		t.Fatal(err)
	}
	sources = append(sources, Source{Name: "c.yaml", Data: []byte("# more\nmachine: {name: x}\n")})
	_, err := Parse(sources, noFiles)
	if wanted := "c.yaml:2:1: machine: is already given at a.yaml:2: keep one of the two"; err == nil || err.Error() != wanted {
		t.Errorf("error is\n%v\nwanted\n%s", err, wanted)
	}
}

func Test_json_is_read_with_the_same_places(t *testing.T) {
	c, err := Parse([]Source{{Name: "c.json", Data: []byte(`{
  "machine": {"addresses": ["10.0.0.1"]},
  "services": [{"name": "web", "vips": [{"address": "203.0.113.10", "ports": [80], "protocol": "tcp"}], "pools": ["web"]}],
  "pools": [{"name": "web", "backends": [{"address": "10.1.0.11", "weight": 0}]}]
}`)}}, noFiles)
	if err != nil || c.Services[0].Members[0].Weight != 0 {
		t.Fatalf("config is %v, error %v", c, err)
	}
	_, err = Parse([]Source{{Name: "c.json", Data: []byte("{\n \"machine\": {\"addresses\": [\"10.0.0.1\"]},\n \"pools\": []\n}")}}, noFiles)
	if err == nil || !strings.Contains(err.Error(), "services: is missing") {
		t.Errorf("error is %v", err)
	}
}

func Test_a_directory_counts_its_config_files_in_order_of_name(t *testing.T) {
	directory := t.TempDir()
	half := strings.Index(small, "\npools:")
	for name, text := range map[string]string{
		"20-pools.yml": small[half:], "10-services.yaml": small[:half],
		"notes.txt": "not: {yaml", ".hidden.yaml": "machine: {}", "30-more.json": `{"metrics": {"listen": "[::]:1"}}`,
	} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Load(directory)
	if err != nil || c.Metrics.Listen != "[::]:1" {
		t.Fatalf("config is %v, error %v", c, err)
	}
	if _, err := Load(directory, filepath.Join(directory, "20-pools.yml")); err == nil || !strings.Contains(err.Error(), "is given twice") {
		t.Errorf("a file given twice: %v", err)
	}
	if _, err := Load(t.TempDir()); err == nil || !strings.Contains(err.Error(), "holds no *.yaml") {
		t.Errorf("an empty directory: %v", err)
	}
}

func Test_secrets_get_an_id_that_white_space_at_the_end_does_not_change(t *testing.T) {
	// printf 'guideway key id\0correct horse battery' | sha256sum
	const wanted = "e86eab1a494c64e3"
	for _, secret := range []string{"correct horse battery", "correct horse battery\n", "correct horse battery \t\r\n"} {
		if got := KeyID([]byte(secret)); got != wanted {
			t.Errorf("id of %q is %s, wanted %s", secret, got, wanted)
		}
	}
	if KeyID([]byte(" correct horse battery")) == wanted {
		t.Error("white space at the beginning is part of a secret")
	}
	for _, last := range []string{"\v", "\x00", "\u0085", "\u00a0"} {
		if KeyID([]byte("correct horse battery"+last)) == wanted {
			t.Errorf("%q at the end is part of a secret: the forwarder keeps it", last)
		}
	}
}

func Test_secret_files_are_found_beside_their_config_and_judged(t *testing.T) {
	for _, one := range []struct {
		name string
		mode fs.FileMode
		err  error
		says string
	}{
		{"readable by all", 0o644, nil, "may be read by everybody (mode 0644)"},
		{"readable by group", 0o640, nil, ""},
		{"forbidden", 0, fs.ErrPermission, "chown root:guideway /etc/guideway/c.key"},
		{"broken", 0, errors.New("input/output error"), "cannot be read: input/output error"},
	} {
		t.Run(one.name, func(t *testing.T) {
			c, err := Parse([]Source{{Name: "/etc/guideway/config.yaml", Data: []byte(small + "cluster: {secret_file: c.key}")}},
				func(path string) ([]byte, fs.FileMode, error) {
					if path != "/etc/guideway/c.key" {
						t.Errorf("reads %s", path)
					}
					return []byte("0123456789abcdef\n"), one.mode, one.err
				})
			said := ""
			if err != nil {
				said = err.Error()
			} else if len(c.Warnings) > 0 {
				said = c.Warnings.Error()
			}
			if (one.says == "") != (said == "") || !strings.Contains(said, one.says) {
				t.Errorf("said %q, wanted %q", said, one.says)
			}
		})
	}
}

func Test_a_forbidden_password_file_is_the_speakers(t *testing.T) {
	forbidden := func(string) ([]byte, fs.FileMode, error) { return nil, 0, fs.ErrPermission }
	text := small + "bgp: {asn: 1, neighbors: [{address: 10.0.0.254, asn: 2, password_file: /etc/guideway/bgp.key}]}"
	_, err := Parse([]Source{{Name: "/etc/guideway/config.yaml", Data: []byte(text)}}, forbidden)
	if err == nil || !strings.Contains(err.Error(), "chown root:guideway-speaker /etc/guideway/bgp.key") {
		t.Errorf("said %v", err)
	}
}

// A FIFO that nobody writes to: to open it would wait for ever.
func Test_a_named_file_that_is_a_fifo_is_refused_at_once(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"bgp.password", "cluster.key"} {
		if err := unix.Mkfifo(filepath.Join(folder, name), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(folder, "guideway.yaml")
	text := "cluster: {secret_file: cluster.key}\nmachine: {addresses: [10.0.0.1]}\n" +
		"bgp: {asn: 64512, neighbors: [{address: 10.0.0.254, asn: 64513, password_file: bgp.password}]}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(file)
	for _, name := range []string{"bgp.password", "cluster.key"} {
		if want := name + ": this is no regular file: give one"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: wanted %q", err, want)
		}
	}
}

func Test_a_router_id_is_the_ipv4_address_or_made_from_the_name(t *testing.T) {
	bgp := "bgp: {asn: 1, neighbors: [{address: \"2001:db8::fe\", asn: 2}]}\n"
	if got := parseText(t, small+bgp).BGP.RouterID.String(); got != "10.0.0.1" {
		t.Errorf("router id is %s", got)
	}
	six := "services: [{name: s, vips: [{address: \"2001:db8::1\", protocol: tcp}], pools: [p]}]\n" +
		"pools: [{name: p, backends: [{address: \"2001:db8::b\"}]}]\n" + bgp
	a := parseText(t, "machine: {name: a, addresses: [\"2001:db8::a\"]}\n"+six).BGP.RouterID
	b := parseText(t, "machine: {name: b, addresses: [\"2001:db8::a\"]}\n"+six).BGP.RouterID
	if !a.Is4() || a.IsUnspecified() || a == b {
		t.Errorf("router ids are %s and %s", a, b)
	}
}

// The example that the design gives: all of its fields are known.
func Test_the_designs_example_is_read_whole(t *testing.T) {
	data, err := os.ReadFile("testdata/design.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse([]Source{{Name: "design.yaml", Data: data}}, func(string) ([]byte, fs.FileMode, error) {
		return []byte("0123456789abcdef"), 0o640, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	web := c.Services[0]
	names := namesOf(web.Members, func(m Member) string { return m.Backend.Name })
	if !slices.Equal(names, []string{"10.1.0.12", "10.1.0.21", "web-1"}) {
		t.Errorf("members are %v", names)
	}
	if vip := web.VIPs[1]; vip.PrefixGroup != "class-a" || vip.Suffix.String() != "0.0.0.10" || vip.SuffixBits != 8 {
		t.Errorf("the second VIP is %+v", vip)
	}
	if got := c.BGP.Communities; !slices.Equal(got, []Community{64512<<16 | 100}) {
		t.Errorf("communities are %x", got)
	}
}

// Every rule that the schema uses has a sentence of ours, not the library's.
func Test_every_kind_of_rule_in_the_schema_is_worded(t *testing.T) {
	known := []string{"required", "string.in", "string.pattern", "string.min_len", "string.max_len", "repeated.min_items", "repeated.max_items", "repeated.items",
		"uint32.gte", "uint32.lte", "uint64.gte", "uint64.lte", "duration.gte", "duration.lte"}
	messages := (&configv1.Config{}).ProtoReflect().Descriptor().ParentFile().Messages()
	found := 0
	for i := range messages.Len() {
		fields := messages.Get(i).Fields()
		for j := range fields.Len() {
			for _, rule := range ruleNames("", rulesOf(fields.Get(j)).ProtoReflect()) {
				found++
				if !slices.Contains(known, rule) {
					t.Errorf("%s has the rule %s, which ruleMessage does not word", fields.Get(j).FullName(), rule)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no rules were found")
	}
}

func ruleNames(prefix string, rules protoreflect.Message) []string {
	var names []string
	rules.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name := strings.TrimPrefix(prefix+"."+string(field.Name()), ".")
		if field.Kind() == protoreflect.MessageKind && field.Message().ParentFile() == rules.Descriptor().ParentFile() && name != "repeated.items" {
			names = append(names, ruleNames(name, value.Message())...)
		} else {
			names = append(names, name)
		}
		return true
	})
	return names
}

// 10,000 services with own pools over 60,000 backends.
func Test_a_config_at_the_limits_is_parsed_in_seconds(t *testing.T) {
	c := parseText(t, bigConfig(10_000, 6))
	if len(c.Services) != 10_000 || len(c.Backends) != 60_000 || len(c.Services[9_999].Members) != 6 {
		t.Errorf("%d services, %d backends", len(c.Services), len(c.Backends))
	}
	_, err := Parse([]Source{{Name: "t", Data: []byte(bigConfig(10_001, 7))}}, noFiles)
	if err == nil || !strings.Contains(err.Error(), "serves at most 10000") || !strings.Contains(err.Error(), "at most 65000") {
		t.Errorf("above the limits: %.300v", err)
	}
}

func bigConfig(services, backends int) string {
	var b strings.Builder
	b.WriteString("machine: {addresses: [10.0.0.1]}\nservices:\n")
	for i := range services {
		fmt.Fprintf(&b, "- {name: s%d, vips: [{address: 203.%d.%d.1, ports: [80], protocol: tcp}], pools: [p%d], table_size: 5003}\n", i, i>>8, i&255, i)
	}
	b.WriteString("pools:\n")
	for i := range services {
		fmt.Fprintf(&b, "- name: p%d\n  backends:\n", i)
		for j := range backends {
			fmt.Fprintf(&b, "  - {address: 10.%d.%d.%d}\n", j+1, i>>8, i&255)
		}
	}
	return b.String()
}

func Test_aliases_of_aliases_do_not_fill_the_memory(t *testing.T) {
	line := func(item string) string { return strings.Repeat(item+", ", 400) }
	text := "machine: {addresses: [10.0.0.1]}\n" +
		"services: [{name: s, pools: [p], vips: &v [&x {address: 203.0.113.1, ports: &q [" + line("80") + "]}, " + line("*x") + "]}, &s {name: t, pools: [p], vips: *v}, " + line("*s") + "]\n" +
		"pools: [{name: p, backends: [{address: 10.1.0.1}]}]\n"
	_, err := Parse([]Source{{Name: "t", Data: []byte(text)}}, noFiles)
	if err == nil || !strings.Contains(err.Error(), "aliases counted at each use") {
		t.Errorf("error is %.300v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(small))
	for _, pattern := range []string{"testdata/bad/*.yaml", "testdata/warned/*.yaml", "testdata/design.yaml"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse([]Source{{Name: "f", Data: data}}, noFiles)
		if (c == nil) == (err == nil) {
			t.Fatalf("config %v, error %v", c, err)
		}
		if err != nil && err.Error() == "" {
			t.Fatal("refused without a word")
		}
		if c != nil {
			checkGuarantees(t, c)
		}
	})
}

// checkGuarantees holds what is written at the fields of Config.
func checkGuarantees(t *testing.T, c *Config) {
	if len(c.Machine.Addresses) == 0 || len(c.Services) == 0 {
		t.Error("no machine address or no service")
	}
	for _, service := range c.Services {
		if len(service.VIPs) == 0 || len(service.Pools) == 0 || !isPrime(service.TableSize) || len(service.Members) > int(service.TableSize) {
			t.Errorf("service %+v", service)
		}
		for _, name := range service.Pools {
			if c.PoolNamed(name) == nil {
				t.Errorf("pool %q is missing", name)
			}
		}
		for _, vip := range service.VIPs {
			if vip.Address.IsValid() == (vip.PrefixGroup != "") || (vip.PrefixGroup != "") != vip.Suffix.IsValid() {
				t.Errorf("VIP %+v", vip)
			}
		}
		for i, member := range service.Members {
			if _, ok := c.Machine.Address(member.Backend.Address); !ok {
				t.Errorf("no source for %v", member.Backend)
			}
			if i > 0 && service.Members[i-1].Backend.Name >= member.Backend.Name {
				t.Error("members are not in order of name")
			}
		}
	}
	for _, check := range c.HealthChecks {
		if check.Check == nil || check.Timeout <= 0 || check.Timeout > check.Interval {
			t.Errorf("health check %+v", check)
		}
	}
}
