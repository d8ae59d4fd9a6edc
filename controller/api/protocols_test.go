package api

// The same calls by other clients than ours: grpc-go's generic ones, its health
// and reflection, curl.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// served are all procedures that the contracts have.
func served() (procedures []string) {
	for _, service := range []grpc.ServiceDesc{
		controllerv1.Controller_ServiceDesc, healthv1.Health_ServiceDesc, reflectionv1.ServerReflection_ServiceDesc, reflectionv1alpha.ServerReflection_ServiceDesc,
	} {
		for _, method := range service.Methods {
			procedures = append(procedures, "/"+service.ServiceName+"/"+method.MethodName)
		}
		for _, stream := range service.Streams {
			procedures = append(procedures, "/"+service.ServiceName+"/"+stream.StreamName)
		}
	}
	slices.Sort(procedures)
	return procedures
}

func TestEveryProcedureIsServedAndHasARule(t *testing.T) {
	want := served()
	var ruled []string
	for procedure, rule := range rules {
		ruled = append(ruled, procedure)
		if rule.needs < View {
			t.Errorf("%s needs no role", procedure)
		}
	}
	slices.Sort(ruled)
	if !slices.Equal(ruled, want) {
		t.Errorf("rules: %q\ncontracts: %q", ruled, want)
	}
	mounted := slices.Sorted(maps.Keys(NewServer(Settings{Host: &host{}, Admit: Users(View)}).procedures))
	if !slices.Equal(mounted, want) {
		t.Errorf("served: %q\ncontracts: %q", mounted, want)
	}
}

// as serves callers of a role, and returns a connection.
func as(t *testing.T, role Role) *grpc.ClientConn {
	t.Helper()
	socket := filepath.Join(looptest.Dir(t), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(Settings{Host: &host{}, Admit: func(*http.Request, *clientConn) Caller {
		return Caller{Name: "alice", Certificate: "1f", Role: role, certificateNames: []string{"alice"}}
	}})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// call with an empty message, whatever the procedure's kind.
func call(ctx context.Context, conn *grpc.ClientConn, procedure string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, procedure)
	if err == nil {
		err = stream.SendMsg(&emptypb.Empty{})
	}
	if err == nil || errors.Is(err, io.EOF) {
		_ = stream.CloseSend() // its error comes with the answer
		err = stream.RecvMsg(&emptypb.Empty{})
	}
	return err
}

func TestEachRoleMayCallWhatItsRuleSaysAndNothingElse(t *testing.T) {
	needed := map[Role]int{}
	for _, role := range []Role{NoRole, View, Operate, Admin} {
		conn := as(t, role)
		for procedure, rule := range rules {
			err := call(t.Context(), conn, procedure)
			refused := status.Code(err) == codes.PermissionDenied
			if refused != (role < rule.needs) {
				t.Errorf("%s as %s: %v", procedure, role, err)
			}
			if refused && !strings.Contains(err.Error(), "the certificate of alice") {
				t.Errorf("%s as %s: %v", procedure, role, err)
			}
			if role == rule.needs {
				needed[role]++
			}
		}
	}
	if needed[View] == 0 || needed[Operate] == 0 || needed[Admin] == 0 {
		t.Errorf("no procedure for some role: %v", needed)
	}
}

func TestReflectionHasAllThatACallNeeds(t *testing.T) {
	client := reflectionv1.NewServerReflectionClient(as(t, View))
	stream, err := client.ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(r *reflectionv1.ServerReflectionRequest) *reflectionv1.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	var names []string
	for _, s := range ask(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}).GetListServicesResponse().GetService() {
		names = append(names, s.Name)
	}
	if want := []string{"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "guideway.controller.v1.Controller"}; !slices.Equal(names, want) {
		t.Errorf("services %q, want %q", names, want)
	}
	answer := ask(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "guideway.controller.v1.Controller"}})
	var files []string
	for _, data := range answer.GetFileDescriptorResponse().GetFileDescriptorProto() {
		file := &descriptorpb.FileDescriptorProto{}
		if err := proto.Unmarshal(data, file); err != nil {
			t.Fatal(err)
		}
		files = append(files, file.GetName())
	}
	if !slices.Contains(files, "guideway/controller/v1/controller.proto") {
		t.Errorf("files %q", files)
	}
}

func TestHealthIsAnsweredByGRPCsOwnService(t *testing.T) {
	client := healthv1.NewHealthClient(as(t, View))
	for _, service := range []string{"", "guideway.controller.v1.Controller"} {
		if answer, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service}); err != nil || answer.Status != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v %v", service, answer, err)
		}
	}
	if _, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{Service: "another"}); status.Code(err) != codes.NotFound {
		t.Errorf("another: %v", err)
	}
	watch, err := client.Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := watch.Recv(); err != nil || answer.Status != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("watch: %v %v", answer, err)
	}
}

// curl a call of the Controller at a socket: HTTP status and body.
func curl(t *testing.T, socket, call, body string, options ...string) (code, text string) {
	t.Helper()
	arguments := append([]string{"-sS", "--unix-socket", socket, "-w", "\n%{http_code}", "--json", body, "http://localhost/guideway.controller.v1.Controller/" + call}, options...)
	out, err := exec.Command("curl", arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("curl: %v: %s", err, out)
	}
	lines := strings.Split(string(out), "\n")
	return lines[len(lines)-1], strings.Join(lines[:len(lines)-1], "\n")
}

func TestTheSameCallsAreJSONOverHTTP(t *testing.T) {
	h := &host{}
	dial(t, h)
	operate, view := OperateSocket(h.runDir), ViewSocket(h.runDir)
	for _, version := range []string{"--http1.1", "--http2-prior-knowledge"} {
		code, body := curl(t, operate, "GetState", "{}", version)
		var state struct{ Version string }
		if err := json.Unmarshal([]byte(body), &state); code != "200" || err != nil || state.Version != "test" {
			t.Errorf("%s: %s %s %v", version, code, body, err)
		}
	}
	if code, _ := curl(t, operate, "DrainBackend", `{"backend":"web-1","drain":true}`); code != "200" || !slices.Equal(h.drained, []string{"web-1"}) {
		t.Errorf("drain: %s, drained %v", code, h.drained)
	}
	for name, c := range map[string]struct{ socket, call, body, code, want string }{
		"a viewer's drain":   {view, "DrainBackend", `{"backend":"web-1"}`, "403", `"code":"permission_denied"`},
		"unknown backend":    {operate, "DrainBackend", `{"backend":"nobody"}`, "404", `"code":"not_found"`},
		"a field misspelled": {operate, "DrainBackend", `{"backnd":"web-1"}`, "400", "backnd"},
		"no JSON":            {operate, "GetState", `{`, "400", `"code":"invalid_argument"`},
		"too large":          {operate, "DrainBackend", `{"backend":"` + strings.Repeat("x", requestBytesMax) + `"}`, "429", `"code":"resource_exhausted"`},
		"no such call":       {operate, "Explode", `{}`, "404", "there is no call"},
		"a stream":           {operate, "ApplyConfig", `{}`, "415", "ReplaceConfig does with one POST"},
		"a bad config":       {operate, "PlanConfig", `{}`, "400", "the request has no files"},
		"no base64":          {operate, "PlanConfig", `{"files":[{"name":"a","data":"*"}]}`, "400", `"code":"invalid_argument"`},
	} {
		if code, body := curl(t, c.socket, c.call, c.body); code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%s: %s %s", name, code, body)
		}
	}
}

func TestAConfigIsPlannedAndReplacedByOnePOST(t *testing.T) {
	h := &host{}
	dial(t, h)
	socket := OperateSocket(h.runDir)
	large := strings.Repeat("# a comment\n", 1<<20) // which curl reads from a file
	request := filepath.Join(t.TempDir(), "request.json")
	write := func(value any) {
		data, err := json.Marshal(value)
		if err == nil {
			err = os.WriteFile(request, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	files := []map[string]any{{"name": "a.yaml", "data": []byte(large)}}
	write(map[string]any{"files": files})
	if code, body := curl(t, socket, "PlanConfig", "@"+request); code != "200" || string(h.offered[0].Data) != large {
		t.Errorf("plan: %s %.200s", code, body)
	}
	write(map[string]any{"files": files, "order": map[string]any{"number": 7, "message": "why"}})
	if code, body := curl(t, socket, "ReplaceConfig", "@"+request); code != "200" || !strings.Contains(body, `"number":3,`) || h.order.GetMessage() != "why" {
		t.Errorf("replace: %s %.200s", code, body)
	}
	lines := auditLines(t, h.runDir)
	if logged := fmt.Sprint(lines[0]["request"]); len(lines) != 1 || !strings.Contains(logged, "why") || len(logged) > 500 {
		t.Errorf("audited: %.500s", logged)
	}
}

// A stream, a wrong method and a body of another kind have answers that say what to do, never
// an empty one.
func TestMisdirectedRequestsAreToldWhereToGo(t *testing.T) {
	h := &host{}
	dial(t, h)
	const calls = "http://localhost/guideway.controller.v1.Controller/"
	for name, c := range map[string]struct {
		arguments  []string
		code, want string
	}{
		"another page":               {[]string{"http://localhost/"}, "404", "there is no call /"},
		"GET":                        {[]string{calls + "GetState"}, "405", "each call is a POST"},
		"no JSON":                    {[]string{"-d", "{}", calls + "GetState"}, "415", "content-type: application/json"},
		"a stream by HTTP/1.1":       {[]string{"--http1.1", "-H", "content-type: application/connect+json", "-d", "{}", calls + "ApplyConfig"}, "505", "ReplaceConfig does"},
		"gRPC, of what is not there": {[]string{"--http2-prior-knowledge", "-H", "content-type: application/grpc", "-d", "{}", calls + "Explode"}, "404", "there is no call"},
	} {
		arguments := append([]string{"-sS", "--unix-socket", ViewSocket(h.runDir), "-w", "\n%{http_code}"}, c.arguments...)
		out, err := exec.Command("curl", arguments...).CombinedOutput()
		body, code, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		var refusal struct{ Code, Message string }
		if err != nil || strings.TrimSpace(code) != c.code || json.Unmarshal([]byte(body), &refusal) != nil || refusal.Code == "" || !strings.Contains(refusal.Message, c.want) {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
}

func auditLines(t *testing.T, dir string) (lines []map[string]any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, AuditFile))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		read := map[string]any{}
		if err := json.Unmarshal([]byte(line), &read); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		lines = append(lines, read)
	}
	return lines
}

func TestEachChangeLeavesALineAndLookingNone(t *testing.T) {
	h := &host{}
	operator, viewer := dial(t, h)
	ctx := t.Context()
	_, _ = viewer.GetState(ctx, &controllerv1.GetStateRequest{})
	_, _ = operator.DrainBackend(ctx, &controllerv1.DrainBackendRequest{Backend: "web-1", Drain: true})
	_, _ = operator.DrainBackend(ctx, &controllerv1.DrainBackendRequest{Backend: "nobody", Drain: true})
	_, _ = viewer.DrainMachine(ctx, &controllerv1.DrainMachineRequest{Drain: true})
	_, _ = operator.Reload(ctx, &controllerv1.ReloadRequest{})
	stream, err := beginApply(t, operator)
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&controllerv1.ApplyConfigRequest{Written: true})
	_, _ = stream.Recv()
	_, _ = stream.Recv() // the end

	lines := auditLines(t, h.runDir)
	want := []struct{ call, from, role, result string }{
		{"DrainBackend", "controller.sock", "admin", "done"}, {"DrainBackend", "controller.sock", "admin", "failed"},
		{"DrainMachine", "controller-view.sock", "view", "refused"}, {"Reload", "controller.sock", "admin", "done"}, {"ApplyConfig", "controller.sock", "admin", "done"},
	}
	if len(lines) != len(want) {
		t.Fatalf("%d lines: %v", len(lines), lines)
	}
	for i, w := range want {
		l := lines[i]
		if l["call"] != w.call || l["from"] != w.from || l["role"] != w.role || l["result"] != w.result || l["user"] == "" || l["uid"] != float64(os.Getuid()) || l["pid"] != float64(os.Getpid()) {
			t.Errorf("line %d: %v, want %v", i, l, w)
		}
		if refused := w.result == "refused"; (l["config"] == float64(9)) == refused || (l["error"] == nil) != (w.result == "done") {
			t.Errorf("line %d: %v", i, l)
		}
	}
	if request, _ := lines[0]["request"].(map[string]any); request["backend"] != "web-1" || request["drain"] != true {
		t.Errorf("request %v", lines[0])
	}
	if request, _ := lines[4]["request"].(map[string]any); request["message"] != "why" {
		t.Errorf("request %v", lines[4])
	}
	info, err := os.Stat(filepath.Join(h.runDir, AuditFile))
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

// Nobody hides a change in the audit log by its length, or writes on the terminals of
// those who read it.
func TestTextOfRequestsIsCutAndQuoted(t *testing.T) {
	h := &host{}
	operator, _ := dial(t, h)
	long := strings.Repeat("\x1b", 15<<10)
	_, err := operator.DrainBackend(t.Context(), &controllerv1.DrainBackendRequest{Backend: long, Drain: true})
	if err != nil || strings.Contains(h.drained[0], "\x1b") {
		t.Errorf("%.100q %v", h.drained, err)
	}
	stream, err := operator.ApplyConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&controllerv1.ApplyConfigRequest{Files: []*controllerv1.ConfigFile{{Name: "a", Data: []byte("1")}}, Order: &controllerv1.ApplyOrder{Message: long, From: long, Canary: long}})
	_ = stream.Send(&controllerv1.ApplyConfigRequest{Written: true})
	for err == nil {
		_, err = stream.Recv()
	}
	if h.order == nil || strings.Contains(h.order.Message+h.order.From, "\x1b") || len(h.order.Message) > textBytesMax {
		t.Errorf("the controller got %.100q", h.order.GetMessage())
	}
	lines := auditLines(t, h.runDir)
	for i, line := range lines {
		if request, _ := line["request"].(map[string]any); len(request) == 0 || strings.Contains(fmt.Sprint(line), "\x1b") {
			t.Errorf("line %d: %.300q", i, fmt.Sprint(line))
		}
	}
	if len(lines) != 2 {
		t.Errorf("%d lines", len(lines))
	}
}

func TestTheAuditLogIsBoundedAndRefusalsDoNotFillIt(t *testing.T) {
	dir := t.TempDir()
	audit, err := OpenAudit(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer audit.Close()
	refused := Entry{Caller: Caller{Name: "mallory"}, Call: "Reload", Err: status.Error(codes.PermissionDenied, "no")}
	for range 1000 {
		audit.Write(t.Context(), refused)
	}
	audit.Write(t.Context(), Entry{Caller: Caller{Name: "alice"}, Call: "Reload"})
	lines := auditLines(t, dir)
	if last := lines[len(lines)-1]; len(lines) != refusalsMax+1 || last["user"] != "alice" || last["refusals_not_written"] != float64(1000-refusalsMax) {
		t.Errorf("%d lines, the last %v", len(lines), last)
	}
	long := Entry{Caller: Caller{Name: "bob"}, Call: "ApplyConfig", Request: &controllerv1.ApplyOrder{Message: strings.Repeat("x", auditRequestMax-200)}}
	for range 3 * auditBytesMax / (auditRequestMax - 200) {
		audit.Write(t.Context(), long)
	}
	for _, name := range []string{AuditFile, AuditFile + ".1"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() > auditBytesMax || info.Size() == 0 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	if files, _ := os.ReadDir(dir); len(files) != 2 {
		t.Errorf("%v", files)
	}
}
