package configs

import (
	"testing"
	"time"

	"github.com/guideway/guideway/controller/config"
)

func named(name string) *Config {
	return &Config{From: name, Parsed: &config.Config{Machine: config.Machine{Name: name}}}
}

func TestOneConfigIsAtEachStage(t *testing.T) {
	var s stages
	now := time.Unix(1_700_000_000, 0)
	if s.Loaded() != nil || s.InUse() != nil || s.Machine() != "" || s.Shared() != nil || !s.LoadedAt().IsZero() {
		t.Error("there is one before any")
	}
	a, b, c := named("a"), named("b"), named("c")
	s.setLoaded(a, false, now)
	if running := s.Running(); running != nil || s.InUse() != a || s.Machine() != "a" || !s.LoadedAt().Equal(now) {
		t.Error("loaded is not running, but the one to run")
	}
	s.setRunning(a)
	if running := s.Running(); running != a {
		t.Error("what the forwarder accepted does not run")
	}
	// b is loaded while a runs, and c before the forwarder has answered.
	s.setLoaded(b, false, now)
	s.setLoaded(c, false, now)
	if s.Loaded() != c || s.InUse() != a || s.of(b.Parsed) != b {
		t.Error("what is under way is forgotten, or runs already")
	}
	s.setRunning(b)
	if s.InUse() != b || s.Loaded() != c || s.of(a.Parsed) != nil {
		t.Error("after b, c may still run, and a no more")
	}
	s.setRunning(c)
	if s.InUse() != c || s.Loaded() != c || s.of(b.Parsed) != nil {
		t.Error("c is all there is")
	}
}

func TestARefusedConfigIsForgottenWithTheNext(t *testing.T) {
	var s stages
	a, bad, next := named("a"), named("bad"), named("next")
	s.setLoaded(a, false, time.Time{})
	s.setRunning(a)
	s.setLoaded(bad, false, time.Time{})
	s.setLoaded(next, true, time.Time{})
	if s.of(bad.Parsed) != nil || s.of(a.Parsed) != a || s.Loaded() != next || s.InUse() != a {
		t.Error("the refused one is still there, or another is not")
	}
}
