package config

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

func withJoinPorts(first uint16, backends ...string) *Service {
	slices.Sort(backends)
	s := &Service{JoinPorts: first}
	for _, name := range backends {
		s.Members = append(s.Members, Member{Backend: &Backend{Name: name}})
	}
	return s
}

// Worked out apart by vectors/make.py: servers are configured by them, and machines
// of different versions have to agree.
func TestJoinPortsAreTheSameForever(t *testing.T) {
	text, err := os.ReadFile("../../vectors/join_ports.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		JoinPorts uint16 `json:"join_ports"`
		Ports     map[string]uint16
	}
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors) == 0 {
		t.Fatalf("%d vectors: %v", len(vectors), err)
	}
	for _, v := range vectors {
		var names []string
		for name := range v.Ports {
			names = append(names, name)
		}
		got := JoinPortsOf(withJoinPorts(v.JoinPorts, names...))
		if len(got) != len(v.Ports) || len(got) == 0 {
			t.Errorf("%d ports for %d backends", len(got), len(v.Ports))
		}
		for _, join := range got {
			if join.Port != v.Ports[join.Backend] {
				t.Errorf("%s of %d has %d, want %d", join.Backend, v.JoinPorts, join.Port, v.Ports[join.Backend])
			}
		}
	}
}

func TestABackendThatComesChangesThePortsOfFewOthers(t *testing.T) {
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("web-%03d", i))
	}
	changed := 0
	for i := range names {
		without := append(slices.Clone(names[:i]), names[i+1:]...)
		before, after := withJoinPorts(20000, without...), withJoinPorts(20000, names...)
		for _, name := range without {
			if JoinPortOf(before, name) != JoinPortOf(after, name) {
				changed++
			}
		}
	}
	// A newcomer's name leads to another's port in 1 of 41 cases, and takes it in half of them.
	if changed > 5 {
		t.Errorf("%d of 9900 ports changed", changed)
	}
}

func TestEachBackendHasAPortOfItsOwn(t *testing.T) {
	var names []string
	for i := range joinPortBackendsMax {
		names = append(names, strings.Repeat("x", i%7)+fmt.Sprint(i))
	}
	seen := map[uint16]bool{}
	for _, join := range JoinPortsOf(withJoinPorts(61440, names...)) {
		if seen[join.Port] || join.Port < 61440 {
			t.Errorf("%s has %d", join.Backend, join.Port)
		}
		seen[join.Port] = true
	}
	if len(seen) != joinPortBackendsMax {
		t.Errorf("%d ports", len(seen))
	}
}
