package config

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

const (
	machinePart = "machine: {name: lb-1, addresses: [10.0.0.1]}\netcd: {cluster: c1, endpoints: ['https://10.0.0.5:2379', 'https://10.0.0.6:2379'], tls: {ca_file: ca.pem}}\n"
	sharedPart  = "cluster: {name: c1, secret_file: cluster.key}\npeers: [{name: lb-1, addresses: [10.0.0.1]}, {name: lb-2, addresses: [10.0.0.2]}]\nservices: [{name: web, vips: [{address: 203.0.113.10}], pools: [web]}]\npools: [{name: web, backends: [{address: 10.1.0.11}]}]\n"
)

// shared parses a machine's file and etcd's part; files it names hold a secret.
func shared(machine, etcds string) (*Config, []string, error) {
	var read []string
	c, err := Parse([]Source{{Name: "/etc/guideway/machine.yaml", Data: []byte(machine)}, {Name: "etcd:/guideway/c1/config/7", Data: []byte(etcds), Generation: 7}},
		func(path string) ([]byte, fs.FileMode, error) {
			read = append(read, path)
			return []byte("sixteen bytes or more"), 0o640, nil
		})
	return c, read, err
}

func TestAMachinesFilesAndEtcdsPartAreOneConfig(t *testing.T) {
	c, read, err := shared(machinePart, sharedPart)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Peers) != 1 || c.Peers[0].Name != "lb-2" {
		t.Errorf("peers %v: this machine is none of its own", c.Peers)
	}
	if c.Etcd == nil || len(c.Etcd.Endpoints) != 2 || c.Etcd.CAFile != "/etc/guideway/ca.pem" || c.Etcd.Cluster != "c1" {
		t.Errorf("etcd %+v", c.Etcd)
	}
	for _, path := range read {
		if filepath.Dir(path) != "/etc/guideway" {
			t.Errorf("%s is read: relative paths start at the machine's file", path)
		}
	}
	if c.Cluster.SecretFile != "/etc/guideway/cluster.key" {
		t.Errorf("the secret is %s", c.Cluster.SecretFile)
	}
}

func TestEachTopLevelKeyHasItsHome(t *testing.T) {
	for says, parts := range map[string][2]string{
		"machine.yaml:3:1: pools: is shared by the machines":    {machinePart + "pools: []\n", strings.Replace(sharedPart, "pools: [{name: web, b", "poolz: [{name: web, b", 1)},
		"config/7:5:1: bgp: is each machine's own":              {machinePart, sharedPart + "bgp: {asn: 64512}\n"},
		"config/7:5:1: etcd: is already given":                  {machinePart, sharedPart + "etcd: {endpoints: ['http://10.0.0.5:2379']}\n"},
		"cluster.name: is \"c2\", and etcd.cluster":             {machinePart, strings.Replace(sharedPart, "c1", "c2", 1)},
		"etcd.endpoints[1]: is \"10.0.0.6\": give a URL":        {strings.Replace(machinePart, "https://10.0.0.6:2379", "10.0.0.6", 1), sharedPart},
		"without a port: etcd's for clients is 2379":            {strings.Replace(machinePart, "10.0.0.6:2379", "10.0.0.6", 1), sharedPart},
		"has another scheme":                                    {strings.Replace(machinePart, "https://10.0.0.6", "http://10.0.0.6", 1), sharedPart},
		"has only one of user and password_file":                {strings.Replace(machinePart, "tls:", "user: lb-1, tls:", 1), sharedPart},
		"has only one of cert_file and key_file":                {strings.Replace(machinePart, "ca_file", "cert_file", 1), sharedPart},
		"is given, and the endpoints are http":                  {strings.ReplaceAll(machinePart, "https", "http"), sharedPart},
		"which divides etcd's keys":                             {strings.Replace(machinePart, "c1", "c/1", 1), sharedPart},
		"this machine's own name, and its addresses are others": {strings.Replace(machinePart, "10.0.0.1", "10.0.0.9", 1), sharedPart},
		"etcd.endpoint: there is no such field: did you mean":   {strings.Replace(machinePart, "endpoints", "endpoint", 1), sharedPart},
	} {
		_, _, err := shared(parts[0], parts[1])
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}

func TestEtcdIsFoundBeforeTheRestOfTheConfigIsThere(t *testing.T) {
	of := func(text string) (*Etcd, error) {
		reader := Reader{ReadFile: func(string) ([]byte, fs.FileMode, error) { return nil, 0, fs.ErrNotExist }}
		return reader.EtcdOf([]Source{{Name: "/etc/guideway/machine.yaml", Data: []byte(text)}})
	}
	if etcd, err := of(machinePart); err != nil || etcd == nil || etcd.Endpoints[0] != "https://10.0.0.5:2379" {
		t.Errorf("%+v: %v", etcd, err)
	}
	if etcd, err := of(sharedPart); err != nil || etcd != nil {
		t.Errorf("files without it: %+v: %v", etcd, err)
	}
	var refusal *Refusal
	if _, err := of("etcd: {cluster: c1}\n"); !errors.As(err, &refusal) || !strings.Contains(err.Error(), "endpoints") {
		t.Errorf("without endpoints: %v", err)
	}
}
