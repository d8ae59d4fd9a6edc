package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestVIPsThatTheFilterHoldsAreAcceptedAndOneMoreIsRefusedByName(t *testing.T) {
	var vips []string
	for i := range filterPrefixesMax - 1 {
		vips = append(vips, fmt.Sprintf("{address: 198.18.%d.%d, ports: [80]}", i>>8, i&0xff))
	}
	parse := func(more string) error {
		text := `
machine: {name: lb-1, addresses: [10.0.0.1]}
pools: [{name: web, backends: [{address: 10.1.0.11}]}]
prefix_groups: [{name: all, prefixes: [203.0.113.0/24, 198.51.100.0/24]}]
services:
- {name: web, pools: [web], vips: [` + strings.Join(vips, ", ") + "]}\n" + more
		_, err := Parse([]Source{{Name: "c.yaml", Data: []byte(text)}}, func(string) ([]byte, fs.FileMode, error) { return nil, 0, fs.ErrNotExist })
		return err
	}
	// The same address on another port takes no further entry.
	if err := parse("- {name: last, pools: [web], vips: [{address: 198.18.255.255, ports: [80]}, {address: 198.18.0.0, ports: [81]}]}\n"); err != nil {
		t.Fatal(err)
	}
	err := parse("- {name: group, pools: [web], vips: [{prefix_group: all, suffix: 0.0.0.10}]}\n")
	var refusal *Refusal
	if !errors.As(err, &refusal) || len(refusal.Errors) != 1 {
		t.Fatalf("error %v", err)
	}
	problem := refusal.Errors[0]
	if problem.Field != "services[1].vips" || !strings.Contains(problem.Message, "65537 of IPv4") || !strings.Contains(problem.Message, "prefix_groups") {
		t.Errorf("%+v", problem)
	}
}

func TestAChangeMustFitTheFilterWithBothGenerations(t *testing.T) {
	withVIPs := func(first, count uint32) *Config {
		var vips []VIP
		for i := first; i < first+count; i++ {
			vips = append(vips, VIP{Address: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})})
		}
		// Of another shard: no matter of this machine.
		return &Config{Machine: Machine{Shard: "a"}, Services: []Service{{Shard: "a", VIPs: vips}, {Shard: "b", VIPs: []VIP{{Address: netip.MustParseAddr("192.0.2.1")}}}}}
	}
	before := withVIPs(0, 40_000)
	if err := CheckChange(nil, before); err != nil {
		t.Error(err)
	}
	if err := CheckChange(before, withVIPs(20_000, 45_536)); err != nil {
		t.Errorf("65,536 together: %v", err)
	}
	err := CheckChange(before, withVIPs(20_000, 45_537))
	if err == nil || !strings.Contains(err.Error(), "65537 of IPv4") || !strings.Contains(err.Error(), "that go first") {
		t.Errorf("65,537 together: %v", err)
	}
}

func TestAConfigOfTooManyValuesIsRefusedBeforeItIsParsed(t *testing.T) {
	for name, data := range map[string]string{
		"a long list":        "services:\n" + strings.Repeat("- a\n", separatorsMax/2+1),
		"a long line":        "services: [" + strings.Repeat("a,", separatorsMax) + "]",
		"lists of lists":     "services: [" + strings.Repeat("[],", separatorsMax/2+1) + "]",
		"more than 16 MiB":   "# " + strings.Repeat("x", FilesBytesMax),
		"over several files": strings.Repeat("- a\n", separatorsMax/4),
	} {
		sources := []Source{{Name: "a.yaml", Data: []byte(data)}}
		if name == "over several files" {
			sources = append(sources, sources[0], sources[0])
		}
		allocated := testing.AllocsPerRun(1, func() {
			_, err := Parse(sources, nil)
			if err == nil || !strings.Contains(err.Error(), "a.yaml") || !strings.Contains(err.Error(), "the limit") {
				t.Errorf("%s: %.200v", name, err)
			}
		})
		if allocated > 1000 {
			t.Errorf("%s: %v allocations", name, allocated)
		}
	}
}

func TestAFileIsNotReadBeyondTheLimit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "huge.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 1<<40); err != nil { // takes no disk
		t.Fatal(err)
	}
	if _, err := Read(file); err == nil || !strings.Contains(err.Error(), "huge.yaml has more than 16 MiB") {
		t.Errorf("%v", err)
	}
	if _, _, err := ReadFromDisk(file); err == nil || !strings.Contains(err.Error(), "1 MiB") {
		t.Errorf("%v", err)
	}
}
