package load

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Requests are written by hand: net/http's client hides a connection that
// breaks by trying again on another one.
const (
	requestClose     = "GET / HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\n\r\n"
	requestKeepAlive = "GET / HTTP/1.1\r\nHost: web.example\r\n\r\n"
)

// freshRequests: each on a connection of its own.
func (l *Load) freshRequests() {
	l.paced(l.spec.FreshRate, func() {
		mark := l.currentMark()
		l.work.Go(func() { l.freshRequest(mark) })
	})
}

func (l *Load) freshRequest(mark int) {
	outcome := Failure{Kind: KindFresh, Begun: time.Now()}
	outcome.Reason = reasonOrNone(l.tryFreshRequest(&outcome))
	l.requested(mark, outcome)
}

func (l *Load) tryFreshRequest(outcome *Failure) error {
	flow, err := l.sources.next(l.spec.Web)
	if err != nil {
		return err
	}
	outcome.Flow = flow
	connection, err := l.dial(flow)
	if err != nil {
		return err
	}
	defer connection.Close()
	outcome.Backend, err = exchange(connection, bufio.NewReader(connection), requestClose, l.spec.TimeLimit)
	return err
}

// keepAlive runs one connection's requests, and makes a new connection when
// it has ended.
func (l *Load) keepAlive(index int) {
	interval := time.Duration(float64(time.Second) * float64(l.spec.KeepAliveConnections) / l.spec.KeepAliveRate)
	// Spread the first ones, so that the rate is even.
	if !l.sleep(interval * time.Duration(index) / time.Duration(l.spec.KeepAliveConnections)) {
		return
	}
	for l.keepAliveConnection(interval) {
	}
}

// keepAliveConnection uses one connection until it fails or the load stops
// (false).
func (l *Load) keepAliveConnection(interval time.Duration) bool {
	outcome := Failure{Kind: KindKeepAlive, Begun: time.Now()}
	connection, err := l.dialNext(&outcome)
	if err != nil {
		outcome.Reason = reasonOf(err)
		l.requested(0, outcome)
		return l.sleep(interval)
	}
	defer connection.Close()
	reader := bufio.NewReader(connection)
	for first := true; ; first = false {
		outcome.Begun = time.Now()
		backend, err := exchange(connection, reader, requestKeepAlive, l.spec.TimeLimit)
		if err == nil && !first && backend != outcome.Backend {
			err = fmt.Errorf("connection of %s was answered by %s", outcome.Backend, backend)
		}
		if first && err == nil {
			outcome.Backend = backend
			live := Live{Kind: KindKeepAlive, Flow: outcome.Flow, Backend: backend}
			l.began(live)
			defer l.ended(live)
		}
		outcome.Reason = reasonOrNone(err)
		l.requested(0, outcome)
		if !l.sleep(interval) {
			return false
		}
		if err != nil {
			return true
		}
	}
}

func (l *Load) dialNext(outcome *Failure) (net.Conn, error) {
	flow, err := l.sources.next(l.spec.Web)
	if err != nil {
		return nil, err
	}
	outcome.Flow = flow
	return l.dial(flow)
}

// exchange one request and its reply, and check that the reply is whole.
func exchange(connection net.Conn, reader *bufio.Reader, request string, limit time.Duration) (string, error) {
	if err := connection.SetDeadline(time.Now().Add(limit)); err != nil {
		return "", fmt.Errorf("set deadline: %w", err)
	}
	if _, err := io.WriteString(connection, request); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", fmt.Errorf("read body: %w", err)
	}
	backend := response.Header.Get("X-Backend")
	switch {
	case response.StatusCode != http.StatusOK:
		return backend, fmt.Errorf("status %d", response.StatusCode)
	case backend == "" || strings.TrimSpace(string(body)) != backend:
		return backend, fmt.Errorf("header names backend %q, body %q", backend, body)
	}
	return backend, nil
}

func reasonOrNone(err error) string {
	if err == nil {
		return ""
	}
	return reasonOf(err)
}
