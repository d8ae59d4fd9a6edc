package api

// The audit log: a line for each change, carried out, failed or refused.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/proto/plainjson"
)

const (
	// Then it becomes AuditFile.1, and the former .1 is removed.
	auditBytesMax = 8 << 20
	// Of a request in a line: none whose strings were cut is longer.
	auditRequestMax = 4 << 10
)

// AuditFile in the state directory.
const AuditFile = "audit.log"

// Entry is a line.
type Entry struct {
	Caller Caller
	// DrainBackend, ApplyConfig, …
	Call    string
	Request proto.Message
	// nil: done.
	Err error
	// Number of the config in use then; 0: none, or not recorded.
	Config uint64
}

// Audit writes the log. A nil one writes nothing.
type Audit struct {
	log  *slog.Logger
	path string

	mu   sync.Mutex
	file *os.File
	size int64
	// A caller without rights cannot push changes out of the log.
	refusals budget
}

// OpenAudit in a state directory; lines go to the log, too.
func OpenAudit(stateDir string, log *slog.Logger) (*Audit, error) {
	a := &Audit{log: log, path: filepath.Join(stateDir, AuditFile), refusals: newBudget()}
	if err := a.open(); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Audit) open() error {
	file, err := os.OpenFile(a.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return fmt.Errorf("open the audit log: %w", err)
	}
	info, err := file.Stat()
	if err == nil {
		err = file.Chmod(0o640) // whatever the umask
	}
	if err != nil {
		file.Close()
		return fmt.Errorf("open the audit log: %w", err)
	}
	a.file, a.size = file, info.Size()
	return nil
}

// Close the file.
func (a *Audit) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.file.Close()
}

type auditLine struct {
	Time        time.Time       `json:"time"`
	User        string          `json:"user,omitempty"`
	UID         *uint32         `json:"uid,omitempty"`
	PID         int32           `json:"pid,omitempty"`
	Certificate string          `json:"certificate,omitempty"`
	Role        string          `json:"role,omitempty"`
	From        string          `json:"from"`
	Call        string          `json:"call"`
	Request     json.RawMessage `json:"request,omitempty"`
	// done, failed, refused
	Result string `json:"result"`
	Error  string `json:"error,omitempty"`
	Config uint64 `json:"config,omitempty"`
	// Refusals before this line that were not written.
	NotWritten int `json:"refusals_not_written,omitempty"`
}

// Write a line. A change is not undone where its line cannot be written: the
// log says why.
func (a *Audit) Write(ctx context.Context, e Entry) {
	if a == nil {
		return
	}
	line := auditLine{
		Time: time.Now(), User: e.Caller.Name, UID: e.Caller.UID, PID: e.Caller.PID, Certificate: e.Caller.Certificate,
		From: e.Caller.From, Call: e.Call, Request: requestText(e.Request), Result: resultOf(e.Err), Config: e.Config,
	}
	if e.Caller.UID != nil || e.Caller.Certificate != "" {
		line.Role = e.Caller.Role.String()
	}
	if e.Err != nil {
		line.Error = status.Convert(e.Err).Message()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if line.Result == "refused" && !a.refusals.take(line.Time) {
		return
	}
	line.NotWritten = a.refusals.unwritten()
	a.log.LogAttrs(ctx, slog.LevelInfo, "audit", slog.String("user", line.User), slog.String("from", line.From), slog.String("role", line.Role),
		slog.String("call", line.Call), slog.String("request", string(line.Request)), slog.String("result", line.Result), slog.String("error", line.Error), slog.Uint64("config", line.Config))
	if err := a.append(line); err != nil {
		a.log.Error("the audit log is not written: make room in the state directory", "error", err)
	}
}

func (a *Audit) append(line auditLine) error {
	data, err := json.Marshal(line)
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if a.size+int64(len(data)) > auditBytesMax {
		if err := errors.Join(a.file.Close(), os.Rename(a.path, a.path+".1"), a.open()); err != nil {
			return err
		}
	}
	n, err := a.file.Write(data)
	a.size += int64(n)
	return err
}

func resultOf(err error) string {
	switch {
	case err == nil:
		return "done"
	case status.Code(err) == codes.PermissionDenied:
		return "refused"
	}
	return "failed"
}

func requestText(request proto.Message) json.RawMessage {
	if request == nil || !request.ProtoReflect().IsValid() {
		return nil
	}
	text, err := plainjson.Marshal(request)
	if err != nil || len(text) > auditRequestMax {
		return nil
	}
	return text
}

// change is what a handler adds to its line.
type change struct{ Entry }

type changeKey struct{}

func withChange(ctx context.Context) (context.Context, *change) {
	c := &change{}
	return context.WithValue(ctx, changeKey{}, c), c
}

// noteRequest of a call whose request is not one message.
func noteRequest(ctx context.Context, request proto.Message) {
	if c, ok := ctx.Value(changeKey{}).(*change); ok {
		c.Request = request
	}
}

// record a change in the audit log.
func (g *guard) record(ctx context.Context, spec connect.Spec, c *change, err error) {
	if !rules[spec.Procedure].changes || g.audit == nil {
		return
	}
	c.Caller, c.Call, c.Err, c.Config = callerOf(ctx), callName(spec.Procedure), err, g.host.ConfigNumber()
	g.audit.Write(ctx, c.Entry)
}

// callName is a procedure's name without its service's.
func callName(procedure string) string { return path.Base(procedure) }
