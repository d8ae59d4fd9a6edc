package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// decode turns the document's nodes into the schema's messages. Field names
// and types come from the schema by reflection, so a field added there is
// known here. Unlike proto JSON it takes a scalar's own text where a string
// is wanted (`ports: [80]`, `dscp: 46`), and `15m` for a duration.
// Returns nil when the config is too large to go on with.
func decode(d *document, r *reporter) *configv1.Config {
	config := &configv1.Config{}
	root := &yaml.Node{Kind: yaml.MappingNode}
	for _, key := range d.keys {
		root.Content = append(root.Content, d.values[key].key, d.values[key].value)
	}
	decoder := &decoder{reporter: r}
	decoder.message("", root, config.ProtoReflect())
	if decoder.nodes > nodesMax {
		return nil
	}
	return config
}

type decoder struct {
	*reporter
	nodes int
}

var durationName = (&durationpb.Duration{}).ProtoReflect().Descriptor().FullName()

// message fills m from a mapping.
func (d *decoder) message(path string, node *yaml.Node, m protoreflect.Message) {
	node = resolve(node)
	if !d.affordable(path) {
		return
	}
	if node.Kind != yaml.MappingNode {
		d.unreadable(path, "is %s: give fields, like `{%s: ...}`", describe(node), m.Descriptor().Fields().Get(0).Name())
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.Value == "" {
			d.atKey(path, key, notAName(key))
			continue
		}
		fieldPath := join(path, key.Value)
		if line, ok := seen[key.Value]; ok {
			d.atKey(fieldPath, key, fmt.Sprintf("is already given at line %d: keep one of the two", line))
			continue
		}
		seen[key.Value] = key.Line
		field := m.Descriptor().Fields().ByName(protoreflect.Name(key.Value))
		if field == nil {
			d.unknown(path, fieldPath, key, m.Descriptor())
			continue
		}
		d.field(fieldPath, value, m, field)
	}
}

// atKey reports at a key that its path does not lead to.
func (d *decoder) atKey(path string, key *yaml.Node, message string) {
	file := d.document.position(path).file
	d.errors = append(d.errors, Problem{File: file, Line: key.Line, Column: key.Column, Field: path, Message: message})
}

func (d *decoder) unknown(parent, path string, key *yaml.Node, message protoreflect.MessageDescriptor) {
	if instead, was := removed[message.FullName().Append(protoreflect.Name(key.Value))]; was {
		d.warnf(path, "was removed and is ignored: %s", instead)
		return
	}
	d.misspelt[parent] = true
	if key.Tag == "!!merge" || key.Value == "<<" {
		d.errorf(path, "merging fields by `<<` is not supported: write the fields out, or use an alias for a whole value")
		return
	}
	names := fieldNames(message)
	if guess := closest(key.Value, names); guess != "" {
		d.errorf(path, "there is no such field: did you mean `%s`?", guess)
		return
	}
	if longer := begins(key.Value, names); longer != "" {
		d.errorf(path, "there is no such field: did you mean `%s`, the name of a file that holds it?", longer)
		return
	}
	d.errorf(path, "there is no such field: the fields here are %s", strings.Join(names, ", "))
}

func fieldNames(message protoreflect.MessageDescriptor) []string {
	fields := message.Fields()
	names := make([]string, fields.Len())
	for i := range names {
		names[i] = string(fields.Get(i).Name())
	}
	return names
}

// field sets one field. Null is the same as not giving it.
func (d *decoder) field(path string, node *yaml.Node, m protoreflect.Message, field protoreflect.FieldDescriptor) {
	node = resolve(node)
	if isNull(node) {
		return
	}
	if !field.IsList() {
		if value, ok := d.value(path, node, m.NewField(field), field); ok {
			m.Set(field, value)
		}
		return
	}
	if node.Kind != yaml.SequenceNode {
		d.unreadable(path, "is %s: give a list, like `[...]`", describe(node))
		return
	}
	list := m.Mutable(field).List()
	for i, item := range node.Content {
		if d.nodes > nodesMax {
			return
		}
		itemPath := fmt.Sprintf("%s[%d]", path, i)
		// A bad item is appended as zero, so that indices stay the file's.
		value := list.NewElement()
		if item = resolve(item); isNull(item) {
			d.unreadable(itemPath, "is empty: remove the item or give it a value")
		} else {
			value, _ = d.value(itemPath, item, value, field)
		}
		list.Append(value)
	}
}

// value decodes into zero, a new value of the field's type.
func (d *decoder) value(path string, node *yaml.Node, zero protoreflect.Value, field protoreflect.FieldDescriptor) (protoreflect.Value, bool) {
	if field.Kind() == protoreflect.MessageKind && field.Message().FullName() != durationName {
		d.message(path, node, zero.Message())
		return zero, true
	}
	if !d.affordable(path) {
		return zero, false
	}
	if node.Kind != yaml.ScalarNode {
		cure := "give one value"
		if node.Kind == yaml.MappingNode && field.Kind() == protoreflect.StringKind {
			cure += ", in quotes if it is text with a colon and a space"
		}
		d.unreadable(path, "is %s: %s", describe(node), cure)
		return zero, false
	}
	value, problem := scalar(node, field)
	if problem != "" {
		d.unreadable(path, "%s", problem)
		return zero, false
	}
	return value, true
}

// affordable counts a node against the limit. Depth needs none: the schema is
// not recursive, so an alias inside its own anchor soon stands where it fits not.
func (d *decoder) affordable(path string) bool {
	d.nodes++
	if d.nodes == nodesMax+1 {
		d.errorf(path, "the config has more than %d values here, aliases counted at each use: remove aliases of aliases", nodesMax)
	}
	return d.nodes <= nodesMax
}

// scalar reads a node's text as the field's type, or says what is wrong.
func scalar(node *yaml.Node, field protoreflect.FieldDescriptor) (protoreflect.Value, string) {
	text := node.Value
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text), ""
	case protoreflect.BoolKind:
		if text != "true" && text != "false" {
			return protoreflect.Value{}, fmt.Sprintf("is %q: give true or false", text)
		}
		return protoreflect.ValueOfBool(text == "true"), ""
	case protoreflect.Uint32Kind:
		n, problem := number(text, math.MaxUint32)
		return protoreflect.ValueOfUint32(uint32(n)), problem
	case protoreflect.Uint64Kind:
		n, problem := number(text, math.MaxUint64)
		return protoreflect.ValueOfUint64(n), problem
	case protoreflect.MessageKind:
		duration, problem := durationOf(text)
		return protoreflect.ValueOfMessage(duration.ProtoReflect()), problem
	default:
		panic("config: the schema has a field of kind " + field.Kind().String() + " that decode does not know: " + string(field.FullName()))
	}
}

// number takes plain decimal digits; underscores may group them. YAML's other
// spellings (octal by a leading zero, hexadecimal) have surprised people.
func number(text string, most uint64) (uint64, string) {
	digits := strings.ReplaceAll(text, "_", "")
	if len(digits) > 1 && digits[0] == '0' {
		return 0, fmt.Sprintf("is %q: give a decimal number without leading zeros", text)
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	switch {
	case err != nil && strings.HasPrefix(digits, "-"):
		return 0, fmt.Sprintf("is %s: it must not be negative", text)
	case err != nil && strings.Trim(digits, "0123456789") == "" && digits != "", err == nil && n > most:
		return 0, fmt.Sprintf("is %s, which is too large: at most %d", text, most)
	case err != nil:
		return 0, fmt.Sprintf("is %q: give a whole number", text)
	}
	return n, ""
}

func durationOf(text string) (*durationpb.Duration, string) {
	if strings.Trim(text, "0") == "" && text != "" {
		return durationpb.New(0), ""
	}
	duration, err := time.ParseDuration(text)
	switch {
	case err != nil && strings.Trim(text, "0123456789.") == "" && text != "":
		return nil, fmt.Sprintf("is %s without a unit: write `%ss` for seconds, or use ms, m, h", text, text)
	case err != nil:
		return nil, fmt.Sprintf("is %q: give a duration like 500ms, 3s, 15m, 2h", text)
	case duration < 0:
		return nil, fmt.Sprintf("is %s: it must not be negative", text)
	}
	return durationpb.New(duration), ""
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
