// Package keepalived converts keepalived's configuration to ours.
//
//	files ─► lines (includes, conditions, parameters) ─► blocks ─► services, pools, checks, and notes
//
// It guarantees that each difference, omission or meaningless statement is noted with its
// place, and that after Settle `config check` accepts the configuration. It opens files
// only through functions that the caller supplies, runs no script and uses no network. The
// format is that of keepalived.conf(5), keepalived 2.3.
package keepalived

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/controller/outside"
	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// Result of an import.
type Result struct {
	// Services, pools and health checks: what is a machine's own is the caller's to add.
	Config *configv1.Config
	// Of the first VRRP instance; empty without one.
	Interface string

	notes []note
	// Where a service, VIP, pool, backend or check comes from.
	origins map[proto.Message]*item
}

// Kind of a note.
type Kind string

const (
	// Differs: it was converted, and works differently.
	Differs Kind = "differs"
	// LeftOut: it matters for what is served, and ours lacks it.
	LeftOut Kind = "left out"
	// Ignored: it is nothing that is served (mail, SNMP, names).
	Ignored Kind = "ignored"
)

type note struct {
	Place
	kind      Kind
	what, why string
	// The message of ours that it stands above as a comment; nil: it stands at the end.
	target proto.Message
}

// Import the file at a path. Lines `@id` are taken for this id only.
func Import(path, id string, files Files) (*Result, error) {
	r := &reader{files: files, id: id, parameters: map[string]parameter{}}
	if err := r.file(path, Place{}); err != nil {
		return nil, err
	}
	outermost, err := blocks(r.lines)
	if err != nil {
		return nil, err
	}
	c := newConversion(outermost)
	for _, i := range outermost.items {
		c.outermost(i)
	}
	for _, i := range outermost.items {
		if c.groups[i.value(1)] == i && !c.groupsUsed[i.value(1)] {
			c.note(nil, Ignored, i, "used by no virtual_server")
		}
	}
	c.addressesWithoutService()
	c.sweep()
	return c.Result, nil
}

// Note what has no place in keepalived's configuration but is left out of ours.
func (r *Result) Note(target proto.Message, what, why string) {
	r.notes = append(r.notes, note{kind: LeftOut, what: what, why: why, target: target})
}

func (r *Result) note(target proto.Message, kind Kind, at *item, why string, values ...any) {
	r.notes = append(r.notes, note{at.Place, kind, at.what(), fmt.Sprintf(why, values...), target})
}

// Comments above messages of the config, and those that belong to none.
func (r *Result) Comments() (above map[proto.Message][]string, end []string) {
	notes := map[proto.Message][]note{}
	for _, n := range r.notes {
		notes[n.target] = append(notes[n.target], n)
	}
	above = map[proto.Message][]string{}
	for target, of := range notes {
		above[target] = lines(of)
	}
	end = above[nil]
	delete(above, nil)
	return above, end
}

// Report has a line for each thing that differs or is missing; what is said of several places is
// said once.
func (r *Result) Report() []string { return lines(r.notes) }

// Count notes of a kind, as they are reported.
func (r *Result) Count(kind Kind) int {
	return len(lines(slices.DeleteFunc(slices.Clone(r.notes), func(n note) bool { return n.kind != kind })))
}

// Of a note that is true of many.
const placesShown = 8

func lines(notes []note) (lines []string) {
	type text struct {
		kind      Kind
		what, why string
	}
	places := map[text][]string{}
	var texts []text
	for _, n := range notes {
		one := text{n.kind, n.what, n.why}
		if _, known := places[one]; !known {
			texts = append(texts, one)
		}
		if place := n.place(); !slices.Contains(places[one][max(0, len(places[one])-1):], place) {
			places[one] = append(places[one], place)
		}
	}
	for _, one := range texts {
		at, more := places[one], ""
		if further := len(at) - 1; further > 0 {
			more = fmt.Sprintf(" (and %d more: %s", further, strings.Join(at[1:min(len(at), placesShown)], ", "))
			if len(at) > placesShown {
				more += ", ..."
			}
			more += ")"
		}
		where := ""
		if at[0] != "" {
			where = at[0] + ": "
		}
		lines = append(lines, fmt.Sprintf("%s: %s%s: %s%s", one.kind, where, one.what, one.why, more))
	}
	return lines
}

func (n note) place() string {
	if n.Line == 0 {
		return ""
	}
	return outside.Line(n.Place.String(), textMax)
}
