package console

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/guideway/guideway/controller/events"
)

func (b *builder) timeline() (*content, error) {
	t, last := b.eventsTable(rowsMax, func(events.Object) bool { return true })
	c := &content{Title: "Events", Tables: []*table{t}}
	if last > 0 {
		c.Pager.Next = b.page.linkTo("before", strconv.FormatUint(last, 10))
	}
	if b.page.before > 0 {
		c.Pager.Former = link("events", "q", b.page.q)
	}
	return c, nil
}

// eventsTable has the latest first, of objects that are meant; and the number of the last one
// if there are more.
func (b *builder) eventsTable(limit int, isMeant func(events.Object) bool) (t *table, last uint64) {
	t = &table{ID: "events", Title: "Events", Head: heads("Time", "Since", "Object", "Change", "Cause", "Who"), None: "none"}
	words := b.page.words()
	b.events.Back(b.page.before, func(r *events.Record) bool {
		if !isMeant(r.Object) || !matches(words, r.Object.String(), r.From, r.To, r.Cause, r.Who, r.Machine) {
			return true
		}
		if len(t.Rows) == limit {
			last, _ = strconv.ParseUint(t.Rows[limit-1].Key, 10, 64)
			return false
		}
		t.Rows = append(t.Rows, row{strconv.FormatUint(r.Number, 10), eventCells(r)})
		return true
	})
	return t, last
}

func eventCells(r *events.Record) []cell {
	object := plain(r.Object.String())
	switch r.Object.Kind {
	case "service":
		object.Href = link("service", "name", r.Object.Name)
	case "backend":
		_, name, _ := strings.Cut(r.Object.Name, "/")
		object.Href = link("backends", "q", name)
	}
	change := strings.TrimPrefix(r.From+" → "+r.To, " → ")
	if r.Count > 1 {
		change += fmt.Sprintf(" (%s times)", count(r.Count))
	}
	return []cell{plain(r.Last.Format(time.DateTime)), {Since: r.Last.Unix()}, object, styled(change, eventClass(&r.Event)), plain(r.Cause), plain(r.Who)}
}

func eventClass(e *events.Event) string {
	switch {
	case e.IsBad():
		return bad
	case slices.Contains([]string{"active", "serving", "announced", "established", "healthy", "alike"}, e.To):
		return good
	}
	return ""
}
