package console

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/guideway/guideway/controller/events"
	"github.com/guideway/guideway/controller/rates"
)

// kinds of pages, in the order of the navigation.
var kinds = []*kind{
	{path: "/", title: "Overview", build: (*builder).overview},
	{path: "/services", title: "Services", parameters: []string{"q", "sort", "page"}, orders: []string{"trouble", "name", "packets", "bytes", "connections"}, build: (*builder).services},
	{path: "/service", parameters: []string{"name"}, build: (*builder).service},
	{path: "/backends", title: "Backends", parameters: []string{"q", "sort", "page"}, orders: []string{"trouble", "name", "packets", "bytes", "connections", "since"}, build: (*builder).backends},
	{path: "/moves", title: "Moves", parameters: []string{"q", "page"}, build: (*builder).moves},
	{path: "/machines", title: "Machines", hasFleet: true, build: (*builder).machines},
	{path: "/routes", title: "Routes", parameters: []string{"q", "page"}, build: (*builder).routes},
	{path: "/drops", title: "Drops", build: (*builder).drops},
	{path: "/events", title: "Events", parameters: []string{"q", "before"}, build: (*builder).timeline},
}

// Rows of a table beside others.
const shortMax = 10

// builder of one page's content.
type builder struct {
	view   *view
	page   page
	events *events.Log
	hours  *rates.Rates
	// Of pages that need them.
	fleet   *fleet
	objects func(events.Object) bool
}

// pick of items those that the search finds, in an order, and of those one page.
func pick[T any](b *builder, items []T, texts func(T) []string, order func(x, y T) int) (chosen []T, note string, to pager) {
	if words := b.page.words(); len(words) > 0 {
		for _, item := range items {
			if matches(words, texts(item)...) {
				chosen = append(chosen, item)
			}
		}
	} else {
		chosen = slices.Clone(items)
	}
	if order != nil {
		slices.SortStableFunc(chosen, order)
	}
	found := len(chosen)
	pages := max(1, (found+rowsMax-1)/rowsMax)
	at := min(b.page.number, pages)
	chosen = chosen[(at-1)*rowsMax : min(at*rowsMax, found)]
	note = count(found)
	if b.page.q != "" {
		note += " of " + count(len(items))
	}
	if pages > 1 {
		note += fmt.Sprintf(", page %s of %s", count(at), count(pages))
	}
	if at > 1 {
		to.Former = b.page.linkTo("page", strconv.Itoa(at-1))
	}
	if at < pages {
		to.Next = b.page.linkTo("page", strconv.Itoa(at+1))
	}
	return chosen, note, to
}

func heads(names ...string) (cells []cell) {
	for _, name := range names {
		if right, isNumber := strings.CutPrefix(name, "#"); isNumber {
			cells = append(cells, styled(right, number))
		} else {
			cells = append(cells, plain(name))
		}
	}
	return cells
}
