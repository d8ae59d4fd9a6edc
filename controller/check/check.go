// Package check has the kinds of health checks, one file each: what the config
// says of it, and how it is asked once.
//
// A new kind is a field of HealthCheck in the schema, a file here and a line
// in kinds. Nothing else distinguishes kinds.
package check

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// Check is what a probe does. Equal values are one check: kindOf refuses types
// that cannot be compared.
type Check interface {
	// Probe asks once, and returns what was answered.
	Probe(ctx context.Context, address netip.Addr) (answer string, err error)
}

// Key spells out all of a check: its kind and every field. Equal for equal
// checks, different for others, also of different kinds.
func Key(c Check) string { return fmt.Sprintf("%#v", c) }

// Report notes a mistake in a field of the check, as in `http.path`.
type Report func(field, format string, args ...any)

var kinds = []kind{
	kindOf("http", (*configv1.HealthCheck).GetHttp, readHTTP),
	kindOf("tcp", (*configv1.HealthCheck).GetTcp, readTCP),
}

// kind reads its field of the schema; nil if it is not given.
type kind struct {
	field string
	read  func(*configv1.HealthCheck, Report) Check
}

func kindOf[M any, C interface {
	comparable
	Check
}](field string, get func(*configv1.HealthCheck) *M, read func(*M, Report) C) kind {
	return kind{field, func(given *configv1.HealthCheck, report Report) Check {
		if message := get(given); message != nil {
			return read(message, report)
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
func Read(given *configv1.HealthCheck, report Report) []Given {
	var found []Given
	for _, k := range kinds {
		if c := k.read(given, report); c != nil {
			found = append(found, Given{k.field, c})
		}
	}
	return found
}

func hostPort(address netip.Addr, port uint16) string {
	return net.JoinHostPort(address.String(), strconv.Itoa(int(port)))
}
