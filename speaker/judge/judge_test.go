package judge

import (
	"testing"
	"time"
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// well is an answer of a forwarder that forwards by plan 7.
func well(at time.Time) Answer {
	return Answer{
		Asked: at, PID: 1, Generation: 7, Threads: []Thread{{Name: "worker-0"}},
		Devices: []Device{{Interface: "eth1", Up: true}},
	}
}

func TestOnlyAForwarderThatForwardsIsWell(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Answer)
		want   string
	}{
		"well":                  {func(*Answer) {}, ""},
		"a later plan":          {func(a *Answer) { a.Generation = 8 }, ""},
		"no plan":               {func(a *Answer) { a.Generation, a.Threads, a.Devices = 0, nil, nil }, "it has no plan"},
		"an older plan":         {func(a *Answer) { a.Generation = 6 }, "it forwards by plan 6, older than 7, which it had accepted"},
		"a thread is blocked":   {func(a *Answer) { a.Threads[0].Hangs, a.Threads[0].HeartbeatAge = true, 130*time.Millisecond }, "thread worker-0 hangs: no heartbeat for 130ms, and it does not wait for a processor"},
		"a thread hangs":        {func(a *Answer) { a.Threads[0].HeartbeatAge = HeartbeatAgeMax + 1 }, "thread worker-0 hangs: no heartbeat for 1.000000001s"},
		"a thread is starved":   {func(a *Answer) { a.Threads[0].Waits, a.Threads[0].HeartbeatAge = true, 2*StarvedMax }, ""},
		"no threads":            {func(a *Answer) { a.Threads = nil }, "it has a plan but no threads that forward"},
		"a device is down":      {func(a *Answer) { a.Devices[0].Up = false }, "device eth1 is down"},
		"it stops":              {func(a *Answer) { a.Stopping = true }, "it is stopping"},
		"asked before the plan": {func(a *Answer) { a.Generation, a.Asked = 6, began }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := New()
			f.Require(7, began)
			answer := well(began.Add(time.Second))
			c.change(&answer)
			f.Hear(answer, answer.Asked)
			if f.Reason() != c.want {
				t.Errorf("reason %q, want %q", f.Reason(), c.want)
			}
		})
	}
}

func TestAForwarderThatComesBackIsWaitedForUntilItHasNextHops(t *testing.T) {
	f := New()
	now := began
	unresolved := func(count uint32) {
		answer := well(now)
		answer.Unresolved = count
		f.Hear(answer, now)
	}
	unresolved(2)
	if f.Reason() != "waiting for the next hops of 2 backends" {
		t.Errorf("reason %q", f.Reason())
	}
	unresolved(0)
	if f.Reason() != "" {
		t.Errorf("reason %q with all next hops", f.Reason())
	}
	// One that is lost later concerns its own backend only.
	unresolved(1)
	if f.Reason() != "" {
		t.Errorf("reason %q while it is well", f.Reason())
	}
	// A backend that is gone for good keeps nothing back.
	f.Lose("does not answer", now)
	unresolved(1)
	now = now.Add(NextHopsMax)
	unresolved(1)
	if f.Reason() != "" {
		t.Errorf("reason %q after %v", f.Reason(), NextHopsMax)
	}
}

func TestAForwarderThatFollowsNoNextHopsIsAWorseChoiceAndNoMore(t *testing.T) {
	for name, want := range map[string]string{
		"next-hops": "thread next-hops has had no heartbeat for 6s: it sends by next hops, routes and MTUs of that time",
		"punt":      "", "probes": "", "take-over": "",
	} {
		f, answer := New(), well(began)
		answer.Helpers = []Thread{{Name: name, HeartbeatAge: HelperAgeMax}}
		f.Hear(answer, began)
		if f.Reason() != "" || f.Slow() != "" {
			t.Errorf("%s goes round: reason %q, slow %q", name, f.Reason(), f.Slow())
		}
		answer.Helpers[0].HeartbeatAge = HelperAgeMax + time.Second
		f.Hear(answer, began)
		if f.Reason() != "" || f.Slow() != want {
			t.Errorf("%s hangs: reason %q, slow %q", name, f.Reason(), f.Slow())
		}
	}
}

func TestWhatIsStarvedIsSlowUntilItWasQuietForAWhile(t *testing.T) {
	f, now := New(), began
	hear := func(waited time.Duration) {
		t.Helper()
		answer := well(now)
		answer.Threads[0].Waits, answer.Threads[0].HeartbeatAge = waited > 0, waited
		f.Hear(answer, now)
		f.Check(now)
		if f.Reason() != "" {
			t.Errorf("reason %q", f.Reason())
		}
	}
	wantSlow := func(want string) {
		t.Helper()
		if f.Slow() != want {
			t.Errorf("slow %q, want %q", f.Slow(), want)
		}
	}
	hear(WaitMax)
	wantSlow("")
	hear(WaitMax + time.Millisecond)
	wantSlow("thread worker-0 waited 1.001s for a processor")
	now = now.Add(SlowQuiet / 2)
	hear(0)
	f.Wait("its thread waits", now, now)
	wantSlow("its thread waits")
	now = now.Add(SlowQuiet - time.Millisecond)
	hear(0)
	wantSlow("its thread waits")
	now = now.Add(time.Millisecond)
	if at := f.Again(); !at.Equal(now) {
		t.Errorf("to be checked at %v, not %v", at, now)
	}
	hear(0)
	wantSlow("")
}

func TestAStarvedForwarderIsUnwellOnlyWhereAPeerIsWell(t *testing.T) {
	for name, starve := range map[string]func(f *Forwarder, now time.Time){
		"a thread": func(f *Forwarder, now time.Time) {
			answer := well(now)
			answer.Threads[0].Waits, answer.Threads[0].HeartbeatAge = true, now.Sub(began)
			f.Hear(answer, now)
		},
		"the thread that answers": func(f *Forwarder, now time.Time) { f.Wait("its thread waits", now, now) },
	} {
		t.Run(name, func(t *testing.T) {
			f := New()
			f.Hear(well(began), began)
			starve(&f, began)
			starve(&f, began.Add(10*StarvedMax))
			f.Check(began.Add(10 * StarvedMax))
			if f.Reason() != "" || f.Slow() == "" {
				t.Errorf("alone: reason %q, slow %q", f.Reason(), f.Slow())
			}
			f.KnowPeers(true)
			starve(&f, began.Add(StarvedMax))
			if f.Reason() != "" {
				t.Errorf("too early: %q", f.Reason())
			}
			starve(&f, began.Add(StarvedMax+time.Millisecond))
			if f.Reason() == "" {
				t.Error("starved beside a peer that is well, and announced")
			}
		})
	}
}

func TestSilenceOfWhoAsksIsSlowness(t *testing.T) {
	f := New()
	f.Hear(well(began), began)
	if at := f.Again(); !at.Equal(began.Add(AnswerAgeMax)) {
		t.Errorf("to be checked at %v", at)
	}
	f.Check(began.Add(AnswerAgeMax))
	if f.Slow() != "" {
		t.Errorf("slow %q too early", f.Slow())
	}
	now := began.Add(AnswerAgeMax + time.Millisecond)
	f.Check(now)
	if f.Reason() != "" || f.Slow() != "nothing was heard of it for 1.501s" {
		t.Errorf("reason %q, slow %q", f.Reason(), f.Slow())
	}
	if !f.Again().After(now) {
		t.Errorf("to be checked at %v, again and again", f.Again())
	}
}
