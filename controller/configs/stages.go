package configs

// The stages of a config. There is at most one config at each stage.
//
//	offered ─► checked ─► loaded ─► running ─► kept
//
//	offered   read from files or etcd, or sent by a client, and parsed; nobody's yet
//	checked   it may follow the one that plans are made of (Configs.CheckNext); of a
//	          client's, the forwarder would take its plan, and so would every live machine
//	loaded    the brain makes plans of it
//	running   the forwarder has accepted such a plan; it is in the history
//	kept      on disk, for a start that can have no other (statedir.Keeper)
//
// A config that is refused goes no further, and the previous one stays at its stage: if the
// forwarder refuses a config, the brain returns to the running one until another is loaded.

import (
	"slices"
	"sync"
	"time"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/fleet"
)

// Config and what it was made of.
type Config struct {
	Parsed *config.Config
	// Where it came from, for people.
	From string
	// The part that came from etcd; nil: none.
	Shared *fleet.Config

	loadedAt time.Time
	sources  []config.Source
	digest   string // of the sources
	// Files that it names.
	named  namedFiles
	origin Origin
	// Prepared already; nil: it is made when the config runs.
	record *Record
	// Why it cannot be used; all else is empty then.
	problem error
}

// stages may be read from any goroutine; the one that owns the brain changes them.
type stages struct {
	mu sync.Mutex
	// What runs, if anything does, and what was loaded after it, of which the forwarder
	// may still accept plans. The last one is the loaded one.
	loads []*Config
	// nil: none yet.
	running *Config
	// By a former controller; nil: by none.
	kept *Config
}

// startWith what a former controller kept.
func (s *stages) startWith(kept *Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = kept
}

// setLoaded to the next one; the former one may have been refused, and is forgotten then.
func (s *stages) setLoaded(next *Config, formerRefused bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next.loadedAt = now
	if n := len(s.loads); formerRefused && n > 0 {
		s.loads = s.loads[:n-1]
	}
	s.loads = append(s.loads, next)
}

// setRunning to one of those loaded: the forwarder has accepted a plan of it.
func (s *stages) setRunning(c *Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads = slices.Clone(s.loads[slices.Index(s.loads, c):])
	s.running = c
}

// Loaded last, whatever the forwarder says of it; nil: none yet.
func (s *stages) Loaded() *Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.loads) == 0 {
		return nil
	}
	return s.loads[len(s.loads)-1]
}

// LoadedAt is when the one loaded last was; zero: there is none yet.
func (s *stages) LoadedAt() time.Time {
	if loaded := s.Loaded(); loaded != nil {
		return loaded.loadedAt
	}
	return time.Time{}
}

// of is the one, loaded or running, that was parsed to this; nil: none.
func (s *stages) of(parsed *config.Config) *Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.loads {
		if c.Parsed == parsed {
			return c
		}
	}
	return nil
}

// Running is the one that the forwarder accepted last; nil: none yet.
func (s *stages) Running() *Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// InUse is the one that runs; where the forwarder has not been reached yet, the one that
// it is to run; nil: none yet.
func (s *stages) InUse() *Config {
	if running := s.Running(); running != nil {
		return running
	}
	return s.Loaded()
}

// Machine is this one's name; empty: nothing is loaded yet.
func (s *stages) Machine() string {
	if loaded := s.Loaded(); loaded != nil {
		return loaded.Parsed.Machine.Name
	}
	return ""
}

// Shared is what is loaded from etcd, or before that what was kept from there; nil: nothing.
func (s *stages) Shared() *fleet.Config {
	if loaded := s.Loaded(); loaded != nil {
		return loaded.Shared
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept == nil {
		return nil
	}
	return s.kept.Shared
}
