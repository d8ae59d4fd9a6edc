// Package check has the kinds of health checks, one file each: their configuration, and how
// they are probed once.
//
// To add a kind, add a field to HealthCheck in the schema, a file here and a line in kinds.
// Nothing else distinguishes kinds. A kind defines what is exchanged with a server; the
// Dialer defines how the server is reached.
package check

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// Check is what a probe does. Equal values are one check: kindOf refuses types
// that cannot be compared.
type Check interface {
	// Probe does it once. Everything that goes to the network goes through the
	// dialer, and ends with the context.
	Probe(ctx context.Context, dialer Dialer) (Answer, error)
}

// Answer is what a probe that passed was answered.
type Answer struct {
	// In few words, for people: `status 200`.
	Text string
	// When the server's certificate expires; zero: there is none.
	Expires time.Time
	// What will make probes fail later, for people; empty: nothing known.
	Warning string
}

// Key spells out all of a check: its kind and every field. Equal for equal
// checks, different for others, also of different kinds.
func Key(c Check) string { return fmt.Sprintf("%#v", c) }

// Kind is the schema's field for this kind of check.
func Kind(c Check) string { return strings.ToLower(reflect.TypeOf(c).Name()) }

// Reader is what a kind needs while it reads its field of the schema.
type Reader interface {
	// Errorf notes a mistake in a field of the check, as in `http.path`.
	Errorf(field, format string, args ...any)
	// ReadFile returns the content of a file that the field names; false: it was
	// reported why not.
	ReadFile(field, path string) ([]byte, bool)
}

var kinds = []kind{
	kindOf("http", (*configv1.HealthCheck).GetHttp, readHTTP),
	kindOf("https", (*configv1.HealthCheck).GetHttps, readHTTPS),
	kindOf("tcp", (*configv1.HealthCheck).GetTcp, readTCP),
	kindOf("tls", (*configv1.HealthCheck).GetTls, readTLS),
	kindOf("grpc", (*configv1.HealthCheck).GetGrpc, readGRPC),
	kindOf("dns", (*configv1.HealthCheck).GetDns, readDNS),
	kindOf("udp", (*configv1.HealthCheck).GetUdp, readUDP),
	kindOf("icmp", (*configv1.HealthCheck).GetIcmp, readICMP),
}

// kind reads its field of the schema; nil if it is not given.
type kind struct {
	field string
	read  func(*configv1.HealthCheck, Reader) Check
}

func kindOf[M any, C interface {
	comparable
	Check
}](field string, get func(*configv1.HealthCheck) *M, read func(*M, Reader) C) kind {
	return kind{field, func(given *configv1.HealthCheck, reader Reader) Check {
		if message := get(given); message != nil {
			return read(message, reader)
		}
		return nil
	}}
}

// Fields names the schema's fields, one for each kind.
func Fields() []string {
	var fields []string
	for _, k := range kinds {
		fields = append(fields, k.field)
	}
	return fields
}

// Given is a check that the config gives, by the field of its kind.
type Given struct {
	Field string
	Check Check
}

// Read returns every kind that is given; a good config gives one.
func Read(given *configv1.HealthCheck, reader Reader) []Given {
	var found []Given
	for _, k := range kinds {
		if c := k.read(given, reader); c != nil {
			found = append(found, Given{k.field, c})
		}
	}
	return found
}
