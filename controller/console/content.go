package console

import (
	"encoding/json"
	"math"
	"slices"
	"time"
)

// content is what a page shows, as texts: rendered whole by page.html, and what is other than
// before sent to pages that are open. A content that exists is not changed.
type content struct {
	Title string
	// What should be known first, a sentence each.
	Notes  []cell
	Tables []*table
	Graphs *graphs // nil: none
	Pager  pager
}

// cell is a text and what is to be seen of it; all but the text may be missing.
type cell struct {
	Text string
	// Of console.css: good, mid, bad, dim, n (a number).
	Class string
	Href  string
	// Seconds since 1970, shown as the time since then.
	Since int64
}

// MarshalJSON is short: pages with 100 rows change each second.
func (c cell) MarshalJSON() ([]byte, error) {
	parts := []any{c.Text, c.Class, c.Href, c.Since}
	switch {
	case c.Since != 0:
	case c.Href != "":
		parts = parts[:3]
	case c.Class != "":
		parts = parts[:2]
	default:
		parts = parts[:1]
	}
	return json.Marshal(parts)
}

type row struct {
	// Of one table's rows each has another one.
	Key   string
	Cells []cell
}

type table struct {
	ID, Title string
	// Tiles: a name and a value each, without a head.
	Tiles bool
	Head  []cell
	Rows  []row
	// How many there are, where it is not all.
	Note string
	// Where it has no row.
	None string
}

// update is what is other than before.
type update struct {
	// Of the machine's clock.
	Now    int64                   `json:"now"`
	Notes  *[]cell                 `json:"notes,omitempty"`
	Tables map[string]*tableUpdate `json:"tables,omitempty"`
	Graphs *graphsUpdate           `json:"graphs,omitempty"`
	// The page is not there any more, and why.
	Problem string `json:"problem,omitempty"`
}

type tableUpdate struct {
	Note *string `json:"note,omitempty"`
	// Keys, if there are others or in another order.
	Order *[]string         `json:"order,omitempty"`
	Rows  map[string][]cell `json:"rows,omitempty"`
}

// since another content of the same page; nil: everything.
func (c *content) since(before *content) update {
	var u update
	if before == nil {
		before = &content{}
	}
	if before.Tables == nil || !slices.Equal(c.Notes, before.Notes) {
		notes := append([]cell{}, c.Notes...) // [] in JSON
		u.Notes = &notes
	}
	former := map[string]*table{}
	for _, t := range before.Tables {
		former[t.ID] = t
	}
	for _, t := range c.Tables {
		if changed := t.since(former[t.ID]); changed != nil {
			if u.Tables == nil {
				u.Tables = map[string]*tableUpdate{}
			}
			u.Tables[t.ID] = changed
		}
	}
	u.Graphs = c.Graphs.since(before.Graphs)
	return u
}

func (t *table) since(before *table) *tableUpdate {
	var u tableUpdate
	former := map[string][]cell{}
	var order []string
	if before == nil || before.Note != t.Note {
		u.Note = &t.Note
	}
	if before != nil {
		for _, r := range before.Rows {
			former[r.Key] = r.Cells
			order = append(order, r.Key)
		}
	}
	keys := make([]string, 0, len(t.Rows)) // [] in JSON
	u.Rows = map[string][]cell{}
	for _, r := range t.Rows {
		keys = append(keys, r.Key)
		if cells, known := former[r.Key]; !known || !slices.Equal(cells, r.Cells) {
			u.Rows[r.Key] = r.Cells
		}
	}
	if before == nil || !slices.Equal(order, keys) {
		u.Order = &keys
	}
	if u.Note == nil && u.Order == nil && len(u.Rows) == 0 {
		return nil
	}
	return &u
}

// graphs of one page have their times in common.
type graphs struct {
	plots []plot
	// The last hour, the oldest first, and what is now.
	points []point
	now    point
}

// plot of some of the values.
type plot struct {
	Title string   `json:"title"`
	Names []string `json:"names"`
	// The first of its values in a point.
	From int `json:"from"`
}

// point has milliseconds since 1970, and values.
type point []float64

func pointAt(t time.Time, values ...float64) point {
	p := point{float64(t.UnixMilli())}
	for _, v := range values {
		p = append(p, math.Round(10*v)/10)
	}
	return p
}

type graphsUpdate struct {
	// With all points.
	Plots  []plot  `json:"plots,omitempty"`
	Points []point `json:"points,omitempty"`
	Now    point   `json:"now,omitempty"`
}

func (g *graphs) since(before *graphs) *graphsUpdate {
	switch {
	case g == nil:
		return nil
	case before == nil:
		return &graphsUpdate{Plots: g.plots, Points: g.points, Now: g.now}
	}
	last := 0.0
	if n := len(before.points); n > 0 {
		last = before.points[n-1][0]
	}
	u := graphsUpdate{Now: g.now}
	for _, p := range g.points {
		if p[0] > last {
			u.Points = append(u.Points, p)
		}
	}
	if len(u.Points) == 0 && slices.Equal(before.now, g.now) {
		return nil
	}
	return &u
}
