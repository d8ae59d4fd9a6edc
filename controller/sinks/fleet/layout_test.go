package fleet

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/guideway/guideway/controller/config"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// incompressible text of n bytes.
func incompressible(n int) []byte {
	text := make([]byte, n)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(text) // never fails
	return text
}

func TestPartsJoinToTheTextAgain(t *testing.T) {
	for _, text := range [][]byte{nil, []byte("cluster: {name: c1}\n"), bytes.Repeat([]byte("services:\n"), 1<<18), incompressible(5 << 20), incompressible(config.FilesBytesMax)} {
		parts, err := split(text)
		if err != nil {
			t.Fatal(err)
		}
		if len(parts) > partsMax {
			t.Errorf("%d bytes are %d parts", len(text), len(parts))
		}
		for _, part := range parts {
			if len(part) > partBytesMax {
				t.Errorf("a part has %d bytes", len(part))
			}
		}
		joined, err := join(parts, digestOf(text))
		if err != nil || !bytes.Equal(joined, text) {
			t.Errorf("%d bytes became %d: %v", len(text), len(joined), err)
		}
	}
}

func TestDamagedPartsAreRefused(t *testing.T) {
	text := incompressible(3 << 20)
	parts, err := split(text)
	if err != nil {
		t.Fatal(err)
	}
	bomb, err := split(make([]byte, config.FilesBytesMax+1))
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Clone(parts[1])
	other[1000] ^= 1
	for name, test := range map[string]struct {
		parts [][]byte
		says  string
	}{
		"one missing":        {parts[:len(parts)-1], "decompress"},
		"out of order":       {[][]byte{parts[1], parts[0], parts[2]}, "decompress"},
		"a bit is flipped":   {[][]byte{parts[0], other, parts[2], parts[len(parts)-1]}, ""},
		"more than may be":   {bomb, "16 MiB"},
		"no zstd":            {[][]byte{[]byte("cluster: {name: c1}")}, "decompress"},
		"of another config":  {mustSplit(t, "another"), "digest"},
		"nothing was stored": {nil, "digest"},
	} {
		if _, err := join(test.parts, digestOf(text)); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func mustSplit(t *testing.T, text string) [][]byte {
	t.Helper()
	parts, err := split([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return parts
}

func TestTheNextGenerationIsAfterThoseThatStepsCameTo(t *testing.T) {
	at := func(generation uint64) Seen {
		return Seen{Current: &fleetv1.Current{Generation: generation}, Canary: &fleetv1.Canary{Config: &fleetv1.Current{Generation: generation + 1}}}
	}
	for _, test := range []struct {
		running uint64
		seen    Seen
		want    uint64
	}{{0, Seen{}, 1}, {5, at(6), 8}, {9, at(6), 10}, {5, at(math.MaxUint64 - 1), 6}, {0, at(math.MaxUint64 - 1), 1}} {
		if got := nextGeneration(test.running, test.seen); got != test.want {
			t.Errorf("%d, %v: %d, want %d", test.running, test.seen, got, test.want)
		}
	}
}

func TestAMachineGoesToHigherGenerationsOnly(t *testing.T) {
	at := func(generation uint64, digest string) *fleetv1.Current {
		return &fleetv1.Current{Generation: generation, Digest: digest}
	}
	for _, test := range []struct {
		running, next *fleetv1.Current
		says          string
	}{
		{nil, at(1, "a"), ""},
		{at(1, "a"), at(2, "a"), ""},
		{at(1, "a"), at(9, "b"), ""},
		{at(2, "a"), at(2, "a"), ""},
		{at(2, "a"), at(2, "b"), "another config under the number 2"},
		{at(2, "a"), at(2+1<<32, "b"), ""},
		{at(2, "a"), at(3+1<<32, "b"), "was not made by Guideway"},
		{at(2, "a"), at(math.MaxUint64, "b"), "was not made by Guideway"},
		{nil, at(math.MaxUint64, "b"), "was not made by Guideway"},
		{at(3, "a"), at(2, "a"), "holds config 2, and 3 runs here"},
	} {
		err := CheckNext(test.running, test.next)
		if (err == nil) != (test.says == "") || err != nil && (!strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), "--accept-older")) {
			t.Errorf("%v to %v: %v", test.running, test.next, err)
		}
	}
}
