package prober

// One probe: connect, or ask and read the status.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Check is what to ask. Comparable, so that equal checks are one.
type Check struct {
	Kind Kind
	Port uint16
	// HTTP only: path with query, Host header (empty: the address), statuses
	// that pass.
	Path, Host string
	Status     Statuses
}

// Kind of a check.
type Kind string

const (
	TCP  Kind = "tcp"
	HTTP Kind = "http"
)

func (c Check) String() string {
	if c.Kind == HTTP {
		return fmt.Sprintf("http port %d %s", c.Port, c.Path)
	}
	return fmt.Sprintf("tcp port %d", c.Port)
}

// Statuses is a set of HTTP statuses, sorted and joined by commas: a slice
// could not be compared.
type Statuses string

// StatusesOf makes a set.
func StatusesOf(codes ...int) Statuses {
	sorted := slices.Compact(slices.Sorted(slices.Values(codes)))
	words := make([]string, len(sorted))
	for i, code := range sorted {
		words[i] = strconv.Itoa(code)
	}
	return Statuses(strings.Join(words, ","))
}

// Has tells whether code is in the set.
func (s Statuses) Has(code int) bool {
	return slices.Contains(strings.Split(string(s), ","), strconv.Itoa(code))
}

// probe asks once and returns what was answered.
func probe(ctx context.Context, t Target) (string, error) {
	if t.Check.Kind == HTTP {
		return probeHTTP(ctx, t)
	}
	return probeTCP(ctx, t)
}

func probeTCP(ctx context.Context, t Target) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", t.hostPort())
	if err != nil {
		return "", err
	}
	conn.Close()
	return "connected", nil
}

// Every request has a connection of its own: a kept one would not notice that
// the server no longer accepts.
var client = &http.Client{
	Transport: &http.Transport{
		Proxy:                  nil, // the environment's proxy would answer for the backend
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	},
	// A redirect is an answer like any other; following it would probe another
	// server.
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func probeHTTP(ctx context.Context, t Target) (string, error) {
	request, err := t.request(ctx)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	response.Body.Close()
	if !t.Check.Status.Has(response.StatusCode) {
		return "", statusError{got: response.StatusCode, want: t.Check.Status}
	}
	return fmt.Sprintf("status %d", response.StatusCode), nil
}

func (t Target) request(ctx context.Context) (*http.Request, error) {
	path, err := url.ParseRequestURI(t.Check.Path)
	if err != nil {
		return nil, fmt.Errorf("path %q of the health check: %w", t.Check.Path, err)
	}
	path.Scheme, path.Host = "http", t.hostPort()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, path.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", "guideway-health-check")
	if t.Check.Host != "" {
		request.Host = t.Check.Host
	}
	return request, nil
}

func (t Target) hostPort() string {
	return net.JoinHostPort(t.Address.String(), strconv.Itoa(int(t.Check.Port)))
}

type statusError struct {
	got  int
	want Statuses
}

func (e statusError) Error() string { return fmt.Sprintf("status %d, wanted %s", e.got, e.want) }

// reasonOf says in few words what people need to know: the address is beside
// it anyway, and Go's errors repeat it twice.
func reasonOf(err error, timeout time.Duration) string {
	var errno syscall.Errno
	var timeouts net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &timeouts) && timeouts.Timeout():
		return fmt.Sprintf("no answer within %v", timeout)
	case errors.As(err, &errno):
		return errno.Error()
	}
	var inURL *url.Error
	if errors.As(err, &inURL) {
		return inURL.Err.Error()
	}
	return err.Error()
}
