package check

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// HTTP passes when a request is answered with a wanted status.
type HTTP struct {
	Port uint16
	// With the query; begins with a slash.
	Path string
	// Empty: the address.
	Host   string
	Status Statuses
}

func readHTTP(given *configv1.HttpCheck, report Report) HTTP {
	check := HTTP{Port: uint16(given.GetPort()), Path: cmp.Or(given.GetPath(), "/"), Host: given.GetHost(), Status: StatusesOf(200)}
	if !strings.HasPrefix(check.Path, "/") || hasSpace(check.Path) {
		report("http.path", "is %q: begin with a slash, and write spaces as %%20", check.Path)
	}
	if hasSpace(check.Host) {
		report("http.host", "is %q: give a host name, without spaces", check.Host)
	}
	if len(given.GetStatus()) > 0 {
		check.Status = StatusesOf(given.GetStatus()...)
	}
	return check
}

// hasSpace finds what would split or end a line of an HTTP request.
func hasSpace(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f })
}

// Statuses is a set of HTTP statuses, sorted and joined by commas: a slice
// could not be compared.
type Statuses string

// StatusesOf makes a set.
func StatusesOf(codes ...uint32) Statuses {
	sorted := slices.Compact(slices.Sorted(slices.Values(codes)))
	words := make([]string, len(sorted))
	for i, code := range sorted {
		words[i] = strconv.Itoa(int(code))
	}
	return Statuses(strings.Join(words, ","))
}

// Has reports whether code is in the set.
func (s Statuses) Has(code int) bool {
	return slices.Contains(strings.Split(string(s), ","), strconv.Itoa(code))
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

func (c HTTP) Probe(ctx context.Context, address netip.Addr) (string, error) {
	request, err := c.request(ctx, address)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	response.Body.Close()
	if !c.Status.Has(response.StatusCode) {
		return "", statusError{got: response.StatusCode, want: c.Status}
	}
	return fmt.Sprintf("status %d", response.StatusCode), nil
}

func (c HTTP) request(ctx context.Context, address netip.Addr) (*http.Request, error) {
	path, err := url.ParseRequestURI(c.Path)
	if err != nil {
		return nil, fmt.Errorf("path %q of the health check: %w", c.Path, err)
	}
	path.Scheme, path.Host = "http", hostPort(address, c.Port)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, path.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", "guideway-health-check")
	if c.Host != "" {
		request.Host = c.Host
	}
	return request, nil
}

type statusError struct {
	got  int
	want Statuses
}

func (e statusError) Error() string { return fmt.Sprintf("status %d, wanted %s", e.got, e.want) }
