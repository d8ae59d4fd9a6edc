package speaker

// The speaker's socket. Requests are answered from the latest decision; none delays the next
// one.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/guideway/guideway/controller/rundir"
	"github.com/guideway/guideway/controller/sinks/routes"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

const (
	// Requests at a time over one connection.
	streamsMax = 16
	// A client may take this long until its connection is ready.
	connectTimeout = 5 * time.Second
	// Of a request of who may only look: it has nothing to say.
	questionBytesMax = 64 << 10
	// Of requests that are not read yet: over one stream, and over one connection.
	streamWindowBytes     = 64 << 10
	connectionWindowBytes = 256 << 10
	// After a connection that could not be accepted.
	acceptPause = 100 * time.Millisecond
)

type sockets struct {
	lock      *os.File
	listener  net.Listener
	notShared string
}

func listen(runDir string) (*sockets, error) {
	lock, err := rundir.Lock("speaker", routes.SocketDir(runDir))
	if err != nil {
		return nil, err
	}
	listener, notShared, err := rundir.Listen(routes.Socket(runDir), rundir.ViewGroup)
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	return &sockets{lock, listener, notShared}, nil
}

func (s *sockets) close() {
	_ = s.listener.Close()
	_ = s.lock.Close()
}

// Who may make which call: setters every one, others those that are false here, and
// no call that does not stand here. What is refused is so before its message is read.
var settersOnly = map[string]bool{
	speakerv1.Speaker_Set_FullMethodName:        true,
	speakerv1.Speaker_Poll_FullMethodName:       true,
	speakerv1.Speaker_GetState_FullMethodName:   false,
	speakerv1.Speaker_GetDesired_FullMethodName: false,
}

// servers has one server for who may set what is desired, and one for who may look
// and has nothing long to say.
type servers struct {
	setters         map[uint32]bool
	setting, asking *grpc.Server
}

func newServers(p *process, controllerUser string) (*servers, error) {
	setters := map[uint32]bool{0: true, uint32(os.Geteuid()): true}
	if controllerUser != "" {
		known, err := user.Lookup(controllerUser)
		if err != nil {
			return nil, fmt.Errorf("--controller-user %s: %w: `make install` makes it", controllerUser, err)
		}
		uid, err := strconv.ParseUint(known.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("--controller-user %s: its id is %q", controllerUser, known.Uid)
		}
		setters[uint32(uid)] = true
	}
	return &servers{setters: setters, setting: newServer(p, routes.MessageBytesMax), asking: newServer(p, questionBytesMax, grpc.InTapHandle(lookOnly))}, nil
}

func newServer(p *process, requestBytesMax int, options ...grpc.ServerOption) *grpc.Server {
	s := grpc.NewServer(append(options, grpc.MaxRecvMsgSize(requestBytesMax), grpc.MaxSendMsgSize(routes.MessageBytesMax),
		grpc.InitialWindowSize(streamWindowBytes), grpc.InitialConnWindowSize(connectionWindowBytes),
		grpc.MaxConcurrentStreams(streamsMax), grpc.ConnectionTimeout(connectTimeout), grpc.WaitForHandlers(true))...)
	speakerv1.RegisterSpeakerServer(s, &server{p: p})
	return s
}

// lookOnly refuses who may not set, of whose request only the headers are there yet.
func lookOnly(ctx context.Context, call *tap.Info) (context.Context, error) {
	if needed, known := settersOnly[call.FullMethodName]; needed || !known {
		return nil, status.Error(codes.PermissionDenied, "you may look, not set what is announced: that is the controller's")
	}
	return ctx, nil
}

// serve each connection by its user, until stop and the listener's end.
func (s *servers) serve(listener net.Listener) {
	setting, asking := newQueue(listener), newQueue(listener)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() { _ = s.setting.Serve(setting) }) // ends with stop
	tasks.Go(func() { _ = s.asking.Serve(asking) })
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // descriptors are short: others may be closed meanwhile
			time.Sleep(acceptPause)
			continue
		}
		queue := asking
		if client, known := conn.(*rundir.Conn); known && s.setters[client.Peer.UID] {
			queue = setting
		}
		queue.put(conn)
	}
}

func (s *servers) stop() {
	s.setting.Stop()
	s.asking.Stop()
}

// queue is a listener of connections that another one accepted.
type queue struct {
	net.Listener
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func newQueue(of net.Listener) *queue {
	return &queue{Listener: of, conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (q *queue) put(conn net.Conn) {
	select {
	case q.conns <- conn:
	case <-q.closed:
		_ = conn.Close() // nobody serves it
	}
}

func (q *queue) Accept() (net.Conn, error) {
	select {
	case conn := <-q.conns:
		return conn, nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

func (q *queue) Close() error {
	q.once.Do(func() { close(q.closed) })
	return nil
}

type server struct {
	speakerv1.UnimplementedSpeakerServer
	p *process
}

func (s *server) Set(ctx context.Context, request *speakerv1.SetRequest) (*speakerv1.SetResponse, error) {
	s.p.heardController()
	select {
	case s.p.sets <- request:
		return &speakerv1.SetResponse{}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func (s *server) Poll(_ context.Context, request *speakerv1.PollRequest) (*speakerv1.State, error) {
	s.p.heardController()
	s.p.peerWell.Store(request.GetPeerWell())
	return s.p.state(), nil
}

func (s *server) GetState(context.Context, *speakerv1.GetStateRequest) (*speakerv1.State, error) {
	return s.p.state(), nil
}

func (s *server) GetDesired(context.Context, *speakerv1.GetDesiredRequest) (*speakerv1.Desired, error) {
	return s.p.shown.Load().desired, nil
}

// heardController takes a setter's call for a sign of life.
func (p *process) heardController() { p.called.Store(new(time.Now())) }
