package speaker

// The speaker's socket. Requests are answered from what was decided last; none
// delays a decision.

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/user"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/rundir"
	"github.com/guideway/guideway/controller/sinks/routes"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

const (
	// Requests at a time over one connection.
	streamsMax = 16
	// A client may take this long until its connection is ready.
	connectTimeout = 5 * time.Second
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

type server struct {
	speakerv1.UnimplementedSpeakerServer
	p *process
	// Users that may set what is desired.
	setters map[uint32]bool
}

func newServer(p *process, controllerUser string) (*grpc.Server, error) {
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
	s := grpc.NewServer(grpc.Creds(peerUser{insecure.NewCredentials()}), grpc.MaxRecvMsgSize(routes.MessageBytesMax), grpc.MaxSendMsgSize(routes.MessageBytesMax),
		grpc.MaxConcurrentStreams(streamsMax), grpc.ConnectionTimeout(connectTimeout))
	speakerv1.RegisterSpeakerServer(s, &server{p: p, setters: setters})
	return s, nil
}

func (s *server) Set(ctx context.Context, request *speakerv1.SetRequest) (*speakerv1.SetResponse, error) {
	if err := s.controllersOnly(ctx); err != nil {
		return nil, err
	}
	select {
	case s.p.sets <- request:
		return &speakerv1.SetResponse{}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func (s *server) Poll(ctx context.Context, request *speakerv1.PollRequest) (*speakerv1.State, error) {
	if err := s.controllersOnly(ctx); err != nil {
		return nil, err
	}
	s.p.peerWell.Store(request.GetPeerWell())
	return s.p.state(), nil
}

func (s *server) GetState(context.Context, *speakerv1.GetStateRequest) (*speakerv1.State, error) {
	return s.p.state(), nil
}

func (s *server) GetDesired(context.Context, *speakerv1.GetDesiredRequest) (*speakerv1.Desired, error) {
	return s.p.shown.Load().desired, nil
}

// controllersOnly lets the controller's user in, and takes its call for a sign
// of life.
func (s *server) controllersOnly(ctx context.Context) error {
	from, known := peer.FromContext(ctx)
	if !known {
		return status.Error(codes.PermissionDenied, "the caller is not known")
	}
	caller, known := from.AuthInfo.(peerInfo)
	if !known || !s.setters[caller.uid] {
		return status.Errorf(codes.PermissionDenied, "user %d may look, not set what is announced: that is the controller's", caller.uid)
	}
	s.p.called.Store(time.Now().UnixNano())
	return nil
}

// peerUser has the kernel say who is at the other end of a connection
// (SO_PEERCRED).
type peerUser struct {
	credentials.TransportCredentials
}

type peerInfo struct {
	credentials.CommonAuthInfo
	uid uint32
}

func (peerInfo) AuthType() string { return "peercred" }

func (peerUser) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	socket, is := conn.(*net.UnixConn)
	if !is {
		return nil, nil, fmt.Errorf("a connection from %s is no unix socket's", conn.RemoteAddr())
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var found *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { found, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return nil, nil, err
	}
	if failed != nil {
		return nil, nil, failed
	}
	return conn, peerInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}, found.Uid}, nil
}
