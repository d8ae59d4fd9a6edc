package scenarios_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	"github.com/guideway/guideway/speaker/health"
)

const (
	slowClients  = 200
	quickClients = 50
	// So long each listener has to bear them.
	loadTime = 6 * time.Second
	// Beside what a process has without clients: pages and answers that wait
	// (64 MiB each), what is being made, and what the collector has yet to find.
	growthMax = 300 << 20
)

// Clients of the pages and of gRPC, slow ones and many, disturb neither what
// announces nor what forwards, with services enough to make the pages large.
func TestClientsDisturbNothing(t *testing.T) {
	o := optionsAlone(t, "clients")
	running := up(t, o)
	addServices(t, running, "lb-1", 5000)
	listeners := []struct {
		name  string
		dial  func() (net.Conn, error)
		quick func(context.Context, func() (net.Conn, error)) error
		slow  func(context.Context, func() (net.Conn, error)) error
	}{
		{"the controller's pages", tcpTo(t, running, "127.0.0.1:9470"), scrape, scrape},
		{"the forwarder's pages", tcpTo(t, running, "127.0.0.1:9471"), scrape, scrape},
		{"the controller's gRPC", unixTo(running, "controller/controller.sock"), getState, getState},
		{"the forwarder's gRPC", unixTo(running, "forwarder.sock"), getMetrics, getMetrics},
	}
	for _, l := range listeners {
		t.Run(l.name, func(t *testing.T) {
			undisturbed := keepEyeOnRoutes(t, running)
			healthy := keepEyeOnHealth(t, running)
			memory := keepEyeOnMemory(t, running)
			ctx, cancel := context.WithTimeout(t.Context(), loadTime)
			defer cancel()
			var clients sync.WaitGroup
			var answers atomic.Int64
			for range slowClients {
				clients.Go(func() {
					for ctx.Err() == nil {
						_ = l.slow(ctx, func() (net.Conn, error) { return slowly(ctx, l.dial) })
						time.Sleep(10 * time.Millisecond)
					}
				})
			}
			for range quickClients {
				clients.Go(func() {
					for ctx.Err() == nil {
						if l.quick(ctx, l.dial) == nil {
							answers.Add(1)
						}
						time.Sleep(10 * time.Millisecond)
					}
				})
			}
			clients.Wait()
			undisturbed()
			healthy()
			memory()
			t.Logf("%d answers to quick clients in %v", answers.Load(), loadTime)
			if answers.Load() == 0 {
				t.Error("no quick client was answered")
			}
			eventually(t, 20*time.Second, "a client alone is answered", func() error { return l.quick(t.Context(), l.dial) })
		})
	}
}

// addServices to the config of a load balancer, of the pool that is there.
func addServices(t *testing.T, running *hosts.Lab, machine string, count int) {
	t.Helper()
	file := filepath.Join(running.Options().RunDir, machine, "config.yaml")
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var services strings.Builder
	services.WriteString("services:\n")
	for i := range count {
		fmt.Fprintf(&services, "- {name: many-%d, vips: [{address: 198.18.%d.%d, ports: [80], protocol: tcp}], pools: [web]}\n", i, i/250, i%250+1)
	}
	changed := strings.Replace(string(config), "services:\n", services.String(), 1)
	if err := os.WriteFile(file, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pidOf(t, running, machine, "controller"), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, 60*time.Second, "the plan with all services", func() error {
		plan, err := running.Plan(t.Context(), machine)
		if err == nil && len(plan.GetServices()) < count {
			err = fmt.Errorf("it has %d services", len(plan.GetServices()))
		}
		return err
	})
}

func tcpTo(t *testing.T, running *hosts.Lab, address string) func() (net.Conn, error) {
	namespace := ""
	for _, node := range running.Status() {
		if node.Node == "lb-1" {
			namespace = node.Namespace
		}
	}
	return func() (net.Conn, error) {
		return topology.DialInside(t.Context(), namespace, net.Dialer{Timeout: 5 * time.Second}, "tcp", address)
	}
}

func unixTo(running *hosts.Lab, socket string) func() (net.Conn, error) {
	path := filepath.Join(running.Options().RunDir, "lb-1", "run", socket)
	return func() (net.Conn, error) { return net.DialTimeout("unix", path, 5*time.Second) }
}

// slowConn reads a kilobyte ten times a second.
type slowConn struct {
	net.Conn
	ctx context.Context
}

func slowly(ctx context.Context, dial func() (net.Conn, error)) (net.Conn, error) {
	conn, err := dial()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(4 << 10) // else the kernel reads for it
	}
	return slowConn{conn, ctx}, err
}

func (c slowConn) Read(into []byte) (int, error) {
	select {
	case <-time.After(100 * time.Millisecond):
	case <-c.ctx.Done():
		return 0, c.ctx.Err()
	}
	return c.Conn.Read(into[:min(len(into), 1<<10)])
}

func scrape(ctx context.Context, dial func() (net.Conn, error)) error {
	transport := &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return dial() },
		DisableKeepAlives: true, ReadBufferSize: 1 << 10,
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://lb-1/metrics", nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	bytes, err := io.Copy(io.Discard, response.Body)
	if err == nil && (response.StatusCode != http.StatusOK || bytes < 1<<20) {
		err = fmt.Errorf("%s, %d bytes", response.Status, bytes)
	}
	return err
}

func getState(ctx context.Context, dial func() (net.Conn, error)) error {
	return overGRPC(dial, func(conn *grpc.ClientConn) error {
		_, err := controllerv1.NewControllerClient(conn).GetState(ctx, &controllerv1.GetStateRequest{})
		return err
	})
}

func getMetrics(ctx context.Context, dial func() (net.Conn, error)) error {
	return overGRPC(dial, func(conn *grpc.ClientConn) error {
		_, err := forwarderv1.NewForwarderClient(conn).GetMetrics(ctx, &forwarderv1.GetMetricsRequest{})
		return err
	})
}

func overGRPC(dial func() (net.Conn, error), call func(*grpc.ClientConn) error) error {
	conn, err := grpc.NewClient("passthrough:lb-1", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(256<<20)),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return dial() }))
	if err != nil {
		return err
	}
	return errors.Join(call(conn), conn.Close())
}

// keepEyeOnHealth until stopped: it is asked as the controller asks, and nothing
// that routes are withdrawn by may be seen. Slowness is none of that: on a busy
// machine a thread waits for a processor.
func keepEyeOnHealth(t *testing.T, running *hosts.Lab) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended, answers, slow := make(chan struct{}), 0, 0
	var slowest time.Duration
	go func() {
		defer close(ended)
		health.Watch(ctx, filepath.Join(running.Options().RunDir, "lb-1", "run"), func(a health.Answer) {
			answers++
			slowest = max(slowest, time.Since(a.Asked))
			switch {
			case a.Waits || len(a.Waiting) > 0:
				slow++
			case a.Err != nil:
				t.Errorf("health: %v", a.Err)
			case len(a.Hanging) > 0:
				t.Errorf("health: threads hang: %v", a.Hanging)
			}
		})
	}()
	return func() {
		cancel()
		<-ended
		t.Logf("%d answers about health, the slowest after %v; in %d of them something waited for a processor", answers, slowest, slow)
		if answers < int(loadTime/health.Interval)/2 {
			t.Errorf("only %d answers about health", answers)
		}
	}
}

// keepEyeOnMemory of both processes until stopped.
func keepEyeOnMemory(t *testing.T, running *hosts.Lab) (stop func()) {
	t.Helper()
	processes := []string{"controller", "forwarder"}
	var before, most [2]int
	for i, process := range processes {
		before[i] = residentBytes(t, pidOf(t, running, "lb-1", process))
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			for i, process := range processes {
				most[i] = max(most[i], residentBytes(t, pidOf(t, running, "lb-1", process)))
			}
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() {
		close(done)
		<-ended
		for i, process := range processes {
			t.Logf("the %s has %d MB, and had %d MB before", process, most[i]>>20, before[i]>>20)
			if most[i] > before[i]+growthMax {
				t.Errorf("the %s grew from %d to %d MB", process, before[i]>>20, most[i]>>20)
			}
		}
	}
}

func residentBytes(t *testing.T, pid int) int {
	t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Error(err)
		return 0
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if value, found := strings.CutPrefix(lines.Text(), "VmRSS:"); found {
			kilobytes, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(value, "kB")))
			if err != nil {
				t.Error(err)
			}
			return kilobytes << 10
		}
	}
	t.Errorf("process %d has no VmRSS", pid)
	return 0
}
