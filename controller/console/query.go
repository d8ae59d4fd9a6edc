package console

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/guideway/guideway/controller/outside"
)

// page that somebody asks for: which kind, and of what.
type page struct {
	kind *kind
	// Words that each row has to have.
	q string
	// From 1.
	number int
	// Of the kind's orders; empty: its first one.
	sort string
	// Of an object.
	name string
	// Only events with lower numbers; 0: all.
	before uint64
}

// kind of page.
type kind struct {
	path string
	// In the navigation; empty: it is reached from others.
	title string
	// That it takes, and what it can be sorted by, the usual first.
	parameters []string
	orders     []string
	hasFleet   bool
	build      func(*builder) (*content, error)
}

const (
	rowsMax  = 100
	queryMax = 200
)

// parsePage of a path with parameters. What it does not know it refuses: a search that is
// spelled wrong is not a search for everything.
func parsePage(at *url.URL) (page, error) {
	p := page{number: 1}
	found := slices.IndexFunc(kinds, func(k *kind) bool { return k.path == at.Path })
	if found < 0 {
		return p, refused{http.StatusNotFound, outside.Text(at.Path) + " is no page of the console"}
	}
	p.kind = kinds[found]
	values, err := url.ParseQuery(at.RawQuery)
	if err != nil {
		return p, badRequest("parameters: " + err.Error())
	}
	for name, given := range values {
		switch {
		case !slices.Contains(p.kind.parameters, name):
			takes := "none"
			if len(p.kind.parameters) > 0 {
				takes = strings.Join(p.kind.parameters, ", ")
			}
			return p, badRequest("there is no parameter " + strconv.Quote(name) + " here; there are: " + takes)
		case len(given) > 1:
			return p, badRequest(name + " is given twice: give it once")
		}
		if err := p.set(name, given[0]); err != nil {
			return p, err
		}
	}
	if p.name == "" && slices.Contains(p.kind.parameters, "name") {
		return p, badRequest("name is missing: give a service's name")
	}
	return p, nil
}

func (p *page) set(name, value string) (err error) {
	switch name {
	case "q":
		if len(value) > queryMax {
			return badRequest("q has " + strconv.Itoa(len(value)) + " bytes: give at most " + strconv.Itoa(queryMax))
		}
		p.q = value
	case "page":
		if p.number, err = strconv.Atoi(value); err != nil || p.number < 1 {
			return badRequest("page is " + strconv.Quote(value) + ": give a number from 1")
		}
	case "before":
		if p.before, err = strconv.ParseUint(value, 10, 64); err != nil {
			return badRequest("before is " + strconv.Quote(value) + ": give an event's number")
		}
	case "sort":
		if !slices.Contains(p.kind.orders, value) {
			return badRequest("sort is " + strconv.Quote(value) + ": give one of " + strings.Join(p.kind.orders, ", "))
		}
		p.sort = value
	case "name":
		p.name = value
	}
	return nil
}

// badRequest says what to give instead. What was given is cut: it may be long.
func badRequest(cure string) error { return refused{http.StatusBadRequest, outside.Text(cure)} }

// key is the page's address, the same for all who mean the same page.
func (p page) key() string {
	values := url.Values{}
	for _, name := range p.kind.parameters {
		if value := p.value(name); value != "" {
			values.Set(name, value)
		}
	}
	if len(values) == 0 {
		return p.kind.path
	}
	return p.kind.path + "?" + values.Encode()
}

// value of a parameter; empty: it is the usual one.
func (p page) value(name string) string {
	switch {
	case name == "q":
		return p.q
	case name == "page" && p.number > 1:
		return strconv.Itoa(p.number)
	case name == "before" && p.before > 0:
		return strconv.FormatUint(p.before, 10)
	case name == "sort" && p.sort != "" && p.sort != p.kind.orders[0]:
		return p.sort
	case name == "name":
		return p.name
	}
	return ""
}

// Sort is what it is sorted by.
func (p page) Sort() string {
	if len(p.kind.orders) == 0 {
		return ""
	}
	return cmp.Or(p.sort, p.kind.orders[0])
}

// linkTo the same page with one parameter changed.
func (p page) linkTo(name, value string) string {
	if err := p.set(name, value); err != nil {
		return "" // only what a page may have is linked
	}
	return "." + p.key()
}

// words of the search, in lower case.
func (p page) words() []string { return strings.Fields(strings.ToLower(p.q)) }

// matches says whether each word is in one of the texts.
func matches(words []string, texts ...string) bool {
	for _, word := range words {
		if !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(strings.ToLower(text), word) }) {
			return false
		}
	}
	return true
}

// pager leads to other pages of the same rows; empty links: there are none.
type pager struct{ Former, Next string }
