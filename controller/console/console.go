// Package console is the web console. It shows services, backends, machines, routes, moves,
// drops and events as they are now. Everything is read only, and pages load nothing from
// elsewhere.
//
//	State, rates, events ─► view (view.go), once a second for all readers
//	                          └─► content (content.go) of one page: texts in tables
//	                                ├─► page.html, for a browser that asks
//	                                └─► what is other than before, to /live (live.go)
//
// It limits its resources, whatever its readers do: memory (a page has at most 100 rows,
// the number of streams is limited), and half of one processor (gate.go).
package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/guideway/guideway/controller/events"
	"github.com/guideway/guideway/controller/rates"
	"github.com/guideway/guideway/controller/web"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// Sources are where the answers come from.
type Sources struct {
	State func(context.Context) (*controllerv1.GetStateResponse, error)
	// Machines of the cluster; an error where the config names no others, with the cure.
	Fleet func(context.Context) (*controllerv1.GetFleetResponse, error)
	Rates *rates.Rates
	// What changed; and which of it is about a service.
	Events    *events.Log
	ObjectsOf func(ctx context.Context, service string) (func(events.Object) bool, error)
}

const (
	// Rates are read each second: each reading finds a view that is older than this.
	viewAge = 900 * time.Millisecond
	// Machines are read from etcd, or from what peers said.
	fleetAge = 5 * time.Second
	// From the request to the answer.
	answerTimeout = 10 * time.Second
)

// Console answers browsers.
type Console struct {
	log     *slog.Logger
	sources Sources
	view    *web.Shared[*view]
	fleet   *web.Shared[*fleet]
	gate    gate
	streams chan struct{} // as many as there may be
}

// New console that shows what its sources have.
func New(log *slog.Logger, begin web.Begin, sources Sources) *Console {
	c := &Console{log: log, sources: sources, gate: newGate(), streams: make(chan struct{}, streamsMax)}
	c.view = web.NewShared(begin, viewAge, c.readView)
	c.fleet = web.NewShared(begin, fleetAge, c.readFleet)
	return c
}

// Register its paths.
func (c *Console) Register(mux *http.ServeMux) {
	for _, k := range kinds {
		path := k.path
		if path == "/" {
			path = "/{$}"
		}
		mux.HandleFunc("GET "+path, c.servePage)
	}
	mux.HandleFunc("GET /live", c.serveLive)
	for name, file := range assets {
		mux.HandleFunc("GET /assets/"+name, file.serve)
	}
}

// protect an answer: nothing from elsewhere, no code but ours, in no frame of others.
func protect(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	// A connection that rests would keep a place from who scrapes /metrics.
	h.Set("Connection", "close")
}

func (c *Console) servePage(w http.ResponseWriter, r *http.Request) {
	protect(w)
	page, err := parsePage(r.URL)
	if err == nil {
		var of *made
		ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
		defer cancel()
		if of, err = c.make(ctx, page, true); err == nil {
			w.Header().Set("Cache-Control", "no-store")
			web.ServePacked(w, r, of.packed, "text/html; charset=utf-8")
			return
		}
	}
	c.refuse(w, err)
}

// refused is a request that cannot be answered, and how it could.
type refused struct {
	status int
	cure   string
}

func (e refused) Error() string { return e.cure }

func (c *Console) refuse(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	var why refused
	if errors.As(err, &why) {
		status = why.status
	}
	http.Error(w, said(err), status)
}

func said(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("the console is busy with other readers: no answer within %v, try again", answerTimeout)
	}
	return err.Error()
}

// make a page, or take what another reader had made of the same view.
func (c *Console) make(ctx context.Context, p page, asHTML bool) (*made, error) {
	v, release, err := c.view.Get(ctx)
	defer release()
	if err != nil {
		return nil, err
	}
	if found := v.found(p, asHTML); found != nil {
		return found, nil
	}
	b := &builder{view: v, page: p, events: c.sources.Events, hours: c.sources.Rates}
	if p.kind.hasFleet { // which may be waited for
		var release func()
		b.fleet, release, err = c.fleet.Get(ctx)
		release()
		if err != nil {
			return nil, err
		}
	}
	leave, err := c.gate.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if found := v.found(p, asHTML); found != nil {
		return found, nil
	}
	if p.name != "" {
		b.objects, _ = c.sources.ObjectsOf(ctx, p.name) // of a service that is not there: the page says so
	}
	of := &made{}
	if of.content, err = p.kind.build(b); err == nil && asHTML {
		of.packed, err = c.render(v, p, of.content)
	}
	if err != nil {
		return nil, err
	}
	v.keep(p, of)
	return of, nil
}

// fleet as it was read last, or why not.
type fleet struct {
	*controllerv1.GetFleetResponse
	problem string
}

func (c *Console) readFleet(ctx context.Context) (*fleet, int, error) {
	machines, err := c.sources.Fleet(ctx)
	if err != nil {
		return &fleet{problem: err.Error()}, 0, nil
	}
	return &fleet{GetFleetResponse: machines}, 0, nil
}

func (c *Console) render(v *view, p page, content *content) ([]byte, error) {
	var text bytes.Buffer
	machine := v.state.GetMachine()
	err := pageTemplate.Execute(&text, shown{
		Content: content, Of: p.key(), Machine: machine, MachineClass: serviceClass(machine.GetState()),
		Version: v.state.GetVersion(), At: v.at, Nav: navigation(p), Search: searchOf(p),
	})
	if err != nil {
		c.log.Error("console", "page", p.kind.path, "error", err)
		return nil, errors.New("the page has a fault: see the controller's log")
	}
	return web.Pack(text.Bytes()), nil
}

// link to a page of the console. Every page is at the root, so links work under any prefix
// that a proxy removes; and names, which may have any character, are parameters.
func link(path string, parameters ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(parameters); i += 2 {
		values.Set(parameters[i], parameters[i+1])
	}
	if len(values) == 0 {
		return "./" + path
	}
	return "./" + path + "?" + values.Encode()
}
