package api

import (
	"context"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// large has a state of `bytes` bytes.
type large struct {
	host
	bytes int
}

func (h *large) StateOf(_ context.Context, _ *controllerv1.GetStateRequest) (*controllerv1.GetStateResponse, error) {
	return &controllerv1.GetStateResponse{Version: strings.Repeat("x", h.bytes)}, nil
}

// deaf is a connection whose client stops reading after `left` bytes.
type deaf struct {
	net.Conn
	left   int
	closed chan struct{}
	once   sync.Once
}

func (d *deaf) Read(into []byte) (int, error) {
	if d.left <= 0 {
		<-d.closed
		return 0, net.ErrClosed
	}
	n, err := d.Conn.Read(into[:min(len(into), d.left)])
	d.left -= n
	return n, err
}

func (d *deaf) Close() error {
	d.once.Do(func() { close(d.closed) })
	return d.Conn.Close()
}

func connectBy(t *testing.T, socket string, wrap func(net.Conn) net.Conn) controllerv1.ControllerClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax)),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			conn, err := net.Dial("unix", socket)
			if err != nil {
				return nil, err
			}
			return wrap(conn), nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return controllerv1.NewControllerClient(conn)
}

func TestClientsThatDoNotReadHaveABoundedShareOfMemory(t *testing.T) {
	runDir := looptest.Dir(t)
	sockets, err := Listen(runDir)
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(Settings{Host: &large{bytes: 2 << 20}, Admit: Users(Operate)})
	go server.Serve(sockets.Operate)
	t.Cleanup(func() { server.Stop(); sockets.Close() })
	path := OperateSocket(runDir)

	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	for range 200 {
		client := connectBy(t, path, func(c net.Conn) net.Conn { return &deaf{Conn: c, left: 4 << 10, closed: make(chan struct{})} })
		asking.Go(func() { _, _ = client.GetState(ctx, &controllerv1.GetStateRequest{}) })
	}
	owed := func() int {
		server.limiter.mu.Lock()
		defer server.limiter.mu.Unlock()
		return server.limiter.bytes
	}
	for owed() < answersBytesMax-(4<<20) {
		time.Sleep(time.Millisecond)
	}
	reading := connectBy(t, path, func(c net.Conn) net.Conn { return c })
	var refused bool
	for range 50 {
		_, err := reading.GetState(t.Context(), &controllerv1.GetStateRequest{})
		switch status.Code(err) {
		case codes.OK:
		case codes.ResourceExhausted:
			refused = true
		default:
			t.Fatal(err)
		}
	}
	if !refused || owed() > answersBytesMax {
		t.Errorf("refused: %v; %d bytes wait", refused, owed())
	}
	// What small answers are there for is not hindered.
	if _, err := reading.DrainBackend(t.Context(), &controllerv1.DrainBackendRequest{Backend: "web-1"}); err != nil {
		t.Error(err)
	}
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	if memory.HeapAlloc > 3*answersBytesMax {
		t.Errorf("%d MB in use", memory.HeapAlloc>>20)
	}
	// Clients that go away give everything back.
	cancel()
	server.Stop()
	if bytes := owed(); bytes != 0 {
		t.Errorf("%d bytes wait after the end", bytes)
	}
}
