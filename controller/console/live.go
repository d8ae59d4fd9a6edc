package console

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/guideway/guideway/controller/web"
)

const (
	// Half of the connections that there may be (web.Limit): who scrapes /metrics and who
	// opens a page find a place.
	streamsMax = 256
	// Then a browser connects anew. Not all at once: up to a fifth later.
	streamTime = 5 * time.Minute
	// Who has not read an event for so long is dropped.
	eventTimeout = 5 * time.Second
	// Something is sent at least so often: else nobody notices that the other end is gone.
	silenceMax = 10 * time.Second
)

// serveLive streams what changes on a page that is open, as server-sent events.
func (c *Console) serveLive(w http.ResponseWriter, r *http.Request) {
	protect(w)
	if origin := r.Header.Get("Origin"); origin != "" && !isOf(origin, r.Host) {
		c.refuse(w, refused{http.StatusForbidden, "pages of other hosts get no stream"})
		return
	}
	p, err := parseLive(r.URL)
	if r.Method != http.MethodGet || r.ContentLength != 0 { // HEAD, and bodies that never come
		err = badRequest("/live takes GET without a body")
	}
	if err != nil {
		c.refuse(w, err)
		return
	}
	select {
	case c.streams <- struct{}{}:
		defer func() { <-c.streams }()
	default:
		w.Header().Set("Retry-After", "30")
		c.refuse(w, errors.New("too many pages are open: close some, or reload this one to see what is new"))
		return
	}
	defer c.sources.Rates.Attend()()
	s := stream{console: c, page: p, writer: w, control: http.NewResponseController(w), stopping: web.Stopping(r)}
	s.run(r.Context())
}

func isOf(origin, host string) bool {
	from, err := url.Parse(origin)
	return err == nil && from.Host == host
}

func parseLive(at *url.URL) (page, error) {
	values, err := url.ParseQuery(at.RawQuery)
	if err != nil || len(values) != 1 || len(values["of"]) != 1 {
		return page{}, badRequest("/live has one parameter, of: the path of a page with its parameters")
	}
	of, err := url.Parse(values.Get("of"))
	switch {
	case err != nil:
		return page{}, badRequest("of: " + err.Error())
	case of.Scheme != "" || of.Host != "":
		return page{}, badRequest("of: give a path, without a host")
	}
	return parsePage(of)
}

// stream to one open page.
type stream struct {
	console  *Console
	page     page
	writer   http.ResponseWriter
	control  *http.ResponseController
	stopping <-chan struct{}

	sent   *content
	sentAt time.Time
}

func (s *stream) run(ctx context.Context) {
	s.writer.Header().Set("Content-Type", "text/event-stream")
	s.writer.Header().Set("Cache-Control", "no-store")
	// The server's time for requests is over long before the stream is. Errors: it is no
	// connection of a server.
	_ = s.control.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithTimeout(ctx, streamTime+rand.N(streamTime/5))
	defer cancel()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	// What ends the answer is written after the last event.
	defer func() {
		_ = s.control.SetWriteDeadline(time.Now().Add(eventTimeout))
		_ = s.control.SetReadDeadline(time.Now().Add(eventTimeout))
	}()
	for s.step(ctx) {
		select {
		case <-ticker.C:
		case <-s.stopping:
			return
		case <-ctx.Done():
			return
		}
	}
}

// step sends what is other than before; false: the stream has ended.
func (s *stream) step(ctx context.Context) bool {
	waiting, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	of, err := s.console.make(waiting, s.page, false)
	var why refused
	switch {
	case errors.As(err, &why):
		s.send(update{Now: time.Now().Unix(), Problem: why.cure})
		return false
	case ctx.Err() != nil:
		return false
	case err != nil: // of this moment
		return s.send(update{Now: time.Now().Unix(), Problem: said(err)})
	}
	changed := of.content.since(s.sent)
	s.sent = of.content
	changed.Now = time.Now().Unix()
	if changed.Notes == nil && changed.Tables == nil && changed.Graphs == nil && time.Since(s.sentAt) < silenceMax {
		return true
	}
	return s.send(changed)
}

// send waits for the reader, but not for long: false.
func (s *stream) send(u update) bool {
	text, err := json.Marshal(u)
	if err != nil {
		s.console.log.Error("console", "page", s.page.kind.path, "error", err)
		return false
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(eventTimeout)) // as above
	if _, err = s.writer.Write(append(append([]byte("data: "), text...), "\n\n"...)); err == nil {
		err = s.control.Flush()
	}
	s.sentAt = time.Now()
	return err == nil
}
