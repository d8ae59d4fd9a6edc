package check

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// What servers complain of is what the tests do to them.
var discarded = log.New(io.Discard, "", 0)

// serveOnce returns the port of a server that reads a little, answers and closes.
func serveOnce(t *testing.T, answer string) uint16 {
	t.Helper()
	return serveTCP(t, func(conn net.Conn) {
		conn.Read(make([]byte, 4096))
		io.WriteString(conn, answer)
	})
}

func listenHTTP(t *testing.T, handler http.HandlerFunc) uint16 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveHTTP(t, listener, handler)
}

func TestMethodAndHeadersAreSent(t *testing.T) {
	var seen *http.Request
	port := listenHTTP(t, func(_ http.ResponseWriter, r *http.Request) { seen = r })
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "POST"} {
		given := &configv1.HttpCheck{Port: uint32(port), Method: &method, Headers: []string{"X-Probe: one", "x-probe:two", "Authorization: Basic a:b"}}
		if _, err := readHTTP(given, reader{t: t}).Probe(t.Context(), loopback); err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		if seen.Method != method || strings.Join(seen.Header.Values("X-Probe"), ",") != "one,two" || seen.Header.Get("Authorization") != "Basic a:b" {
			t.Errorf("%s: got %s %v", method, seen.Method, seen.Header)
		}
		if seen.UserAgent() != "guideway-health-check" || !seen.Close || seen.ContentLength > 0 {
			t.Errorf("%s: got %v", method, seen.Header)
		}
	}
	given := &configv1.HttpCheck{Port: uint32(port), Headers: []string{"User-Agent: mine"}}
	if _, err := readHTTP(given, reader{t: t}).Probe(t.Context(), loopback); err != nil || len(seen.Header.Values("User-Agent")) != 1 || seen.UserAgent() != "mine" {
		t.Errorf("got %v, %v", seen.Header, err)
	}
}

func TestABodyMustContainTheText(t *testing.T) {
	long := strings.Repeat("x", bodyBytesMax-2)
	for _, c := range []struct{ name, body, wanted, problem string }{
		{"it does", "all is well\n", "is well", ""},
		{"it does not", "all is ill", "is well", `status 200, but the body lacks "is well": it is "all is ill"`},
		{"it is empty", "", "is well", `status 200, but the body lacks "is well": it is empty`},
		{"only the beginning is shown", strings.Repeat("y", 100), "z", `status 200, but the body lacks "z": it is "` + strings.Repeat("y", 40) + `"...`},
		{"at the end of what is read", long + "ok", "ok", ""},
		{"behind what is read", long + "o" + "ok", "ok", `status 200, but the first 64 KiB of the body lack "ok"`},
		{"what is no text is quoted", "\x00\xff", "ok", `status 200, but the body lacks "ok": it is "\x00\xff"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			port := listenHTTP(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, c.body) })
			_, err := HTTP{Port: port, Method: "GET", Path: "/", Status: StatusesOf(200), Body: c.wanted}.Probe(t.Context(), loopback)
			if text := textOf(err); text != c.problem {
				t.Errorf("got %q, wanted %q", text, c.problem)
			}
		})
	}
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// A body that comes in parts, of which the wanted text lies across two, and has
// no end: the probe need not wait for it.
func TestABodyIsFoundBeforeItEnds(t *testing.T) {
	release := make(chan struct{})
	port := listenHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "status: heal")
		w.(http.Flusher).Flush()
		time.Sleep(20 * time.Millisecond)
		io.WriteString(w, "thy")
		w.(http.Flusher).Flush()
		<-release
	})
	t.Cleanup(func() { close(release) })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	check := HTTP{Port: port, Method: "GET", Path: "/", Status: StatusesOf(200), Body: "healthy"}
	began := time.Now()
	if _, err := check.Probe(ctx, loopback); err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	check.Body = "never"
	if _, err := check.Probe(ctx, loopback); err == nil || !strings.Contains(err.Error(), "i/o timeout") {
		t.Errorf("got %v", err)
	}
}

func TestOddAnswersFail(t *testing.T) {
	const early = "HTTP/1.1 103 Early Hints\r\n\r\n"
	for _, c := range []struct{ name, answer, problem string }{
		{"none", "", "the server closed the connection without an answer"},
		{"half a header", "HTTP/1.1 200 OK\r\nServer:", "the server closed the connection without an answer"},
		{"an announcement and an answer", early + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""},
		{"announcements without end", strings.Repeat(early, 20), "more than 8 answers announced another one (status 1xx)"},
		{"a header without end", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 200<<10), "the answer is longer than 128 KiB"},
		{"HTTP/0.9", "<html>", `malformed HTTP response "<html>"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := HTTP{Port: serveOnce(t, c.answer), Method: "GET", Path: "/", Status: StatusesOf(200)}.Probe(t.Context(), loopback)
			if text := textOf(err); text != c.problem {
				t.Errorf("got %q, wanted %q", text, c.problem)
			}
		})
	}
}

func TestMistakesInHTTPFieldsAreReported(t *testing.T) {
	head, body, path := "HEAD", "ok", func(p string) *string { return &p }
	for _, c := range []struct {
		given *configv1.HttpCheck
		text  string
	}{
		{&configv1.HttpCheck{Path: path("healthz")}, `http.path is "healthz": begin with a slash`},
		{&configv1.HttpCheck{Path: path("/%zz")}, `http.path is "/%zz", which is no path of a URL (invalid URL escape "%zz"): write a percent sign as %25`},
		{&configv1.HttpCheck{Method: &head, Body: &body}, "http.body is given, and answers to HEAD have no body: use method GET"},
		{&configv1.HttpCheck{Headers: []string{"X: 1", "no colon"}}, `http.headers[1] is "no colon": give a name, a colon and a value`},
		{&configv1.HttpCheck{Headers: []string{"A B: 1"}}, `http.headers[0] is "A B: 1": give a name`},
		{&configv1.HttpCheck{Headers: []string{"X: 1\r\nEvil: 2"}}, `http.headers[0] is "X: 1\r\nEvil: 2": a header's value is one line`},
		{&configv1.HttpCheck{Headers: []string{"host: x"}}, "http.headers[0] sets host, which the probe sets: use the field `host`"},
		{&configv1.HttpCheck{Headers: []string{"Content-Length: 5"}}, "http.headers[0] sets Content-Length, which the probe sets: leave it out, probes have no body"},
	} {
		problems := problemsOf(t, &configv1.HealthCheck{Http: c.given}, nil)
		if len(problems) != 1 || !strings.HasPrefix(problems[0], c.text) {
			t.Errorf("got %q, wanted %q", problems, c.text)
		}
	}
}

func TestStatusesAreShownAsRanges(t *testing.T) {
	for want, codes := range map[string][]uint32{
		"200": {200}, "200,201": {201, 200}, "200 to 202": {200, 201, 202}, "200 to 203,302,404,405": {404, 405, 200, 203, 201, 202, 302},
	} {
		if got := StatusesOf(codes...).String(); got != want {
			t.Errorf("%v is shown as %q, wanted %q", codes, got, want)
		}
	}
}
