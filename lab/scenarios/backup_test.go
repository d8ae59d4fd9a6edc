package scenarios_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// A backup pool takes over while a service's own backends are gone, and keeps
// the connections that it got; an own backend that comes back gets its share
// slowly.
func TestBackupPoolsAndSlowStart(t *testing.T) {
	o := options(t, "backup")
	o.LoadBalancers, o.Backends, o.Spares = 1, 2, 1
	running := up(t, o)
	own, standby := running.Backends()[:2], running.Backends()[2]
	addBackup(t, running)
	if shares := openings(t, running, 40); shares[standby] != 0 || shares[own[0]] == 0 || shares[own[1]] == 0 {
		t.Fatalf("with all of its own backends the service uses %v", shares)
	}

	for i := range own {
		if err := running.KillBackend(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range own {
		waitState(t, running, "lb-1", "echo", name, planv1.BackendState_BACKEND_STATE_DOWN)
	}
	var kept []conversation
	for range 10 {
		for _, vip := range topology.EchoVIPs {
			kept = append(kept, converse(t, running, vip))
		}
	}
	for _, c := range kept {
		if c.backend != standby {
			t.Fatalf("%s answered while only %s was there", c.backend, standby)
		}
	}
	for i := range own {
		if err := running.RestoreBackend(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range own {
		waitState(t, running, "lb-1", "echo", name, planv1.BackendState_BACKEND_STATE_ACTIVE)
	}
	if shares := openings(t, running, 40); shares[standby] != 0 {
		t.Errorf("new connections, with the own backends back: %v", shares)
	}
	for _, c := range kept {
		if err := c.transfer(1000, 5*time.Second); err != nil {
			t.Errorf("a connection that %s has: %v", standby, err)
		}
	}

	t.Run("slow start", func(t *testing.T) { sharesGrow(t, running, own[1]) })
	checkAtRest(t, running)
}

// addBackup to the service echo: the spare, in a pool of its own.
func addBackup(t *testing.T, running *hosts.Lab) {
	t.Helper()
	spare := running.Network.Backends[2]
	editConfig(t, running, "lb-1", func(text string) string {
		text = replaceOnce(t, text, "pools: [echo],", "pools: [echo], backup_pools: [standby],")
		return replaceOnce(t, text, "- name: echo\n", fmt.Sprintf(
			"- {name: standby, health_checks: [tcp-echo], backends: [{name: %s, address: %s}]}\n- name: echo\n  slow_start: 15s\n",
			spare.Name, spare.Address(0)))
	})
	// What is not used gets no new connections.
	waitState(t, running, "lb-1", "echo", spare.Name, planv1.BackendState_BACKEND_STATE_DRAINING)
}

// openings are new connections, by backend.
func openings(t *testing.T, running *hosts.Lab, count int) map[string]int {
	t.Helper()
	shares := map[string]int{}
	for i := range count {
		c := converse(t, running, topology.EchoVIPs[i%2])
		shares[c.backend]++
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return shares
}

// sharesGrow of the second of two equal backends that comes back: a fifth of
// its weight at first, which is a sixth of both's, in the end one half.
func sharesGrow(t *testing.T, running *hosts.Lab, name string) {
	if err := running.KillBackend(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	waitState(t, running, "lb-1", "echo", name, planv1.BackendState_BACKEND_STATE_DOWN)
	waitWeight(t, running, "the other one has all of its own", running.Backends()[0], 100)
	if err := running.RestoreBackend(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	waitWeight(t, running, "a fifth at first", name, 20)
	const count = 100
	atFirst := openings(t, running, count)
	waitWeight(t, running, "all in the end", name, 100)
	atLast := openings(t, running, count)
	t.Logf("of %d new connections %s got %d at first and %d in the end", count, name, atFirst[name], atLast[name])
	// 17 and 50; they scatter by 4 and 5.
	if atFirst[name] == 0 || atFirst[name] > 33 || atLast[name] < 30 {
		t.Errorf("of %d new connections it got %d at first and %d in the end", count, atFirst[name], atLast[name])
	}
}

func waitWeight(t *testing.T, running *hosts.Lab, what, name string, percent uint32) {
	t.Helper()
	eventually(t, time.Minute, what, func() error {
		out, err := on(t, running, "lb-1", "show", "backends", name, "-o", "json")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		var shown controllerv1.GetBackendResponse
		if err := protojson.Unmarshal([]byte(out), &shown); err != nil {
			return err
		}
		for _, b := range shown.Backends {
			if b.Service == "echo" && b.State == "active" && b.WeightPercent == percent {
				return nil
			}
		}
		return fmt.Errorf("%+v", shown.Backends)
	})
}
