package config

import (
	"io/fs"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const severalMachines = `
machines:
- {name: lb-1, addresses: [10.0.0.1], secret_file: one.key}
- name: lb-2
  addresses: [10.0.0.2, "2001:db8::2"]
  shard: big
  probe_ports: 21000-22000
  bgp: {asn: 64513, neighbors: [{address: 10.0.0.253, asn: 64999}]}
  metrics: {listen: "127.0.0.1:9000"}
peers: [{name: lb-3, addresses: [10.0.0.3]}]
cluster: {name: c1, secret_file: all.key}
bgp: {asn: 64512, neighbors: [{address: 10.0.0.254, asn: 64999}]}
services: [{name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}], pools: [web]}]
pools: [{name: web, backends: [{name: web-1, address: 10.1.0.11}]}]
`

func parseFor(machine, text string) (*Config, error) {
	readFile := func(path string) ([]byte, fs.FileMode, error) { return []byte(strings.Repeat(path, 32)), 0o600, nil }
	return Reader{Machine: machine, ReadFile: readFile}.Parse([]Source{{Name: "/etc/guideway/all.yaml", Data: []byte(text)}})
}

func TestEachMachineHasItsEntry(t *testing.T) {
	one, err := parseFor("lb-1.example.net", severalMachines)
	if err != nil {
		t.Fatal(err)
	}
	two, err := parseFor("lb-2", severalMachines)
	if err != nil {
		t.Fatal(err)
	}
	names := func(c *Config) (names []string) {
		for _, peer := range c.Peers {
			names = append(names, peer.Name)
		}
		return names
	}
	if one.Machine.Name != "lb-1" || one.Machine.Shard != "default" || !slices.Equal(names(one), []string{"lb-3", "lb-2"}) {
		t.Errorf("lb-1: %+v, peers %v", one.Machine, names(one))
	}
	if two.Machine.Name != "lb-2" || two.Machine.Shard != "big" || !slices.Equal(names(two), []string{"lb-3", "lb-1"}) {
		t.Errorf("lb-2: %+v, peers %v", two.Machine, names(two))
	}
	if want := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("2001:db8::2")}; !slices.Equal(two.Machine.Addresses, want) || !slices.Equal(one.Peers[1].Addresses, want) {
		t.Errorf("addresses %v and %v", two.Machine.Addresses, one.Peers[1].Addresses)
	}
	// What an entry holds takes the place of what stands outside, and of nothing else.
	if one.BGP.ASN != 64512 || two.BGP.ASN != 64513 || two.Metrics.Listen != "127.0.0.1:9000" || one.Metrics.Listen == two.Metrics.Listen {
		t.Errorf("bgp %d and %d, metrics %s and %s", one.BGP.ASN, two.BGP.ASN, one.Metrics.Listen, two.Metrics.Listen)
	}
	if one.Cluster.SecretFile != "/etc/guideway/one.key" || two.Cluster.SecretFile != "/etc/guideway/all.key" || two.Cluster.Name != "c1" {
		t.Errorf("secrets %s and %s", one.Cluster.SecretFile, two.Cluster.SecretFile)
	}
	if !reflect.DeepEqual(one.Services, two.Services) && one.Services[0].Name != two.Services[0].Name {
		t.Error("the services differ")
	}
}

func TestMistakesInMachinesAreToldWhereTheyStand(t *testing.T) {
	for _, test := range []struct{ what, machine, from, to, says string }{
		{"no entry", "lb-9", "", "", `all.yaml:2:1: machines: has no entry for this machine, "lb-9": give it one by its host name, or say by --machine which of lb-1, lb-2 it is`},
		{"no name", "", "", "", `which of lb-1, lb-2 it is`},
		{"beside machine", "lb-1", "cluster:", "machine: {name: lb-1, addresses: [10.0.0.1]}\ncluster:", "machine: is given beside `machines`"},
		{"its own address", "lb-1", "[10.0.0.1]", "[10.0.0.300]", "all.yaml:3:28: machines[0].addresses[0]: "},
		{"a peer's address", "lb-2", "[10.0.0.1]", "[10.0.0.300]", "all.yaml:3:28: machines[0].addresses[0]: "},
		{"no address", "lb-1", "addresses: [10.0.0.1], ", "", "machines[0].addresses: is missing"},
		{"a field of its bgp", "lb-2", "asn: 64513", "asn: 0", "all.yaml:8:9: machines[1].bgp.asn: "},
		{"an unknown field", "lb-1", "shard:", "sahrd:", "machines[1].sahrd: there is no such field: did you mean `shard`?"},
		{"two of a name", "lb-1", "name: lb-2", "name: lb-1", "machines[1].name: "},
		{"one that is a peer, too", "lb-1", "name: lb-3", "name: lb-2", "machines[1].name: "},
	} {
		text := strings.Replace(severalMachines, test.from, test.to, 1)
		_, err := parseFor(test.machine, text)
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", test.what, err)
			continue
		}
		if test.from != "" && strings.Count(err.Error(), "\n") > 0 && test.what != "an unknown field" {
			t.Errorf("%s is told more than once:\n%v", test.what, err)
		}
	}
}

func TestMachinesAreListedAndAnyDoes(t *testing.T) {
	source := Source{Name: "all.yaml", Data: []byte(severalMachines)}
	if names := MachinesOf([]Source{source}); !slices.Equal(names, []string{"lb-1", "lb-2"}) {
		t.Errorf("names %v", names)
	}
	if names := MachinesOf([]Source{{Data: []byte("machine: {name: lb-1}")}, {Data: []byte("machines: 7")}}); names != nil {
		t.Errorf("names %v", names)
	}
	c, err := ParseToCompile([]Source{source}, func(string) ([]byte, fs.FileMode, error) { return []byte(strings.Repeat("s", 32)), 0o600, nil })
	if err != nil || c.Machine.Name != "lb-1" {
		t.Errorf("%v", err)
	}
}

func TestAnEntryMaySayWhereEtcdIs(t *testing.T) {
	text := "machines:\n- {name: lb-1, addresses: [10.0.0.1]}\n- {name: lb-2, addresses: [10.0.0.2], etcd: {cluster: c1, endpoints: [\"http://10.0.0.5:2379\"]}}\n"
	of := func(machine string) (*Etcd, error) {
		return Reader{Machine: machine, ReadFile: ReadFromDisk}.EtcdOf([]Source{{Name: "all.yaml", Data: []byte(text)}})
	}
	if etcd, err := of("lb-2"); err != nil || etcd == nil || etcd.Cluster != "c1" {
		t.Errorf("%+v %v", etcd, err)
	}
	if etcd, err := of("lb-1"); err != nil || etcd != nil {
		t.Errorf("%+v %v", etcd, err)
	}
	text = strings.Replace(text, "http:", "ftp:", 1)
	if _, err := of("lb-2"); err == nil || !strings.Contains(err.Error(), "machines[1].etcd.endpoints") {
		t.Errorf("%v", err)
	}
}

func TestHooksAreFilesByName(t *testing.T) {
	with := func(hooks string) string { return severalMachines + "hooks: " + hooks + "\n" }
	c, err := parseFor("lb-1", with("[{program: notify}, {program: page.sh, timeout: 2s}]"))
	if err != nil || !slices.Equal(c.Hooks, []Hook{{"notify", 10 * time.Second}, {"page.sh", 2 * time.Second}}) {
		t.Errorf("%+v %v", c, err)
	}
	for given, says := range map[string]string{
		"[{program: ../sh}]":                      "hooks[0].program: is \"../sh\": give the name of a file, without a directory",
		"[{program: /bin/sh}]":                    "without a directory",
		"[{program: .hidden}]":                    "without a directory",
		"[{}]":                                    "hooks[0].program: is missing",
		"[{program: a, timeout: 1h}]":             "hooks[0].timeout: is 1h",
		"[{program: a}, {program: a}]":            "hooks[1].program: a is given twice",
		"[{program: a, arguments: [-c, reboot]}]": "there is no such field",
	} {
		if _, err := parseFor("lb-1", with(given)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", given, err)
		}
	}
}
