package config

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// removed are fields that the schema had in the release before this one, and what is to
// be done instead. For this release they are ignored with a warning, so that a machine's
// config survives its upgrade. The schema reserves their names; the next release
// deletes their lines.
var removed = map[protoreflect.FullName]string{
	"guideway.config.v1.Config.path_mtu":  "path MTUs are not learned from ICMP errors: give tunnel.mtu where the network to the backends is narrower than the egress interfaces",
	"guideway.config.v1.Neighbor.passive": "this machine connects to every neighbor: let the router accept connections",
}

// RemovedFields lists, for the reference, what is ignored and why.
func RemovedFields() []string {
	var lines []string
	for _, field := range slices.Sorted(maps.Keys(removed)) {
		lines = append(lines, "`"+string(field.Name())+"` of a "+string(field.Parent().Name())+": "+removed[field])
	}
	return lines
}
