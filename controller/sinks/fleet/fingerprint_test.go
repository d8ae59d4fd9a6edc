package fleet

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/guideway/guideway/controller/config"
)

func parsed(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.Parse([]config.Source{{Name: "a.yaml", Data: []byte(text)}}, func(string) ([]byte, fs.FileMode, error) { return nil, 0, fs.ErrNotExist })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const fingerprinted = `
cluster: {name: c1}
machine: {name: lb-1, addresses: [10.0.0.1]}
services:
- {name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}], pools: [web]}
- {name: mail, vips: [{address: 203.0.113.11, ports: [25], protocol: tcp}], pools: [mail]}
pools:
- {name: web, backends: [{name: web-1, address: 10.1.0.11}, {name: web-2, address: 10.1.0.12}]}
- {name: mail, backends: [{name: mail-1, address: 10.1.0.21}]}
`

func TestTheConfiguredFingerprintIsOfWhatDecidesOnFlows(t *testing.T) {
	is := ConfiguredFingerprint(parsed(t, fingerprinted))
	if len(is) != fingerprintDigits {
		t.Errorf("fingerprint %q", is)
	}
	for _, same := range [][2]string{
		{"name: lb-1, addresses: [10.0.0.1]", "name: lb-2, addresses: [10.0.0.2]"},
		{"{name: web-1, address: 10.1.0.11}, {name: web-2, address: 10.1.0.12}", "{name: web-2, address: 10.1.0.12}, {name: web-1, address: 10.1.0.11}"},
		{"cluster: {name: c1}", "cluster: {name: c1}\nmetrics: {listen: \"127.0.0.1:9\"}"},
	} {
		if other := ConfiguredFingerprint(parsed(t, replaceOne(t, same))); other != is {
			t.Errorf("%s: another fingerprint", same[1])
		}
	}
	seen := map[string]string{is: "the first"}
	for _, different := range [][2]string{
		{"web-1, address: 10.1.0.11", "web-1, address: 10.1.0.13"},
		{"name: web-1,", "name: web-3,"},
		{"address: 10.1.0.11}", "address: 10.1.0.11, weight: 2}"},
		{"pools: [web]}", "pools: [web], affinity: client}"},
		{"pools: [web]}", "pools: [web], table_size: 655373}"},
		{"- {name: mail, vips", "- {name: post, vips"},
	} {
		other := ConfiguredFingerprint(parsed(t, replaceOne(t, different)))
		if former, twice := seen[other]; twice {
			t.Errorf("%s: the fingerprint of %s", different[1], former)
		}
		seen[other] = different[1]
	}
}

func replaceOne(t *testing.T, change [2]string) string {
	t.Helper()
	if strings.Count(fingerprinted, change[0]) != 1 {
		t.Fatalf("%q is not there once", change[0])
	}
	return strings.Replace(fingerprinted, change[0], change[1], 1)
}

func TestTheLiveFingerprintIsOfTheTablesThatThePageNames(t *testing.T) {
	const page = `# TYPE guideway_table_fingerprint gauge
guideway_table_fingerprint{service="web",fingerprint="00ab"} 1
guideway_table_fingerprint{service="mail",fingerprint="00cd"} 1
# TYPE guideway_connections gauge
guideway_connections 3
`
	is, err := LiveFingerprint(page)
	if err != nil || len(is) != fingerprintDigits {
		t.Fatalf("%q: %v", is, err)
	}
	lines := strings.SplitAfter(page, "\n")
	lines[1], lines[2] = lines[2], lines[1]
	if other, err := LiveFingerprint(strings.Join(lines, "")); err != nil || other != is {
		t.Errorf("in another order it is %q: %v", other, err)
	}
	if other, err := LiveFingerprint(strings.Replace(page, "00ab", "00ac", 1)); err != nil || other == is {
		t.Errorf("of another table it is the same: %v", err)
	}
	if none, err := LiveFingerprint("guideway_connections 3\n"); err != nil || none != "" {
		t.Errorf("of a page without tables it is %q: %v", none, err)
	}
	if _, err := LiveFingerprint("guideway_table_fingerprint{service=\n"); err == nil {
		t.Error("a broken page is read")
	}
}
