//go:build browser

package scenarios_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

// The console as people see it: Chromium, with the real controller and forwarder under load.
// `make nightly STAGES=browser` runs it. CONSOLE_PICTURE=file.png takes the picture for
// README: of a load of CONSOLE_PICTURE_SECONDS.
func TestConsole(t *testing.T) {
	options := options(t, "console")
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("needs chromium: tools/install-deps.sh browser installs it")
	}
	running := up(t, options)
	c := &consoleLab{Lab: running, machine: running.LoadBalancers()[0]}
	c.relay(t)
	c.startBrowser(t)
	t.Run("a graph moves when traffic begins", c.graphMoves)
	t.Run("an open page shows that a backend died, and why", c.backendDies)
	t.Run("a search finds on the server", c.search)
	t.Run("every page is shown, light and dark", c.allPages)
	t.Run("with 200 open pages metrics are answered", c.manyPages)
	t.Run("a page finds its controller again", c.controllerRestarts)
	if file := os.Getenv("CONSOLE_PICTURE"); file != "" {
		t.Run("picture", func(t *testing.T) { c.takePicture(t, file) })
	}
}

type consoleLab struct {
	*hosts.Lab
	machine string // whose console it is
	address string // of the relay to it
	browser context.Context

	mu     sync.Mutex
	faults []string // what the browser's console says, and policies that were violated
}

// relay into the namespace of the machine, where the console listens on the loopback.
func (c *consoleLab) relay(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.address = listener.Addr().String()
	var tasks sync.WaitGroup
	t.Cleanup(func() { listener.Close(); tasks.Wait() })
	tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			tasks.Go(func() { c.join(t, conn) })
		}
	})
}

func (c *consoleLab) join(t *testing.T, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(t.Context(), func() { conn.Close() })()
	inside, err := c.dial(t.Context(), "tcp", "")
	if err != nil {
		return // as if it had been refused
	}
	defer inside.Close()
	go func() { _, _ = io.Copy(inside, conn); inside.Close() }() // until either ends
	_, _ = io.Copy(conn, inside)
}

func (c *consoleLab) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	for _, n := range c.Network.LoadBalancers {
		if n.Name == c.machine {
			return topology.DialInside(ctx, n.Namespace, net.Dialer{}, network, "127.0.0.1:9470")
		}
	}
	return nil, errors.New("there is no " + c.machine)
}

func (c *consoleLab) startBrowser(t *testing.T) {
	flags := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"), chromedp.NoSandbox, chromedp.WindowSize(1280, 900))
	allocator, stop := chromedp.NewExecAllocator(t.Context(), flags...)
	t.Cleanup(stop)
	var cancel context.CancelFunc
	c.browser, cancel = chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	tell(c, chromedp.Console(c.browser), func(m chromedp.ConsoleMessage) string { // also of policies
		return fmt.Sprintf("%s: %s %s", m.Source, m, m.URL)
	})
	tell(c, chromedp.Events(c.browser, network.RequestWillBeSent), func(e network.EventRequestWillBeSent) string {
		at, err := url.Parse(e.Request.URL)
		if err == nil && (at.Host == c.address || at.Scheme == "data" || at.Scheme == "about") {
			return ""
		}
		return "a request to another host: " + e.Request.URL
	})
	c.act(t, "events of the network", call(network.Enable, network.EnableParams{}))
}

// tell faults that events show, until the browser ends.
func tell[E any](c *consoleLab, events iter.Seq2[E, error], fault func(E) string) {
	go func() {
		for e, err := range events {
			if err != nil {
				return
			}
			if what := fault(e); what != "" {
				c.fault(what)
			}
		}
	}()
}

func call[P, R any](command cdp.Command[P, R], parameters P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, command, parameters)
		return err
	})
}

func (c *consoleLab) fault(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, what)
}

// checkFaults since the last time.
func (c *consoleLab) checkFaults(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.faults {
		t.Error(f)
	}
	c.faults = nil
}

// Of a browser on a machine that is short of processor time.
const browserTimeout = time.Minute

func (c *consoleLab) act(t *testing.T, what string, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(c.browser, browserTimeout)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// read an expression, as text.
func (c *consoleLab) read(t *testing.T, expression string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(c.browser, browserTimeout)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("String("+expression+")"))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return text
}

func (c *consoleLab) open(t *testing.T, path string) {
	t.Helper()
	c.act(t, path, chromedp.Navigate("http://"+c.address+path))
	c.until(t, "the page is live", `document.getElementById("live").textContent`, func(text string) bool { return text == "live" })
	// A reload would lose it.
	c.read(t, "window.notReloaded = true")
}

// until an expression's text is as it should be.
func (c *consoleLab) until(t *testing.T, what, expression string, is func(string) bool) string {
	t.Helper()
	var text string
	eventually(t, browserTimeout, what, func() error {
		if text = c.read(t, expression); !is(text) {
			return fmt.Errorf("%s is %q", expression, text)
		}
		return nil
	})
	return text
}

func (c *consoleLab) notReloaded(t *testing.T) {
	t.Helper()
	c.until(t, "the page was not reloaded", "window.notReloaded", func(text string) bool { return text == "true" })
	c.checkFaults(t)
}

// How high the line of what is sent to backends ends in the first graph, in per cent.
const lineEnd = `(() => {
	const canvas = document.querySelector(".graph canvas");
	const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
	[probe.canvas.width, probe.canvas.height] = [canvas.width, canvas.height];
	probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--series-1");
	probe.fillRect(0, 0, 1, 1);
	const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
	probe.clearRect(0, 0, 1, 1);
	probe.drawImage(canvas, 0, 0);
	const { data } = probe.getImageData(0, 0, canvas.width, canvas.height);
	for (let x = canvas.width - 1; x >= 0; x--) for (let y = 0; y < canvas.height; y++) {
		const i = 4 * (y * canvas.width + x);
		if (data[i + 3] > 100 && Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 60) {
			return Math.round(100 * (canvas.height - y) / canvas.height);
		}
	}
	return -1;
})()`

func whole(t *testing.T, text string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(strings.ReplaceAll(text, ",", ""), &n); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return n
}

const sentRate = `document.querySelector('#totals [data-key="Sent to backends/s"] dd').textContent`

func (c *consoleLab) graphMoves(t *testing.T) {
	c.open(t, "/")
	ends := func(what string, is func(height int) bool) int {
		t.Helper()
		return whole(t, c.until(t, what, lineEnd, func(text string) bool { return is(whole(t, text)) }))
	}
	c.until(t, "there are graphs", `document.querySelectorAll(".graph canvas").length`, func(text string) bool { return text == "3" })
	idle := ends("it is read", func(int) bool { return true }) // below zero: the line of drops hides it
	remote := loadForTakeOver(t, c.Lab, 1, 50)
	defer func() { _ = remote.Abandon() }() // of one that was stopped: nothing to do
	c.until(t, "packets are sent", sentRate, func(text string) bool { return whole(t, text) > 100 })
	busy := ends("the line rises", func(height int) bool { return height > idle+20 })
	c.until(t, "the busiest service is named", `document.getElementById("busiest").textContent`, func(text string) bool { return strings.Contains(text, "web") })
	stopUnbroken(t, remote)
	ends("the line falls", func(height int) bool { return height < busy-20 })
	c.notReloaded(t)
}

func (c *consoleLab) backendDies(t *testing.T) {
	t.Cleanup(func() { restore(t, c.Lab) })
	name := c.Backends()[0]
	c.open(t, "/backends?q="+url.QueryEscape(name))
	row := fmt.Sprintf(`document.querySelector('#backends tr[data-key*="/%s"]').textContent`, name)
	c.until(t, "it is active", row, func(text string) bool { return strings.Contains(text, "active") })
	begun := time.Now()
	if err := c.KillBackend(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	said := c.until(t, "the page says that it is down, and why", row, func(text string) bool {
		return strings.Contains(text, "down") && regexp.MustCompile(`no answer|timeout|refused|within|unreachable`).MatchString(text)
	})
	t.Logf("%v after it died: %s", time.Since(begun), said)
	c.notReloaded(t)
	c.open(t, "/")
	c.until(t, "it is among the troubles", `document.getElementById("troubles").textContent`, func(text string) bool { return strings.Contains(text, name) })
	c.until(t, "it is in the time line", `document.getElementById("events").textContent`, func(text string) bool { return strings.Contains(text, name) })
	if err := c.RestoreBackend(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	c.until(t, "it is active again", `document.getElementById("troubles").textContent`, func(text string) bool { return !strings.Contains(text, name) })
	c.notReloaded(t)
}

func (c *consoleLab) search(t *testing.T) {
	c.open(t, "/services")
	c.act(t, "search", chromedp.SetValue(chromedp.CSS("input[name=q]"), "ECHO serving"), chromedp.Click(chromedp.CSS("form button")), chromedp.WaitReady(chromedp.CSS("#services")))
	c.until(t, "the address has the search", "location.search", func(text string) bool { return strings.Contains(text, "q=ECHO+serving") })
	names := c.until(t, "services are found", `[...document.querySelectorAll("#services tr")].map((row) => row.dataset.key).join()`, func(text string) bool { return text != "" })
	for name := range strings.SplitSeq(names, ",") {
		if !strings.Contains(name, "echo") {
			t.Errorf("found %s", names)
		}
	}
	c.act(t, "a service", chromedp.Click(chromedp.CSS("#services a")), chromedp.WaitReady(chromedp.CSS("#facts")))
	c.until(t, "a service's graph is drawn", `document.querySelectorAll(".graph canvas").length`, func(text string) bool { return text == "3" })
	c.checkFaults(t)
}

func (c *consoleLab) allPages(t *testing.T) {
	for _, scheme := range []string{"light", "dark"} {
		c.prefer(t, scheme)
		for _, path := range []string{"/", "/services", "/backends", "/moves", "/machines", "/routes", "/drops", "/events"} {
			c.open(t, path)
			ground := c.until(t, "it has a background", "getComputedStyle(document.body).backgroundColor", func(text string) bool { return text != "" })
			if isDark := strings.HasPrefix(ground, "rgb(20,"); isDark != (scheme == "dark") {
				t.Errorf("%s, %s: %s", path, scheme, ground)
			}
			if folder := os.Getenv("CONSOLE_PICTURES"); folder != "" {
				c.picture(t, fmt.Sprintf("%s/%s-%s.png", folder, cmp.Or(path[1:], "overview"), scheme))
			}
		}
	}
	c.prefer(t, "light")
	c.checkFaults(t)
}

func (c *consoleLab) prefer(t *testing.T, scheme string) {
	t.Helper()
	c.act(t, scheme, call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}))
}

func (c *consoleLab) picture(t *testing.T, file string) {
	png, err := chromedp.Run(c.browser, chromedp.CaptureScreenshot())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, png, 0o644); err != nil {
		t.Fatal(err)
	}
}

func (c *consoleLab) manyPages(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	client := &http.Client{Transport: &http.Transport{DialContext: c.dial, DisableKeepAlives: true}}
	var pages sync.WaitGroup
	defer func() { stop(); pages.Wait() }()
	opened := make(chan error, 200)
	for i := range cap(opened) {
		pages.Go(func() {
			of := []string{"/", "/services", "/backends?sort=packets", "/events", "/routes"}[i%5]
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://console/live?of="+url.QueryEscape(of), nil)
			if err != nil {
				opened <- err
				return
			}
			response, err := client.Do(request)
			if err == nil && response.StatusCode != http.StatusOK {
				err = errors.New(response.Status)
			}
			if opened <- err; err == nil {
				_, _ = io.Copy(io.Discard, response.Body) // until the test ends
				response.Body.Close()
			}
		})
	}
	for range cap(opened) {
		if err := <-opened; err != nil {
			t.Fatal(err)
		}
	}
	c.open(t, "/")
	var slowest time.Duration
	for range 20 {
		begun := time.Now()
		response, err := client.Get("http://console/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if slowest = max(slowest, time.Since(begun)); err != nil || !strings.Contains(string(text), "guideway_") {
			t.Fatalf("%v: %.100s", err, text)
		}
		time.Sleep(200 * time.Millisecond)
	}
	t.Logf("the slowest of 20 scrapes took %v", slowest)
	if slowest > time.Second {
		t.Errorf("a scrape took %v", slowest)
	}
	c.notReloaded(t)
}

func (c *consoleLab) controllerRestarts(t *testing.T) {
	c.open(t, "/")
	if err := c.Kill(c.machine, "controller"); err != nil {
		t.Fatal(err)
	}
	state := `document.getElementById("live").textContent`
	c.until(t, "the page says that it is not live", state, func(text string) bool { return strings.HasPrefix(text, "not live") })
	if err := c.StartController(c.machine); err != nil {
		t.Fatal(err)
	}
	c.until(t, "it is live again", state, func(text string) bool { return text == "live" })
	c.until(t, "the page was not reloaded", "window.notReloaded", func(text string) bool { return text == "true" })
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.faults {
		if !strings.Contains(f, "net::ERR_") { // of connections that were lost
			t.Error(f)
		}
	}
	c.faults = nil
}

// takePicture when traffic has grown in the middle of the time, and a backend has died.
func (c *consoleLab) takePicture(t *testing.T, file string) {
	t.Cleanup(func() { restore(t, c.Lab) })
	seconds, err := time.ParseDuration(cmp.Or(os.Getenv("CONSOLE_PICTURE_SECONDS"), "60") + "s")
	if err != nil {
		t.Fatal(err)
	}
	for block := range 2 {
		remote := loadForTakeOver(t, c.Lab, 2+block, 50)
		defer func() { _ = remote.Abandon() }() // connections to the backend break
		time.Sleep(seconds / 2)
	}
	c.open(t, "/")
	if err := c.KillBackend(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	c.until(t, "it is among the troubles", `document.getElementById("troubles").childElementCount`, func(text string) bool { return whole(t, text) >= 3 })
	c.picture(t, file)
}
