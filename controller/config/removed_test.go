package config

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

func Test_a_removed_field_is_ignored_with_a_warning(t *testing.T) {
	c := parseText(t, bgpWith(ofOther, ", passive: true", ""))
	if said := c.Warnings.Error(); !strings.Contains(said, "t.yaml:7:65: bgp.neighbors[0].passive: was removed and is ignored: ") {
		t.Errorf("warnings are %s", said)
	}
}

// Another field of the name or number would be taken for it.
func Test_the_schema_reserves_what_was_removed(t *testing.T) {
	for field := range removed {
		message, err := protoregistry.GlobalFiles.FindDescriptorByName(field.Parent())
		if err != nil {
			t.Fatal(err)
		}
		if m := message.(protoreflect.MessageDescriptor); !m.ReservedNames().Has(field.Name()) || m.ReservedRanges().Len() == 0 {
			t.Errorf("%s reserves no %s", field.Parent(), field.Name())
		}
	}
}
