package config

import (
	"fmt"
	"strings"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// unsupported is what the schema has and nothing acts on yet. Using it is an
// error, so that it is not taken for working. Building one deletes its line.
var unsupported = []struct {
	// With [] for every item of a list.
	field string
	// Empty: any value but the default.
	value string
	needs string
	cure  string
}{}

// Unsupported lists, for the reference, what is refused and why.
func Unsupported() []string {
	var lines []string
	for _, feature := range unsupported {
		field := "`" + feature.field + "`"
		if feature.value != "" {
			field = "`" + feature.field + ": " + feature.value + "`"
		}
		lines = append(lines, field+" requires "+feature.needs)
	}
	return lines
}

func refuseUnsupported(schema *configv1.Config, r *reporter) {
	for _, feature := range unsupported {
		visit(schema.ProtoReflect(), "", strings.Split(feature.field, "."), func(path, value string) {
			switch {
			case feature.value == "":
				r.errorf(path, "requires %s, not yet supported: %s", feature.needs, feature.cure)
			case feature.value == value:
				r.errorf(path, "%s requires %s, not yet supported: %s", value, feature.needs, feature.cure)
			}
		})
	}
}

// visit calls found with the place and text of every field that steps lead to
// and that is given.
func visit(m protoreflect.Message, path string, steps []string, found func(path, value string)) {
	name := strings.TrimSuffix(steps[0], "[]")
	field := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	if field == nil {
		panic("config: unsupported names a field that the schema lacks: " + name)
	}
	path = join(path, name)
	switch {
	case !m.Has(field):
	case len(steps) == 1:
		found(path, m.Get(field).String())
	case field.IsList():
		list := m.Get(field).List()
		for i := range list.Len() {
			visit(list.Get(i).Message(), fmt.Sprintf("%s[%d]", path, i), steps[1:], found)
		}
	default:
		visit(m.Get(field).Message(), path, steps[1:], found)
	}
}
