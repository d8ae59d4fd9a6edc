package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	validate "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// checkRules enforces the rules that the schema has beside its fields. What
// is violated is found by protovalidate; what is said about it is ours.
func checkRules(schema *configv1.Config, r *reporter) {
	err := protovalidate.Validate(schema)
	var invalid *protovalidate.ValidationError
	switch {
	case err == nil:
		return
	case !errors.As(err, &invalid):
		// The rules themselves are wrong: a mistake of ours, not the operator's.
		panic(fmt.Sprintf("config: enforce the schema's rules: %v", err))
	}
	for _, violation := range invalid.Violations {
		path := protovalidate.FieldPathString(violation.Proto.GetField())
		message := ruleMessage(path, violation)
		if violation.Proto.GetRuleId() == "required" {
			if value := r.document.given(path); value != "" {
				r.errorf(path, "is %s: give another number", value)
				continue
			}
			r.missing(path, "%s", message)
		} else {
			r.errorf(path, "%s", message)
		}
	}
}

// ruleMessage says what is wrong and what would be right.
func ruleMessage(path string, v *protovalidate.Violation) string {
	id := v.Proto.GetRuleId()
	kind, _, _ := strings.Cut(id, ".")
	field := fieldAt(path)
	rules := rulesOf(field)
	if strings.HasSuffix(path, "]") {
		rules = rules.GetRepeated().GetItems()
	}
	switch {
	case id == "required":
		return fmt.Sprintf("is missing: add `%s: %s`", field.Name(), sample(field))
	case id == "string.in":
		allowed := rules.GetString().GetIn()
		return fmt.Sprintf("is %q: give one of %s", v.FieldValue.String(), strings.Join(allowed, ", "))
	case id == "string.pattern":
		return fmt.Sprintf("is %q: give %s", v.FieldValue.String(), nameRule(rules.GetString().GetPattern()))
	case id == "string.min_len":
		return "is empty: leave it out or give it a value"
	case id == "string.max_len":
		return fmt.Sprintf("has more than %d characters, the limit: give less", rules.GetString().GetMaxLen())
	case id == "repeated.max_items":
		return fmt.Sprintf("has %d items, and at most %d are allowed: remove some", v.FieldValue.List().Len(), rules.GetRepeated().GetMaxItems())
	case id == "repeated.min_items":
		return "is missing: give at least one"
	case kind == "uint32" || kind == "uint64":
		return fmt.Sprintf("is %s: give %s", v.FieldValue.String(), rangeOf(rules))
	case kind == "duration":
		value, _ := v.FieldValue.Message().Interface().(*durationpb.Duration)
		return fmt.Sprintf("is %s: give %s", short(value.AsDuration()), rangeOf(rules))
	default:
		return v.Proto.GetMessage()
	}
}

// fieldAt finds a path's field in the schema. The violation itself does not
// always say: for an item of a list it has no descriptor.
func fieldAt(path string) protoreflect.FieldDescriptor {
	message := (&configv1.Config{}).ProtoReflect().Descriptor()
	var field protoreflect.FieldDescriptor
	for _, step := range splitPath(path) {
		if next := message.Fields().ByName(protoreflect.Name(step)); next != nil {
			field = next
			message = field.Message()
		}
		if message == nil {
			break
		}
	}
	return field
}

// rulesOf returns the rules beside a field; nil-safe getters do the rest.
func rulesOf(field protoreflect.FieldDescriptor) *validate.FieldRules {
	rules, _ := proto.GetExtension(field.Options(), validate.E_Field).(*validate.FieldRules)
	return rules
}

// nameRule words the patterns that the schema uses.
func nameRule(pattern string) string {
	if strings.HasSuffix(pattern, "{1,15}$") {
		return "1 to 15 printable ASCII characters without spaces, as the kernel does"
	}
	if strings.HasSuffix(pattern, "{0,63}$") {
		return "the name of a file, without a directory: letters, digits, dots, dashes and underscores"
	}
	return "1 to 128 printable ASCII characters without spaces"
}

// rangeOf words the bounds of a number or a duration.
func rangeOf(rules *validate.FieldRules) string {
	switch {
	case rules.HasUint32():
		return bounds(rules.GetUint32().HasGte(), uint64(rules.GetUint32().GetGte()), uint64(rules.GetUint32().GetLte()))
	case rules.HasUint64():
		return bounds(rules.GetUint64().HasGte(), rules.GetUint64().GetGte(), rules.GetUint64().GetLte())
	default:
		d := rules.GetDuration()
		return short(d.GetGte().AsDuration()) + " to " + short(d.GetLte().AsDuration())
	}
}

func bounds(hasLeast bool, least, most uint64) string {
	if !hasLeast {
		least = 0
	}
	return fmt.Sprintf("%d to %d", least, most)
}

// short writes a duration as people do: 2h, not 2h0m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// sample is what a missing field might hold.
func sample(field protoreflect.FieldDescriptor) string {
	switch {
	case field.Kind() == protoreflect.MessageKind:
		return fmt.Sprintf("{%s: ...}", field.Message().Fields().Get(0).Name())
	case field.IsList():
		return "[...]"
	default:
		return "..."
	}
}
