package check

import (
	"slices"
	"testing"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// The schema's messages in HealthCheck, but for durations, are kinds.
func TestEveryKindOfTheSchemaIsRead(t *testing.T) {
	duration := (&durationpb.Duration{}).ProtoReflect().Descriptor().FullName()
	fields := (&configv1.HealthCheck{}).ProtoReflect().Descriptor().Fields()
	var wanted []string
	for i := range fields.Len() {
		field := fields.Get(i)
		if field.Kind() == protoreflect.MessageKind && field.Message().FullName() != duration {
			wanted = append(wanted, string(field.Name()))
		}
	}
	if got := Fields(); !slices.Equal(got, wanted) || len(got) == 0 {
		t.Fatalf("kinds are %v, the schema's %v", got, wanted)
	}
	for _, name := range wanted {
		given := &configv1.HealthCheck{}
		given.ProtoReflect().Mutable(fields.ByName(protoreflect.Name(name)))
		found := Read(given, func(field, _ string, _ ...any) { t.Errorf("%s is reported", field) })
		if len(found) != 1 || found[0].Field != name {
			t.Errorf("%s alone is read as %v", name, found)
		}
	}
}

func TestChecksThatDifferHaveDifferentKeys(t *testing.T) {
	different := []Check{
		TCP{Port: 80},
		TCP{Port: 81},
		HTTP{Port: 80},
		HTTP{Port: 80, Path: "/"},
		HTTP{Port: 80, Host: "/"},
		HTTP{Port: 80, Path: `/", Host:"x`},
		HTTP{Port: 80, Path: "/", Host: "x"},
		HTTP{Port: 80, Path: "/", Status: StatusesOf(200)},
		HTTP{Port: 80, Path: "/", Status: StatusesOf(200, 204)},
	}
	seen := map[string]Check{}
	for _, c := range different {
		if other, twice := seen[Key(c)]; twice {
			t.Errorf("%v and %v have the key %s", c, other, Key(c))
		}
		seen[Key(c)] = c
	}
	if Key(HTTP{Status: StatusesOf(204, 200, 204)}) != Key(HTTP{Status: StatusesOf(200, 204)}) {
		t.Error("the order of statuses makes another check")
	}
}
