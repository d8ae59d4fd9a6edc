package api

// Identifies the caller: on a unix socket by the kernel, over TCP by certificate.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/guideway/guideway/controller/outside"
	"github.com/guideway/guideway/controller/rundir"
)

// Caller is who made a request.
type Caller struct {
	// The user's name, or a name of the certificate; empty: not known.
	Name string
	// Of a unix socket's client; nil: not known.
	UID *uint32
	PID int32
	// Serial number of the client's certificate, in hex; empty: it has none.
	Certificate string
	// The socket's name, or the client's address and port.
	From string
	Role Role

	certificateNames []string
	// Why its certificate is no longer good; nil: it is.
	invalid error
}

func (c Caller) names() string { return outside.Text(strings.Join(c.certificateNames, ", ")) }

// Admission says who the caller of a request is.
type Admission func(*http.Request, *clientConn) Caller

// Users are the callers of a unix socket: all have its role, root more.
func Users(socket Role) Admission {
	return func(_ *http.Request, conn *clientConn) Caller {
		caller := Caller{From: filepath.Base(conn.LocalAddr().String())}
		client, known := conn.Conn.(*rundir.Conn)
		if !known {
			return caller // has no role
		}
		uid := client.Peer.UID
		caller.Name, caller.UID, caller.PID, caller.Role = userName(uid), &uid, client.Peer.PID, ofUser(uid, socket)
		return caller
	}
}

// Certificates are the callers over TCP; roleOf returns the role of a name.
func Certificates(roleOf func(name string) Role) Admission {
	return func(r *http.Request, _ *clientConn) Caller {
		caller := Caller{From: r.RemoteAddr}
		if certificate := clientCertificate(r.TLS); certificate != nil {
			caller.Certificate = certificate.SerialNumber.Text(16)
			caller.certificateNames = namesOf(certificate)
			caller.Name = strings.Join(caller.certificateNames[:min(1, len(caller.certificateNames))], "")
			for _, name := range caller.certificateNames {
				if role := roleOf(name); role > caller.Role {
					caller.Role, caller.Name = role, name
				}
			}
			caller.Name = outside.Text(caller.Name)
		}
		return caller
	}
}

// clientCertificate that was verified.
func clientCertificate(state *tls.ConnectionState) *x509.Certificate {
	if state == nil || len(state.VerifiedChains) == 0 {
		return nil
	}
	return state.PeerCertificates[0]
}

// namesOf a certificate: its alternative names and its subject's common name.
func namesOf(certificate *x509.Certificate) []string {
	var names []string
	for _, uri := range certificate.URIs {
		names = append(names, uri.String())
	}
	names = slices.Concat(names, certificate.EmailAddresses, certificate.DNSNames)
	if name := certificate.Subject.CommonName; name != "" && !slices.Contains(names, name) {
		names = append(names, name)
	}
	return names
}

func userName(uid uint32) string {
	number := strconv.FormatUint(uint64(uid), 10)
	if known, err := user.LookupId(number); err == nil {
		return known.Username
	}
	return number
}

type callerKey struct{}

func callerOf(ctx context.Context) Caller {
	caller, _ := ctx.Value(callerKey{}).(Caller)
	return caller
}

// UserOf a request's context; empty: there is none, or it is not known.
func UserOf(ctx context.Context) string { return callerOf(ctx).Name }

type connKey struct{}

func connOf(ctx context.Context) *clientConn {
	conn, _ := ctx.Value(connKey{}).(*clientConn)
	return conn
}
