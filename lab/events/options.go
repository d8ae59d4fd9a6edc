package events

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/guideway/guideway/lab/topology"
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
	// Router of the lab: see topology.Options.
	Router string
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

	// leftOut events, if Events were empty: a line for each reason.
	leftOut []string
}

// Defaults of a run.
func Defaults() Options {
	return Options{Seed: 1, Backends: 4, LoadBalancers: 2, Connections: 500, Agents: true}
}

// FromEnvironment overrides options by SEED, BACKENDS, LOAD_BALANCERS,
// CONNECTIONS, AGENTS, ROUTER, EVENTS, DEMO_REPORT and DEMO_PICTURE where they are set and not
// empty.
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
	o.Router = cmp.Or(get("ROUTER"), o.Router)
	o.Report = cmp.Or(get("DEMO_REPORT"), o.Report)
	o.Picture = cmp.Or(get("DEMO_PICTURE"), o.Picture)
	return o, nil
}

// SplitEvents at commas; white space does not matter.
func SplitEvents(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// check refuses what cannot be done, and fills in the events: all that can be.
func (o Options) check() (Options, error) {
	switch {
	case o.Backends < 2:
		return o, fmt.Errorf("backends %d: give 2 or more, so that one can go", o.Backends)
	case o.LoadBalancers < 1:
		return o, fmt.Errorf("load balancers %d: give 1 or more", o.LoadBalancers)
	case o.Connections < 1 || o.Connections > 20_000:
		return o, fmt.Errorf("connections %d: give 1 to 20000", o.Connections)
	}
	for _, name := range o.Events {
		e, known := findEvent(name)
		if !known {
			return o, fmt.Errorf("event %q is unknown: give some of %s", name, strings.Join(EventNames(), ", "))
		}
		if lack := e.lack(o); lack != "" {
			return o, fmt.Errorf("event %s: %s", name, lack)
		}
	}
	if len(o.Events) == 0 {
		o.Events, o.leftOut = possible(o)
	}
	return o, nil
}

// possible events in their usual order, and those that are not: a line for each reason.
func possible(o Options) (names, leftOut []string) {
	var lacks []string
	byLack := map[string][]string{}
	for _, e := range events {
		if e.onRequest {
			continue
		}
		lack := e.lack(o)
		if lack == "" {
			names = append(names, e.name)
			continue
		}
		if byLack[lack] == nil {
			lacks = append(lacks, lack)
		}
		byLack[lack] = append(byLack[lack], e.name)
	}
	for _, lack := range lacks {
		leftOut = append(leftOut, fmt.Sprintf("%s: %s", strings.Join(byLack[lack], ", "), lack))
	}
	return names, leftOut
}

// lack of something that an event needs, in words; empty: it can be done.
func (e event) lack(o Options) string {
	switch {
	case e.needsTwo && o.LoadBalancers < 2:
		return "it needs 2 or more load balancers"
	case e.stateless && !o.Agents:
		return "stateless services need agents: leave out AGENTS=0"
	case e.rehashes && o.Router == topology.NoRouter:
		return "a router has to rehash flows: leave out ROUTER=none"
	}
	return ""
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
