package events

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Options of a run. Zero values are not defaults: see Defaults.
type Options struct {
	// Seed decides on five-tuples, message content, and on which backend and
	// which load balancer it hits.
	Seed          uint64
	Backends      int
	LoadBalancers int
	Connections   int
	// Agents: packets go to backends in Geneve, and connections that a load balancer
	// does not know have a second chance: agents pass them on. Without: GRE, and
	// tables alone decide, as in the paper.
	Agents bool
	// Events in this order; empty: all that this topology allows.
	Events []string
	// Report is a file for the result as JSON; empty: none.
	Report string
	// Picture is a file for the result as SVG; empty: none.
	Picture string
	// Name of the lab, BinDir of its programs.
	Name   string
	BinDir string
	Output io.Writer
}

// Defaults of a run.
func Defaults() Options {
	return Options{Seed: 1, Backends: 4, LoadBalancers: 2, Connections: 500, Agents: true}
}

// FromEnvironment overrides options by SEED, BACKENDS, LOAD_BALANCERS,
// CONNECTIONS, AGENTS, EVENTS, DEMO_REPORT and DEMO_PICTURE where they are set and not empty.
func (o Options) FromEnvironment(get func(string) string) (Options, error) {
	var err error
	if text := get("SEED"); text != "" {
		if o.Seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			return o, fmt.Errorf("SEED=%s: not a number from 0 on", text)
		}
	}
	for name, number := range map[string]*int{"BACKENDS": &o.Backends, "LOAD_BALANCERS": &o.LoadBalancers, "CONNECTIONS": &o.Connections} {
		if text := get(name); text != "" {
			if *number, err = strconv.Atoi(text); err != nil {
				return o, fmt.Errorf("%s=%s: not a number", name, text)
			}
		}
	}
	if text := get("AGENTS"); text != "" {
		if text != "0" && text != "1" {
			return o, fmt.Errorf("AGENTS=%s: give 1, or 0 for GRE without their help", text)
		}
		o.Agents = text == "1"
	}
	if text := get("EVENTS"); text != "" {
		o.Events = SplitEvents(text)
	}
	if text := get("DEMO_REPORT"); text != "" {
		o.Report = text
	}
	if text := get("DEMO_PICTURE"); text != "" {
		o.Picture = text
	}
	return o, nil
}

// SplitEvents at commas; white space does not matter.
func SplitEvents(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// check refuses what cannot be done, and fills in the events.
func (o Options) check() (Options, error) {
	switch {
	case o.Backends < 2:
		return o, fmt.Errorf("backends %d: give 2 or more, so that one can go", o.Backends)
	case o.LoadBalancers < 1:
		return o, fmt.Errorf("load balancers %d: give 1 or more", o.LoadBalancers)
	case o.Connections < 1 || o.Connections > 20_000:
		return o, fmt.Errorf("connections %d: give 1 to 20000", o.Connections)
	}
	if len(o.Events) == 0 {
		for _, e := range events {
			if !e.onRequest && (o.LoadBalancers > 1 || !e.needsTwo) && (o.Agents || !e.stateless) {
				o.Events = append(o.Events, e.name)
			}
		}
	}
	for _, name := range o.Events {
		e, known := findEvent(name)
		if !known {
			return o, fmt.Errorf("event %q is unknown: give some of %s", name, strings.Join(EventNames(), ", "))
		}
		if e.needsTwo && o.LoadBalancers < 2 {
			return o, fmt.Errorf("event %s needs 2 or more load balancers", name)
		}
		if e.stateless && !o.Agents {
			return o, fmt.Errorf("event %s is of stateless services, which need agents: leave out AGENTS=0", name)
		}
	}
	return o, nil
}

// EventNames in their usual order.
func EventNames() []string {
	var list []string
	for _, e := range events {
		list = append(list, e.name)
	}
	return list
}

func findEvent(name string) (event, bool) {
	i := slices.IndexFunc(events, func(e event) bool { return e.name == name })
	if i < 0 {
		return event{}, false
	}
	return events[i], true
}
