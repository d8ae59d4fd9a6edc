package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// machinesOf lines: name, shard, generation, configured and live fingerprint.
func machinesOf(t *testing.T, lines ...string) []*fleetv1.Machine {
	t.Helper()
	var machines []*fleetv1.Machine
	for _, line := range lines {
		m := &fleetv1.Machine{}
		if _, err := fmt.Sscan(line, &m.Name, &m.Shard, &m.Config, &m.ConfiguredFingerprint, &m.LiveFingerprint); err != nil {
			t.Fatal(err)
		}
		machines = append(machines, m)
	}
	return machines
}

func TestConfiguredMembersThatDifferAreAnAlarmAtOnce(t *testing.T) {
	d := &Differences{}
	for name, machines := range map[string][]*fleetv1.Machine{
		"all alike":            machinesOf(t, "lb-1 a 7 c1 t1", "lb-2 a 7 c1 t1"),
		"another generation":   machinesOf(t, "lb-1 a 7 c1 t1", "lb-2 a 8 c2 t2"),
		"another shard":        machinesOf(t, "lb-1 a 7 c1 t1", "lb-2 b 7 c2 t2"),
		"none from etcd":       machinesOf(t, "lb-1 a 0 c1 t1", "lb-2 a 0 c2 t2"),
		"tables, for a moment": machinesOf(t, "lb-1 a 7 c1 t1", "lb-2 a 7 c1 t2"),
	} {
		if found := d.Observe(machines, time.Now()); len(found) > 0 {
			t.Errorf("%s: %v", name, found)
		}
	}
	found := d.Observe(machinesOf(t, "lb-1 a 7 c1 t1", "lb-2 a 7 c2 t2", "lb-3 a 7 c1 t1"), time.Now())
	if len(found) != 1 || found[0].Of != AspectConfigured {
		t.Fatalf("found %v", found)
	}
	if text := found[0].String(); !strings.Contains(text, "shard a, config 7: it means different members to them (c1 on lb-1, lb-3; c2 on lb-2)") {
		t.Error(text)
	}
}

func TestTablesThatDifferAreAnAlarmAfterHalfAMinute(t *testing.T) {
	d, began := &Differences{}, time.Now()
	same, different := machinesOf(t, "lb-1 a 7 c1 t1", "lb-2 a 7 c1 t1"), machinesOf(t, "lb-1 a 7 c1 t1", "lb-2 a 7 c1 t2")
	observe := func(after time.Duration, machines []*fleetv1.Machine, alarms int) {
		t.Helper()
		if found := d.Observe(machines, began.Add(after)); len(found) != alarms || alarms > 0 && found[0].Of != AspectLive {
			t.Errorf("after %v: %v", after, found)
		}
	}
	observe(0, different, 0)
	observe(29*time.Second, different, 0)
	observe(30*time.Second, different, 1)
	observe(31*time.Second, same, 0)
	observe(32*time.Second, different, 0)
	// Still different, though others.
	observe(50*time.Second, machinesOf(t, "lb-1 a 7 c1 t3", "lb-2 a 7 c1 t1"), 0)
	observe(62*time.Second, different, 1)
	if text := d.Observe(different, began.Add(63*time.Second))[0].String(); !strings.Contains(text, "tables have differed for more than 30s (t1 on lb-1; t2 on lb-2)") {
		t.Error(text)
	}
}

// Of machines without etcd, whose numbers are their own.
func TestConfigsInFilesThatDifferAreAnAlarmAfterHalfAMinute(t *testing.T) {
	d, began := &Differences{}, time.Now()
	one, two := &fleetv1.Machine{Name: "lb-1", Shard: "a", Config: 7, ConfigDigest: "d1", ConfiguredFingerprint: "c1"}, &fleetv1.Machine{Name: "lb-2", Shard: "a", Config: 3, ConfigDigest: "d1", ConfiguredFingerprint: "c1"}
	both := []*fleetv1.Machine{one, two}
	if found := d.Observe(both, began); len(found) > 0 {
		t.Errorf("one config under two numbers: %v", found)
	}
	two.ConfigDigest, two.ConfiguredFingerprint = "d2", "c2"
	for after, alarms := range []int{0, 29: 0, 30: 1} {
		if found := d.Observe(both, began.Add(time.Duration(after)*time.Second)); len(found) != alarms {
			t.Errorf("after %d s: %v", after, found)
		} else if alarms > 0 && (found[0].Of != AspectConfig || !strings.Contains(found[0].String(), "(d1 on lb-1; d2 on lb-2)")) {
			t.Error(found[0])
		}
	}
	two.ConfigDigest = "d1" // of another version, which makes something else of it
	if found := d.Observe(both, began.Add(time.Minute)); len(found) != 1 || found[0].Of != AspectConfigured {
		t.Errorf("found %v", found)
	}
}
