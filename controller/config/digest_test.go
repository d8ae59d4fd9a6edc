package config

import "testing"

const digested = `
cluster: {name: c1}
services: [{name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}], pools: [web]}]
pools: [{name: web, backends: [{address: 10.1.0.11}, {address: 10.1.0.12}]}]
`

func TestMachinesWithOneConfigHaveOneDigest(t *testing.T) {
	digest := func(files ...string) string {
		t.Helper()
		var sources []Source
		for _, text := range files {
			sources = append(sources, Source{Name: "guideway.yaml", Data: []byte(text)})
		}
		parsed, err := Reader{Machine: "lb-2", ReadFile: ReadFromDisk}.Parse(sources)
		if err != nil {
			t.Fatal(err)
		}
		return parsed.SharedDigest
	}
	one := digest(digested + "machine: {name: lb-1, addresses: [10.0.0.1]}\npeers: [{name: lb-2, addresses: [10.0.0.2]}]\n")
	for name, other := range map[string]string{
		"the other machine's": digest("machine: {name: lb-2, addresses: [10.0.0.2]}\npeers: [{name: lb-1, addresses: [10.0.0.1]}]\nmetrics: {listen: '127.0.0.1:9999'}\n", "# its services\n"+digested),
		"of several machines": digest(digested + "machines: [{name: lb-1, addresses: [10.0.0.1]}, {name: lb-2, addresses: [10.0.0.2]}]\n"),
	} {
		if other != one || len(one) != sharedDigestDigits {
			t.Errorf("%s: %q, want %q", name, other, one)
		}
	}
	if digest(digested+"move_age_max: 5m\nmachine: {name: lb-1, addresses: [10.0.0.1]}\n") == one {
		t.Error("another config has the same digest")
	}
}
