// Package events keeps a record of what changed on this machine: the latest events in
// memory, for queries, and on disk, for a restart.
//
//	Tell(event) ─► repeats are folded ─► ring in memory ─┬─► Watch: clients of the API
//	                                                     └─► disk.go: two files of lines
//
// Tell never blocks, neither on the disk, which has its own goroutine, nor on a client. A
// client that reads too slowly misses events, and is told how many.
package events

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/guideway/guideway/controller/outside"
)

// Event is one change of one object's state: as it is logged, as programs of `hooks` read
// it, as it is kept and as the API tells it.
type Event struct {
	Time    time.Time `json:"time"`
	Machine string    `json:"machine"`
	Object  Object    `json:"object"`
	From    string    `json:"from"`
	To      string    `json:"to"`
	Cause   string    `json:"cause"`
	// The user who caused it; empty: nobody did, or it is not known.
	Who string `json:"who"`
}

// Object that changed; as text it is kind and name, like `backend web/web-1`.
type Object struct{ Kind, Name string }

// Kinds of objects.
var Kinds = []string{
	"backend", "pool", "service", "buckets", "route", "virtual router", "session", "machine", "drain", "config",
	"forwarder", "limit", "speaker", "controller", "peer", "agent", "fleet",
}

func (o Object) String() string { return o.Kind + " " + o.Name }

// MarshalText writes kind and name.
func (o Object) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads them. A kind that is not known, of another version, is one word.
func (o *Object) UnmarshalText(text []byte) error {
	whole := string(text)
	at := slices.IndexFunc(Kinds, func(kind string) bool { return strings.HasPrefix(whole, kind+" ") })
	if at >= 0 {
		*o = Object{Kinds[at], whole[len(Kinds[at])+1:]}
		return nil
	}
	kind, name, found := strings.Cut(whole, " ")
	if !found {
		return fmt.Errorf("%q is no object: give kind and name", outside.Text(whole))
	}
	*o = Object{kind, name}
	return nil
}

// Is says whether a text means the object: its kind, kind and name, or for a backend kind
// and name without its pools.
func (o Object) Is(text string) bool {
	_, name, found := strings.Cut(o.Name, "/")
	return text == o.Kind || text == o.String() || o.Kind == "backend" && found && text == o.Kind+" "+name
}

// IsBad says whether the object is worse off now.
func (e Event) IsBad() bool {
	switch e.To {
	case "different", "down", "unhealthy", "cut off", "stale", "withdrawn", "withheld", "lost", "failing", "shrinking", "failed to start",
		"alarmed", "unusable", "restored", "silent", "refused", "behind", "reached", "claimed by another", "not kept":
		return e.From != "new" // not yet probed is no bad news
	}
	return false
}

const (
	// Of a cause: a config may have many mistakes.
	causeBytesMax = 1 << 10
	// Of each other text.
	textBytesMax = 256
)

// bounded has texts that fit into a line, whoever wrote them.
func (e Event) bounded() Event {
	for _, text := range []*string{&e.Machine, &e.Object.Kind, &e.Object.Name, &e.From, &e.To, &e.Who} {
		*text = outside.Line(*text, textBytesMax)
	}
	e.Cause = outside.Line(strings.ReplaceAll(e.Cause, "\n", "; "), causeBytesMax) // a config's mistakes are a line each
	return e
}

// Record is an event as it is kept, with its repeats.
type Record struct {
	// Each record has the next number, also after a restart.
	Number uint64 `json:"number"`
	// Number of the event's first record. When it was repeated, a second record says how often.
	ID uint64 `json:"id"`
	Event
	// How often it happened, and when it did last.
	Count uint64    `json:"count"`
	Last  time.Time `json:"last"`
}
