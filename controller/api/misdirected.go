package api

// Answers requests that match no procedure, or call one the wrong way, as every refusal is
// answered: by JSON that says what to do. The protocol of these clients is unknown.

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"connectrpc.com/connect"
)

// kind of a procedure.
type kind int

const (
	isUnary  kind = iota
	isUpload      // one request, which brings a config
	isStream      // of answers
	isBidi        // of requests and answers at a time
)

// misdirection is why a request cannot be answered.
type misdirection struct {
	status  int
	code    connect.Code
	message string
}

// misdirected says what is wrong with a request by its headers; nil: nothing is.
func (m *mux) misdirected(r *http.Request) *misdirection {
	kind, isServed := m.served[r.URL.Path]
	contentType, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	isGRPC := strings.HasPrefix(contentType, "application/grpc")
	switch {
	case !isServed:
		return &misdirection{http.StatusNotFound, connect.CodeUnimplemented, fmt.Sprintf("there is no call %s: docs/api.md lists them; each is a POST to /guideway.controller.v1.Controller/CALL", r.URL.Path)}
	case r.Method != http.MethodPost:
		return &misdirection{http.StatusMethodNotAllowed, connect.CodeUnimplemented, "each call is a POST with its request as JSON: `curl --json '{}'`"}
	case isGRPC:
		return nil
	case kind >= isStream && !strings.HasPrefix(contentType, "application/connect+"):
		return &misdirection{http.StatusUnsupportedMediaType, connect.CodeUnimplemented, "this is a stream, for gRPC and Connect clients (in place of ApplyConfig, ReplaceConfig does with one POST)"}
	case kind == isBidi && r.ProtoMajor < 2:
		return &misdirection{http.StatusHTTPVersionNotSupported, connect.CodeUnimplemented, "this is a stream in both directions, for HTTP/2 (in place of ApplyConfig, ReplaceConfig does with one POST)"}
	case kind < isStream && contentType != "application/json" && contentType != "application/proto":
		return &misdirection{http.StatusUnsupportedMediaType, connect.CodeInvalidArgument, "requests are JSON, and say so: `curl --json`, or the header `content-type: application/json`"}
	}
	return nil
}

func (d *misdirection) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	if d.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", http.MethodPost)
	}
	w.WriteHeader(d.status)
	_ = json.NewEncoder(w).Encode(map[string]string{"code": d.code.String(), "message": d.message}) // that the client is gone is no news
}
