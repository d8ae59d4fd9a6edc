// Package machine connects to the processes of a machine: on this one through their
// sockets, on another to its controller over TCP.
package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/outside"
	"github.com/guideway/guideway/controller/sinks/forwarder"
	"github.com/guideway/guideway/controller/sinks/routes"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

// Where the processes meet unless told otherwise.
const RunDirDefault = "/run/guideway"

// ConfigDefault is where the config is unless told otherwise; the packages install it there.
const ConfigDefault = "/etc/guideway/guideway.yaml"

// What one answer may take; a large plan is some 20 MiB.
const askTimeout = 10 * time.Second

// Machine is the processes behind a run directory; or another machine's
// controller.
type Machine struct {
	RunDir string
	Remote remote
	// Connections that are kept between calls, by their address; nil: none are.
	kept map[string]*grpc.ClientConn
}

// At is another machine, reached with the same certificate.
func (m Machine) At(server string) Machine {
	m.RunDir, m.Remote.Server = "", server
	return m
}

// Door is how one reaches a process, to look or to change something.
type Door struct {
	process, unit, program string
	// The one to be used, and what serves instead if that is shut: operators
	// may look without being viewers, too.
	socket, instead string
	// Whose members may use it.
	group string
}

// ControllerDoor for members of a group.
func (m Machine) ControllerDoor(group string) Door {
	d := Door{process: "controller", unit: "guideway-controller", program: "guideway controller --config FILE", socket: api.OperateSocket(m.RunDir), group: group}
	if group == api.ViewGroup {
		d.socket, d.instead = api.ViewSocket(m.RunDir), d.socket
	}
	return d
}

func (m Machine) forwarderDoor(group string) Door {
	d := Door{process: "forwarder", unit: "guideway-forwarder", program: "guideway-forwarder", socket: filepath.Join(m.RunDir, "forwarder.sock"), group: group}
	if group == api.ViewGroup {
		d.socket, d.instead = filepath.Join(m.RunDir, "forwarder-view.sock"), d.socket
	}
	return d
}

type controllerCall = func(context.Context, controllerv1.ControllerClient) error

type speakerCall = func(context.Context, speakerv1.SpeakerClient) error

func (m Machine) speakerDoor() Door {
	return Door{process: "speaker", unit: "guideway-speaker", program: "guideway speaker", socket: routes.Socket(m.RunDir), group: api.ViewGroup}
}

// AskSpeaker calls f with a client of the speaker that may look.
func (m Machine) AskSpeaker(ctx context.Context, f speakerCall) error {
	return m.Ask(ctx, askTimeout, m.speakerDoor(), func(ctx context.Context, conn *grpc.ClientConn) error {
		return f(ctx, speakerv1.NewSpeakerClient(conn))
	})
}

type forwarderCall = func(context.Context, forwarderv1.ForwarderClient) error

// AskController calls f with a client of the controller that may look.
func (m Machine) AskController(ctx context.Context, f controllerCall) error {
	return m.callController(ctx, api.ViewGroup, f)
}

// OperateController calls f with a client that may change something.
func (m Machine) OperateController(ctx context.Context, f controllerCall) error {
	return m.callController(ctx, api.OperateGroup, f)
}

func (m Machine) callController(ctx context.Context, group string, f controllerCall) error {
	return m.Ask(ctx, askTimeout, m.ControllerDoor(group), func(ctx context.Context, conn *grpc.ClientConn) error {
		return f(ctx, controllerv1.NewControllerClient(conn))
	})
}

// AskForwarder calls f with a client of the forwarder that may look.
func (m Machine) AskForwarder(ctx context.Context, f forwarderCall) error {
	return m.Ask(ctx, askTimeout, m.forwarderDoor(api.ViewGroup), func(ctx context.Context, conn *grpc.ClientConn) error {
		return f(ctx, forwarderv1.NewForwarderClient(conn))
	})
}

// StreamForwarder calls f, for as long as it likes, with a client of the
// forwarder that may capture.
func (m Machine) StreamForwarder(ctx context.Context, f forwarderCall) error {
	return m.Ask(ctx, 0, m.forwarderDoor(api.OperateGroup), func(ctx context.Context, conn *grpc.ClientConn) error {
		return f(ctx, forwarderv1.NewForwarderClient(conn))
	})
}

// Packets is what both processes answer about packets.
type Packets interface {
	GetCounters(context.Context, *forwarderv1.GetCountersRequest, ...grpc.CallOption) (*forwarderv1.GetCountersResponse, error)
	GetConnections(context.Context, *forwarderv1.GetConnectionsRequest, ...grpc.CallOption) (*forwarderv1.GetConnectionsResponse, error)
	GetDropSamples(context.Context, *forwarderv1.GetDropSamplesRequest, ...grpc.CallOption) (*forwarderv1.GetDropSamplesResponse, error)
}

// AskPackets calls f with the controller; on its own machine, where that does
// not answer or does not reach the forwarder, with the forwarder itself.
func (m Machine) AskPackets(ctx context.Context, f func(context.Context, Packets) error) error {
	err := m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) error { return f(ctx, client) })
	if err == nil || m.Remote.Server != "" || ctx.Err() != nil {
		return err
	}
	return m.AskForwarder(ctx, func(ctx context.Context, client forwarderv1.ForwarderClient) error { return f(ctx, client) })
}

// Ask: limit 0 is none.
func (m Machine) Ask(ctx context.Context, limit time.Duration, d Door, f func(context.Context, *grpc.ClientConn) error) error {
	conn, at, err := m.connect(ctx, d)
	if err != nil {
		return err
	}
	if m.kept == nil {
		defer conn.Close()
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	if err := f(ctx, conn); err != nil {
		if m.kept != nil { // the next call finds out why
			delete(m.kept, at)
			conn.Close()
		}
		text := outside.Lines(status.Convert(err).Message(), errorBytesMax)
		if m.Remote.Server == "" && isSilent(ctx, err) {
			text = fmt.Sprintf("takes connections, but does not answer: it hangs, or waits for a processor: systemctl restart %s", d.unit)
		}
		return Refused{text: fmt.Sprintf("the %s at %s: %s", d.process, at, text), Code: status.Code(err)}
	}
	return nil
}

// isSilent: it was our time that ended, or gRPC's to get a connection going. What
// gRPC says of that is about its own connection.
func isSilent(ctx context.Context, err error) bool {
	switch s := status.Convert(err); s.Code() {
	case codes.DeadlineExceeded:
		return ctx.Err() != nil // else it is the other side's word
	case codes.Unavailable:
		return strings.HasPrefix(s.Message(), "connection error: ")
	}
	return false
}

// KeepConnections between calls until the returned function is called.
func (m *Machine) KeepConnections() (end func()) {
	m.kept = map[string]*grpc.ClientConn{}
	return func() {
		for _, conn := range m.kept {
			conn.Close()
		}
	}
}

// connect to a process, or find the connection that was kept.
func (m Machine) connect(ctx context.Context, d Door) (conn *grpc.ClientConn, at string, err error) {
	dial := func() (*grpc.ClientConn, string, error) { return m.dial(d) }
	if m.Remote.Server != "" {
		dial = func() (*grpc.ClientConn, string, error) { return m.Remote.dial(ctx) }
		d.socket = m.Remote.Server
	}
	for _, at := range []string{d.socket, d.instead} {
		if conn := m.kept[at]; conn != nil {
			return conn, at, nil
		}
	}
	conn, at, err = dial()
	if err == nil && m.kept != nil {
		m.kept[at] = conn
	}
	return conn, at, err
}

func (m Machine) dial(d Door) (*grpc.ClientConn, string, error) {
	socket, err := d.open()
	if errors.Is(err, fs.ErrPermission) {
		return nil, "", fmt.Errorf("the %s's socket %s: permission denied: be root, or a member of the group %s (usermod -a -G %s USER, then log in anew)", d.process, d.socket, d.group, d.group)
	}
	if err != nil {
		return nil, "", fmt.Errorf("the %s does not answer at %s (%w): start it: systemctl start %s, or %s --run-dir %s; another directory: --run-dir; another machine: --server",
			d.process, socket, err, d.unit, d.program, m.RunDir)
	}
	conn, err := forwarder.Dial(socket, cleaned...)
	return conn, socket, err
}

// errorBytesMax: a config may have many mistakes.
const errorBytesMax = 256 << 10

// cleaned are a connection's options by which what a process answers is shown as text:
// it may be older than this program, or in somebody else's hands.
var cleaned = []grpc.DialOption{
	grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		err := invoke(ctx, method, request, answer, conn, options...)
		cleanAnswer(answer)
		return err
	}),
	grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
		stream, err := open(ctx, desc, conn, method, options...)
		return cleanedStream{stream}, err
	}),
}

type cleanedStream struct{ grpc.ClientStream }

func (s cleanedStream) RecvMsg(answer any) error {
	err := s.ClientStream.RecvMsg(answer)
	cleanAnswer(answer)
	return err
}

func cleanAnswer(answer any) {
	if message, ok := answer.(proto.Message); ok {
		outside.Message(message, math.MaxInt)
	}
}

// Refused is what a process says no by.
type Refused struct {
	text string
	Code codes.Code
}

func (r Refused) Error() string { return r.text }

// open finds the socket that answers; the error is the first one's.
func (d Door) open() (string, error) {
	err := answers(d.socket)
	if err != nil && d.instead != "" && answers(d.instead) == nil {
		return d.instead, nil
	}
	return d.socket, err
}

// answers tries the socket first: gRPC's own errors say less.
func answers(socket string) error {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	switch {
	case err == nil:
		return conn.Close()
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("no such socket")
	case errors.Is(err, os.ErrPermission):
		return fs.ErrPermission
	}
	var inner *net.OpError
	if errors.As(err, &inner) {
		return inner.Err
	}
	return err
}
