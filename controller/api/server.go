package api

// One HTTP server for each listener, which speaks gRPC, gRPC-Web, and JSON over
// HTTP (the Connect protocol: a POST for each call).

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/controller/outside"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

// Server answers on one listener.
type Server struct {
	http    *http.Server
	limiter *limiter
	health  *health.Server
	// What it serves.
	procedures map[string]kind
}

// Settings of a server.
type Settings struct {
	Host  Host
	Admit Admission
	// nil: changes leave no line.
	Audit *Audit
	Log   *slog.Logger
}

// NewServer makes a server that is not yet serving.
func NewServer(settings Settings) *Server {
	s := &Server{limiter: newLimiter(), health: health.NewServer()}
	g := &guard{host: settings.Host, audit: settings.Audit, limiter: s.limiter}
	mux := newMux(&service{host: settings.Host, limiter: s.limiter}, s.health,
		connect.WithRequestGate(g.gate), connect.WithInterceptors(g), connect.WithReadMaxBytes(requestBytesMax), connect.WithSendMaxBytes(messageBytesMax),
		connect.WithCompression("gzip", nil, nil), // answers are counted as they are sent
		connect.WithCodec(strictJSON("json")), connect.WithCodec(strictJSON("json; charset=utf-8")),
	)
	s.procedures = mux.served
	s.http = s.limiter.server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if misdirected := mux.misdirected(r); misdirected != nil {
			// Clients of HTTP/2 may take an answer that comes while they send for a fault.
			_, _ = io.CopyN(io.Discard, r.Body, requestBytesMax)
			misdirected.write(w)
			return
		}
		if r.ProtoMajor == 2 { // a stream's time is the guard's
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(streamMax))
		}
		caller := settings.Admit(r, connOf(r.Context()))
		r = r.WithContext(context.WithValue(r.Context(), callerKey{}, caller))
		if mux.served[r.URL.Path] == isUpload && permit(caller, r.URL.Path) == nil {
			s.serveUpload(mux, w, r)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	if settings.Log != nil {
		s.http.ErrorLog = slog.NewLogLogger(settings.Log.Handler(), slog.LevelWarn)
	}
	return s
}

// serveUpload when no other one is read: connect reads all of a request before its handler
// runs.
func (s *Server) serveUpload(mux *mux, w http.ResponseWriter, r *http.Request) {
	done, err := s.limiter.queueUpload(r.Context())
	if err != nil {
		_ = mux.errors.Write(w, r, connectError(err)) // that the client is gone is no news
		return
	}
	defer done()
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(uploadTimeout))
	mux.ServeHTTP(w, r)
}

// strictJSON answers in the form of `-o json`, and refuses fields that a message lacks: a misspelt
// `drain` is no undrain.
type strictJSON string

func (s strictJSON) Name() string { return string(s) }
func (strictJSON) Marshal(message any) ([]byte, error) {
	return plainjson.Marshal(message.(proto.Message))
}
func (strictJSON) Unmarshal(data []byte, message any) error {
	return protojson.Unmarshal(data, message.(proto.Message))
}

// Serve until Stop.
func (s *Server) Serve(listener net.Listener) error {
	return notStopped(s.http.Serve(s.limiter.count(listener)))
}

// ServeTLS until Stop.
func (s *Server) ServeTLS(listener net.Listener, config *tls.Config) error {
	s.http.TLSConfig = config
	return notStopped(s.http.ServeTLS(s.limiter.count(netutil.LimitListener(listener, connectionsMax)), "", ""))
}

func notStopped(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Stop closes the listener and all connections.
func (s *Server) Stop() {
	s.health.Shutdown()
	_ = s.http.Close() // what it closes is given up
}

// mux serves procedures, and knows which, and of what kind.
type mux struct {
	*http.ServeMux
	options []connect.HandlerOption
	errors  *connect.ErrorWriter
	served  map[string]kind
}

func (m *mux) handle(procedure string, kind kind, handler *connect.Handler) {
	m.Handle(procedure, handler)
	m.served[procedure] = kind
}

// newMux: one line for each procedure.
func newMux(s *service, answers *health.Server, options ...connect.HandlerOption) *mux {
	m := &mux{ServeMux: http.NewServeMux(), options: options, errors: connect.NewErrorWriter(options...), served: map[string]kind{}}
	unary(m, controllerv1.Controller_GetState_FullMethodName, s.GetState)
	unary(m, controllerv1.Controller_GetBackend_FullMethodName, s.GetBackend)
	unary(m, controllerv1.Controller_Reload_FullMethodName, s.Reload)
	upload(m, controllerv1.Controller_PlanConfig_FullMethodName, s.PlanConfig)
	upload(m, controllerv1.Controller_ReplaceConfig_FullMethodName, s.ReplaceConfig)
	bidi(m, controllerv1.Controller_ApplyConfig_FullMethodName, s.ApplyConfig, connect.WithReadMaxBytes(uploadBytesMax))
	unary(m, controllerv1.Controller_GetConfigHistory_FullMethodName, s.GetConfigHistory)
	unary(m, controllerv1.Controller_GetConfig_FullMethodName, s.GetConfig)
	unary(m, controllerv1.Controller_GetFleet_FullMethodName, s.GetFleet)
	unary(m, controllerv1.Controller_EndCanary_FullMethodName, s.EndCanary)
	unary(m, controllerv1.Controller_Restart_FullMethodName, s.Restart)
	unary(m, controllerv1.Controller_DrainBackend_FullMethodName, s.DrainBackend)
	unary(m, controllerv1.Controller_DrainService_FullMethodName, s.DrainService)
	unary(m, controllerv1.Controller_DrainMachine_FullMethodName, s.DrainMachine)
	unary(m, controllerv1.Controller_GetCounters_FullMethodName, s.GetCounters)
	unary(m, controllerv1.Controller_GetConnections_FullMethodName, s.GetConnections)
	unary(m, controllerv1.Controller_GetDropSamples_FullMethodName, s.GetDropSamples)
	sends(m, controllerv1.Controller_WatchEvents_FullMethodName, s.WatchEvents)
	sends(m, controllerv1.Controller_WatchRates_FullMethodName, s.WatchRates)

	unary(m, healthv1.Health_Check_FullMethodName, answers.Check)
	unary(m, healthv1.Health_List_FullMethodName, answers.List)
	sends(m, healthv1.Health_Watch_FullMethodName, answers.Watch)
	answers.SetServingStatus(controllerv1.Controller_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)

	described := reflection.ServerOptions{Services: serviceNames{}}
	bidi(m, reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName, reflection.NewServerV1(described).ServerReflectionInfo)
	bidi(m, reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName, reflection.NewServer(described).ServerReflectionInfo)
	return m
}

// serviceNames are what reflection lists.
type serviceNames struct{}

func (serviceNames) GetServiceInfo() map[string]grpc.ServiceInfo {
	return map[string]grpc.ServiceInfo{
		controllerv1.Controller_ServiceDesc.ServiceName:       {},
		healthv1.Health_ServiceDesc.ServiceName:               {},
		reflectionv1.ServerReflection_ServiceDesc.ServiceName: {},
	}
}

func unary[Q, R any](m *mux, procedure string, f func(context.Context, *Q) (*R, error)) {
	m.handle(procedure, isUnary, connect.NewUnaryHandlerSimple(procedure, f, m.options...))
}

func upload[Q, R any](m *mux, procedure string, f func(context.Context, *Q) (*R, error)) {
	m.handle(procedure, isUpload, connect.NewUnaryHandlerSimple(procedure, f, slices.Concat(m.options, []connect.HandlerOption{connect.WithReadMaxBytes(uploadBytesMax)})...))
}

func sends[Q, R any](m *mux, procedure string, f func(*Q, grpc.ServerStreamingServer[R]) error) {
	m.handle(procedure, isStream, connect.NewServerStreamHandlerSimple(procedure, func(ctx context.Context, request *Q, c *connect.ServerStream[R]) error {
		if m, ok := any(request).(proto.Message); ok {
			outside.Message(m, textBytesMax)
		}
		return f(request, &stream[Q, R]{ctx: ctx, send: c.Send})
	}, m.options...))
}

func bidi[Q, R any](m *mux, procedure string, f func(grpc.BidiStreamingServer[Q, R]) error, options ...connect.HandlerOption) {
	m.handle(procedure, isBidi, connect.NewBidiStreamHandler(procedure, func(ctx context.Context, c *connect.BidiStream[Q, R]) error {
		return f(&stream[Q, R]{ctx: ctx, conn: c.Conn(), send: c.Send})
	}, slices.Concat(m.options, options)...))
}

// stream is a call's as grpc-go's services know it.
type stream[Q, R any] struct {
	grpc.ServerStream // nil: what is not below is not used
	ctx               context.Context
	conn              connect.StreamingHandlerConn
	send              func(*R) error
}

func (s *stream[Q, R]) Context() context.Context { return s.ctx }
func (s *stream[Q, R]) Send(message *R) error    { return s.send(message) }
func (s *stream[Q, R]) Recv() (*Q, error) {
	message := new(Q)
	if err := s.conn.Receive(message); err != nil {
		return nil, err
	}
	if m, ok := any(message).(proto.Message); ok {
		outside.Message(m, textBytesMax)
	}
	return message, nil
}

// guard stands before every procedure.
type guard struct {
	host    Host
	audit   *Audit
	limiter *limiter
}

// gate lets a request in, of which only the headers are there yet.
func (g *guard) gate(ctx context.Context, spec connect.Spec, _ connect.Peer, _ http.Header) (context.Context, error) {
	if err := permit(callerOf(ctx), spec.Procedure); err != nil {
		g.audit.Write(ctx, Entry{Caller: callerOf(ctx), Call: callName(spec.Procedure), Err: err})
		return nil, connectError(err)
	}
	return ctx, nil
}

// WrapUnary makes a change's line, and has the client owe the answer.
func (g *guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		ctx, change := withChange(ctx)
		if message, ok := request.Any().(proto.Message); ok {
			outside.Message(message, textBytesMax)
			change.Request = message
		}
		response, err := next(ctx, request)
		g.record(ctx, request.Spec(), change, err)
		if err != nil {
			return nil, connectError(err)
		}
		if message, ok := response.Any().(proto.Message); ok {
			err = g.limiter.owe(ctx, proto.Size(message)*inflation(request.Header()))
		}
		return response, connectError(err)
	}
}

// inflation: what a byte of an answer becomes where it is sent as text.
func inflation(header http.Header) int {
	if header.Get("Content-Type") == "application/json" {
		return jsonInflation
	}
	return 1
}

// WrapStreamingHandler limits a stream's time, too.
func (g *guard) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		ctx, cancel := context.WithTimeout(ctx, streamMax)
		defer cancel()
		ctx, change := withChange(ctx)
		err := next(ctx, conn)
		g.record(ctx, conn.Spec(), change, err)
		return connectError(err)
	}
}

// WrapStreamingClient is for clients: there are none here.
func (g *guard) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// connectError has the code and the text of what grpc-go's services return.
func connectError(err error) error {
	if err == nil {
		return nil
	}
	if known := (*connect.Error)(nil); errors.As(err, &known) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = status.FromContextError(err).Err()
	}
	converted := status.Convert(err)
	return connect.NewError(connect.Code(converted.Code()), errors.New(converted.Message()))
}
