//go:build upgrade

package scenarios_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
)

// The programs of an earlier commit beside those of this one, by `make upgrade`:
// each process is replaced in turn, to the newer and back, so that each meets the
// others of the other version. Plans change with each step. No request fails, no
// connection breaks, and only a speaker's own restart withdraws routes.
func TestUpgrade(t *testing.T) {
	former := os.Getenv("UPGRADE_FROM")
	if former == "" {
		t.Fatal("UPGRADE_FROM names no folder with earlier programs: make upgrade FORMER=commit")
	}
	o := optionsAlone(t, "upgrade")
	present := o.BinDir
	o.BinDir = ownPrograms(t, o)
	for _, program := range []string{"guideway", "guideway-forwarder", "guideway-agent"} {
		installProgram(t, filepath.Join(former, program), o.BinDir)
	}
	u := upgrade{running: up(t, o), programs: o.BinDir}
	remote := loadForTakeOver(t, u.running, 1, 100)
	t.Cleanup(func() { _ = remote.Abandon() }) // of one that was stopped: nothing to do
	for _, step := range []struct {
		name string
		do   func(t *testing.T)
	}{
		{"controllers_are_newer", func(t *testing.T) { u.install(t, present, "guideway"); u.restart(t, "controller") }},
		{"speakers_are_newer", func(t *testing.T) { u.restart(t, "speaker") }},
		{"forwarders_are_newer", func(t *testing.T) { u.install(t, present, "guideway-forwarder"); u.takeOver(t) }},
		{"forwarders_are_older", func(t *testing.T) { u.install(t, former, "guideway-forwarder"); u.takeOver(t) }},
		{"speakers_are_older", func(t *testing.T) { u.install(t, former, "guideway"); u.restart(t, "speaker") }},
		{"controllers_are_older", func(t *testing.T) { u.restart(t, "controller") }},
		{"forwarders_are_newer_than_all_else", func(t *testing.T) { u.install(t, present, "guideway-forwarder"); u.takeOver(t) }},
		{"agents_are_newer_than_controllers", func(t *testing.T) { u.install(t, present, "guideway-agent"); u.restartAgents(t) }},
		{"all_is_newer", func(t *testing.T) {
			u.install(t, present, "guideway")
			u.restart(t, "controller")
			u.restart(t, "speaker")
		}},
		{"agents_are_older", func(t *testing.T) { u.install(t, former, "guideway-agent"); u.restartAgents(t) }},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(t); u.change(t) }) {
			t.FailNow() // each begins where the one before has ended
		}
	}
	stopUnbroken(t, remote)
	nothingLost(t, u.running)
}

type upgrade struct {
	running  *hosts.Lab
	programs string
}

// install a program of that folder; who runs the former one goes on with it.
func (u *upgrade) install(t *testing.T, from, program string) {
	t.Helper()
	installProgram(t, filepath.Join(from, program), u.programs)
}

// restart that process on each load balancer, one after the other.
func (u *upgrade) restart(t *testing.T, process string) {
	t.Helper()
	if process == "controller" {
		defer keepEyeOnRoutes(t, u.running)()
	}
	for _, machine := range u.running.LoadBalancers() {
		if err := u.running.Stop(machine, process); err != nil {
			t.Fatal(err)
		}
		start := u.running.StartController
		if process == "speaker" {
			start = u.running.StartSpeaker
		}
		if err := start(machine); err != nil {
			t.Fatal(err)
		}
		// Routes and forwarder are ready meanwhile without a controller.
		eventually(t, 30*time.Second, "the controller of "+machine+" answers", func() error {
			_, err := on(t, u.running, machine, "show", "config")
			return err
		})
		if err := u.running.WaitReady(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
	}
}

// restartAgents one after the other: what a backend gets meanwhile is sent again.
func (u *upgrade) restartAgents(t *testing.T) {
	t.Helper()
	for index := range u.running.Backends() {
		if err := u.running.StopAgent(index); err != nil {
			t.Fatal(err)
		}
		if err := u.running.StartAgent(index); err != nil {
			t.Fatal(err)
		}
		eventually(t, 10*time.Second, "the agent answers", func() error {
			_, err := u.running.AgentMetrics(t.Context(), index)
			return err
		})
	}
	if still := replaced(t, u.programs, "guideway-agent"); still > 0 {
		t.Errorf("%d agents still run the former program", still)
	}
}

func (u *upgrade) takeOver(t *testing.T) {
	t.Helper()
	defer keepEyeOnRoutes(t, u.running)()
	for _, machine := range u.running.LoadBalancers() {
		note, err := u.running.TakeOverForwarder(t.Context(), machine)
		if err != nil {
			t.Fatal(err)
		}
		if note == nil || len(note.GetEmptied()) > 0 {
			t.Errorf("%s: taken over %+v", machine, note)
		}
	}
	if still := replaced(t, u.programs, "guideway-forwarder"); still > 0 {
		t.Errorf("%d forwarders still run the former program", still)
	}
}

// change the plan, and back: a speaker's restart moves connections to the other
// machine, whose table has to be the one that they began by.
func (u *upgrade) change(t *testing.T) {
	t.Helper()
	weights := u.running.Weights()
	for _, weight := range []uint32{1, 0} {
		weights[u.running.Backends()[2]] = weight // the spare
		if err := u.running.SetWeights(t.Context(), weights); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}
