package check

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// HTTP passes when a request is answered with a wanted status and, if Body is
// given, a body that contains it.
type HTTP struct {
	Port uint16
	// Empty: GET.
	Method string
	// With the query; begins with a slash.
	Path string
	// Empty: the address.
	Host    string
	Headers Headers
	Status  Statuses
	// Empty: any body.
	Body string
}

const (
	// A longer answer, header and body together, fails the probe.
	answerBytesMax = 128 << 10
	// Wanted text behind it is not found.
	bodyBytesMax = 64 << 10
	// Answers that announce another one (100 Continue, 103 Early Hints).
	interimMax = 8
)

// httpFields are what the schema's messages of HTTP and HTTPS have in common.
type httpFields interface {
	GetPort() uint32
	GetPath() string
	GetHost() string
	GetStatus() []uint32
	GetMethod() string
	GetHeaders() []string
	GetBody() string
}

func readHTTP(given *configv1.HttpCheck, reader Reader) HTTP {
	return readRequest("http", given, reader)
}

func readRequest(field string, given httpFields, reader Reader) HTTP {
	check := HTTP{
		Port:   uint16(given.GetPort()),
		Method: cmp.Or(given.GetMethod(), http.MethodGet),
		Path:   cmp.Or(given.GetPath(), "/"),
		Host:   given.GetHost(),
		Status: StatusesOf(200),
		Body:   given.GetBody(),
	}
	if !strings.HasPrefix(check.Path, "/") || hasSpace(check.Path) {
		reader.Errorf(field+".path", "is %q: begin with a slash, and write spaces as %%20", check.Path)
	} else if _, err := url.ParseRequestURI(check.Path); err != nil {
		reader.Errorf(field+".path", "is %q, which is no path of a URL (%v): write a percent sign as %%25", check.Path, reasonOfURL(err))
	}
	if hasSpace(check.Host) {
		reader.Errorf(field+".host", "is %q: give a host name, without spaces", check.Host)
	}
	if len(given.GetStatus()) > 0 {
		check.Status = StatusesOf(given.GetStatus()...)
	}
	if check.Method == http.MethodHead && check.Body != "" {
		reader.Errorf(field+".body", "is given, and answers to HEAD have no body: use method GET, or leave body out")
	}
	check.Headers = readHeaders(field+".headers", given.GetHeaders(), reader)
	return check
}

func reasonOfURL(err error) error {
	var inURL *url.Error
	if errors.As(err, &inURL) {
		return inURL.Err
	}
	return err
}

// hasSpace finds what would split or end a line of an HTTP request.
func hasSpace(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f })
}

// Headers are lines `Name: value`, in order of the file, each with a line end:
// a slice could not be compared.
type Headers string

// reservedHeaders are those that a probe sets itself, and the cure.
var reservedHeaders = map[string]string{
	"Host":              "use the field `host`",
	"Connection":        "leave it out, each probe is a connection of its own",
	"Content-Length":    "leave it out, probes have no body",
	"Transfer-Encoding": "leave it out, probes have no body",
}

func readHeaders(field string, given []string, reader Reader) Headers {
	var lines strings.Builder
	for i, line := range given {
		at := fmt.Sprintf("%s[%d]", field, i)
		name, value, found := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		cure, reserved := reservedHeaders[http.CanonicalHeaderKey(name)]
		switch {
		case !found || !httpguts.ValidHeaderFieldName(name):
			reader.Errorf(at, "is %q: give a name, a colon and a value, like \"X-Probe: guideway\"", line)
		case !httpguts.ValidHeaderFieldValue(value):
			reader.Errorf(at, "is %q: a header's value is one line, without control characters", line)
		case reserved:
			reader.Errorf(at, "sets %s, which the probe sets: %s", name, cure)
		}
		lines.WriteString(name + ": " + value + "\n")
	}
	return Headers(lines.String())
}

// addTo a request's headers.
func (h Headers) addTo(header http.Header) {
	for line := range strings.Lines(string(h)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		header.Add(name, value)
	}
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

// String has runs of more than two as ranges: 200 to 399.
func (s Statuses) String() string {
	var words []string
	var first, last int
	add := func() {
		switch {
		case last == 0:
		case last-first < 2:
			for code := first; code <= last; code++ {
				words = append(words, strconv.Itoa(code))
			}
		default:
			words = append(words, fmt.Sprintf("%d to %d", first, last))
		}
	}
	for word := range strings.SplitSeq(string(s), ",") {
		code, _ := strconv.Atoi(word) // they are numbers
		if code != last+1 || last == 0 {
			add()
			first = code
		}
		last = code
	}
	add()
	return strings.Join(words, ",")
}

// Has reports whether code is in the set.
func (s Statuses) Has(code int) bool {
	return slices.Contains(strings.Split(string(s), ","), strconv.Itoa(code))
}

func (c HTTP) Probe(ctx context.Context, dialer Dialer) (Answer, error) {
	conn, err := dialer.Dial(ctx, "tcp", c.Port)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	text, err := c.exchange(conn, "http", dialer)
	return Answer{Text: text}, err
}

// exchange sends the request on a connection of its own and judges the answer.
// It is no http.Client: that keeps connections, follows redirects and takes the
// environment's proxy, which would all probe something else; and it starts
// goroutines for each connection, which with thousands of backends costs more
// than the probes do.
func (c HTTP) exchange(conn net.Conn, scheme string, dialer Dialer) (string, error) {
	request, err := c.request(scheme, dialer)
	if err != nil {
		return "", err
	}
	if err := request.Write(conn); err != nil {
		return "", err
	}
	answer := bufio.NewReader(&limitedReader{conn, answerBytesMax})
	response, err := readResponse(answer, request)
	if err != nil {
		return "", err
	}
	// The body is not closed: that would read all of it. The connection ends it.
	if !c.Status.Has(response.StatusCode) {
		return "", statusError{got: response.StatusCode, want: c.Status}
	}
	if err := c.findBody(response.Body); err != nil {
		return "", fmt.Errorf("status %d, but %w", response.StatusCode, err)
	}
	return fmt.Sprintf("status %d", response.StatusCode), nil
}

func (c HTTP) request(scheme string, dialer Dialer) (*http.Request, error) {
	path, err := url.ParseRequestURI(c.Path)
	if err != nil {
		return nil, fmt.Errorf("path %q of the health check: %w", c.Path, err)
	}
	path.Scheme, path.Host = scheme, dialer.hostPort(c.Port)
	request, err := http.NewRequest(c.Method, path.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Close = true
	c.Headers.addTo(request.Header)
	if request.Header.Get("User-Agent") == "" {
		request.Header.Set("User-Agent", "guideway-health-check")
	}
	if c.Host != "" {
		request.Host = c.Host
	}
	return request, nil
}

// readResponse skips those that announce another one.
func readResponse(answer *bufio.Reader, request *http.Request) (*http.Response, error) {
	for range interimMax {
		response, err := http.ReadResponse(answer, request)
		switch {
		case err != nil:
			return nil, earlyEnd(err)
		case response.StatusCode >= 200 || response.StatusCode == http.StatusSwitchingProtocols:
			return response, nil
		}
	}
	return nil, fmt.Errorf("more than %d answers announced another one (status 1xx)", interimMax)
}

// findBody reads until the wanted text came, or enough was read.
func (c HTTP) findBody(body io.Reader) error {
	if c.Body == "" {
		return nil
	}
	var read []byte
	chunk := make([]byte, 4<<10)
	for len(read) < bodyBytesMax {
		n, err := body.Read(chunk[:min(len(chunk), bodyBytesMax-len(read))])
		from := max(0, len(read)-len(c.Body))
		read = append(read, chunk[:n]...)
		if strings.Contains(string(read[from:]), c.Body) {
			return nil
		}
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("the body lacks %q: it is %s", c.Body, excerpt(read))
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("the first %d KiB of the body lack %q", bodyBytesMax>>10, c.Body)
}

// excerpt quotes the beginning of what a server sent.
func excerpt(data []byte) string {
	const most = 40
	switch {
	case len(data) == 0:
		return "empty"
	case len(data) > most:
		return strconv.QuoteToASCII(string(data[:most])) + "..."
	}
	return strconv.QuoteToASCII(string(data))
}

// limitedReader fails behind a number of bytes: an answer without an end would
// be read until the timeout.
type limitedReader struct {
	from io.Reader
	left int
}

func (l *limitedReader) Read(to []byte) (int, error) {
	if l.left == 0 {
		return 0, fmt.Errorf("the answer is longer than %d KiB", answerBytesMax>>10)
	}
	n, err := l.from.Read(to[:min(len(to), l.left)])
	l.left -= n
	return n, err
}

type statusError struct {
	got  int
	want Statuses
}

func (e statusError) Error() string { return fmt.Sprintf("status %d, wanted %v", e.got, e.want) }
