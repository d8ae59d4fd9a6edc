package controller

// The announcer keeps the speaker on the newest wanted state, off the brain's
// goroutine: a slow BGP library must not make us miss a dead forwarder.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/speaker"
)

// What could not be announced is tried again this often.
const announceRetry = time.Second

type announcer struct {
	log     *slog.Logger
	speaker *speaker.Speaker
	wake    chan struct{}
	ended   chan struct{}

	mu   sync.Mutex
	want speaker.Desired
	done bool // the speaker has what is wanted
	halt bool
}

func newAnnouncer(log *slog.Logger, s *speaker.Speaker) *announcer {
	return &announcer{log: log, speaker: s, wake: make(chan struct{}, 1), ended: make(chan struct{}), done: true}
}

func (a *announcer) set(want speaker.Desired) {
	a.mu.Lock()
	a.want, a.done = want, false
	a.mu.Unlock()
	a.poke()
}

func (a *announcer) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// stop waits until the newest state was brought about (or failed once).
func (a *announcer) stop() {
	a.mu.Lock()
	a.halt = true
	a.mu.Unlock()
	a.poke()
	<-a.ended
}

func (a *announcer) run(ctx context.Context) {
	defer close(a.ended)
	retry := time.NewTicker(announceRetry)
	defer retry.Stop()
	for {
		select {
		case <-a.wake:
		case <-retry.C:
		case <-ctx.Done():
			return
		}
		if a.once(ctx) {
			return
		}
	}
}

// once brings about the wanted state and reports whether to end.
func (a *announcer) once(ctx context.Context) (end bool) {
	a.mu.Lock()
	want, done, halt := a.want, a.done, a.halt
	a.done = true
	a.mu.Unlock()
	if done {
		return halt
	}
	if err := a.speaker.Set(ctx, want); err != nil {
		a.log.Error("BGP, trying again", "error", err)
		a.mu.Lock()
		a.done = false
		a.mu.Unlock()
	}
	return halt
}

// desiredOf joins the brain's routes with the config's sessions.
func (c *Controller) desiredOf(want brain.Desired) speaker.Desired {
	if want.Config == nil || want.Config.BGP == nil {
		return speaker.Desired{}
	}
	bgp := want.Config.BGP
	return speaker.Desired{
		Identity:  speaker.Identity{ASN: bgp.ASN, RouterID: bgp.RouterID},
		Neighbors: c.neighborsOf(want.Config),
		Routes:    want.Routes,
	}
}

// neighborsOf reads the passwords once per config, so that a file that is
// being replaced does not end a session.
func (c *Controller) neighborsOf(cfg *config.Config) []speaker.Neighbor {
	if c.loaded.neighborsOf == cfg {
		return c.loaded.neighbors
	}
	var neighbors []speaker.Neighbor
	for _, n := range cfg.BGP.Neighbors {
		neighbor := speaker.Neighbor{
			Address: n.Address, ASN: n.ASN, HoldTime: n.HoldTime, TTLSecurity: n.TTLSecurity, Source: n.Source, Multihop: n.Multihop,
			Attributes: speaker.Attributes{LocalPref: n.LocalPref, Prepend: n.Prepend},
		}
		if n.MED != nil {
			neighbor.Attributes.MED, neighbor.Attributes.WithMED = *n.MED, true
		}
		if n.BFD != nil {
			neighbor.BFD = speaker.BFD{Interval: n.BFD.Interval, Multiplier: n.BFD.Multiplier}
		}
		password, err := passwordOf(n.PasswordFile)
		if err != nil {
			c.log.Error("BGP neighbor left out", "neighbor", n.Address, "error", err)
			continue
		}
		neighbor.Password = password
		neighbors = append(neighbors, neighbor)
	}
	c.loaded.neighborsOf, c.loaded.neighbors = cfg, neighbors
	return neighbors
}

func passwordOf(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the password file: %w", err)
	}
	password := string(config.TrimSecret(data))
	if password == "" {
		return "", errors.New("the password file " + file + " is empty")
	}
	return password, nil
}
