package config

// Writes a configuration for people to read and edit.

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/config"
	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// firstConfig has what is this machine's own, and the secret if the package made one.
func firstConfig(name string, addresses []string, device string) *configv1.Config {
	c := &configv1.Config{
		Cluster: &configv1.Cluster{Name: proto.String("c1")},
		Machine: &configv1.Machine{Name: &name, Addresses: addresses},
	}
	if _, err := os.Stat(config.DefaultSecretFile); err == nil {
		c.Cluster.SecretFile = proto.String(config.DefaultSecretFile)
	}
	if device != "" {
		c.Forwarder = &configv1.Forwarder{Interfaces: []*configv1.Interface{{Name: device}}}
	}
	return c
}

// comments are lines above a message of a config.
type comments map[proto.Message][]string

// yamlOf a config: a message that is short stands on one line, each service and pool on several.
func yamlOf(c *configv1.Config, above comments) string {
	w := &yamlWriter{above: above}
	w.fields(c.ProtoReflect(), "", "")
	return w.text.String()
}

// Of a message on one line.
const lineCharactersMax = 100

type yamlWriter struct {
	text  strings.Builder
	above comments
}

// fields of a message, each on its own line; the first may stand behind the dash of an item.
func (w *yamlWriter) fields(m protoreflect.Message, first, indent string) {
	for _, field := range fieldsOf(m) {
		name, value := string(field.Name()), m.Get(field)
		switch {
		case field.IsList() && isMessage(field) && !w.isShort(field, value, first+name):
			fmt.Fprintf(&w.text, "%s%s:\n", first, name)
			for i := range value.List().Len() {
				w.item(value.List().Get(i).Message(), indent)
			}
		case isMessage(field) && !field.IsList() && !w.isShort(field, value, first+name):
			fmt.Fprintf(&w.text, "%s%s:\n", first, name)
			w.comments(value.Message(), indent+"  ")
			w.fields(value.Message(), indent+"  ", indent+"  ")
		default:
			fmt.Fprintf(&w.text, "%s%s: %s\n", first, name, flow(field, value))
		}
		first = indent
	}
}

// item of a list of messages. One that holds such a list itself takes several lines.
func (w *yamlWriter) item(m protoreflect.Message, indent string) {
	w.comments(m, indent)
	if !w.hasCommentsBelow(m) && !slices.ContainsFunc(fieldsOf(m), func(f protoreflect.FieldDescriptor) bool { return f.IsList() && isMessage(f) }) {
		fmt.Fprintf(&w.text, "%s- %s\n", indent, flowMessage(m))
		return
	}
	w.fields(m, indent+"- ", indent+"  ")
}

func (w *yamlWriter) comments(m protoreflect.Message, indent string) {
	for _, text := range w.above[m.Interface()] {
		comment(&w.text, indent, text)
	}
}

// comment of one line or, if that is too long, several.
func comment(to *strings.Builder, indent, text string) {
	for i, line := range output.Wrap(text, lineCharactersMax-len(indent)-4) {
		mark := "# "
		if i > 0 {
			mark = "#   "
		}
		to.WriteString(indent + mark + line + "\n")
	}
}

// isShort says whether a message, or a list of one, stands on one line. At the top, lists never
// do: people add to them.
func (w *yamlWriter) isShort(field protoreflect.FieldDescriptor, value protoreflect.Value, before string) bool {
	if len(before)+2+len(flow(field, value)) > lineCharactersMax {
		return false
	}
	if !field.IsList() {
		return !w.hasComments(value.Message())
	}
	isTop := field.Parent() == (&configv1.Config{}).ProtoReflect().Descriptor()
	return !isTop && value.List().Len() == 1 && !w.hasComments(value.List().Get(0).Message())
}

func (w *yamlWriter) hasComments(m protoreflect.Message) bool {
	return len(w.above[m.Interface()]) > 0 || w.hasCommentsBelow(m)
}

func (w *yamlWriter) hasCommentsBelow(m protoreflect.Message) bool {
	return slices.ContainsFunc(fieldsOf(m), func(field protoreflect.FieldDescriptor) bool {
		if !isMessage(field) {
			return false
		}
		if !field.IsList() {
			return w.hasComments(m.Get(field).Message())
		}
		list := m.Get(field).List()
		for i := range list.Len() {
			if w.hasComments(list.Get(i).Message()) {
				return true
			}
		}
		return false
	})
}

// fieldsOf a message that are given, in order of the schema.
func fieldsOf(m protoreflect.Message) (given []protoreflect.FieldDescriptor) {
	all := m.Descriptor().Fields()
	for i := range all.Len() {
		if m.Has(all.Get(i)) {
			given = append(given, all.Get(i))
		}
	}
	return given
}

// isMessage of the schema's own.
func isMessage(field protoreflect.FieldDescriptor) bool {
	return field.Kind() == protoreflect.MessageKind && field.Message().FullName() != durationName
}

var durationName = (&durationpb.Duration{}).ProtoReflect().Descriptor().FullName()

// flow writes a field's value on one line.
func flow(field protoreflect.FieldDescriptor, value protoreflect.Value) string {
	if !field.IsList() {
		return flowOne(field, value)
	}
	items := make([]string, value.List().Len())
	for i := range items {
		items[i] = flowOne(field, value.List().Get(i))
	}
	return "[" + strings.Join(items, ", ") + "]"
}

func flowOne(field protoreflect.FieldDescriptor, value protoreflect.Value) string {
	switch {
	case isMessage(field):
		return flowMessage(value.Message())
	case field.Kind() == protoreflect.MessageKind:
		d, _ := value.Message().Interface().(*durationpb.Duration)
		return durationText(d.AsDuration())
	case field.Kind() == protoreflect.StringKind:
		return quoted(value.String())
	default:
		return value.String()
	}
}

func flowMessage(m protoreflect.Message) string {
	var fields []string
	for _, field := range fieldsOf(m) {
		fields = append(fields, fmt.Sprintf("%s: %s", field.Name(), flow(field, m.Get(field))))
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// durationText is 1m, not 1m0s.
func durationText(d time.Duration) string {
	return strings.Replace(d.String(), "m0s", "m", 1)
}

// plain is what YAML reads as the same text without quotes: words, IPv4 addresses, and numbers,
// which the config takes for text where that is wanted.
var plain = regexp.MustCompile(`^([A-Za-z/][A-Za-z0-9/._-]*|[0-9]{1,3}(\.[0-9]{1,3}){3}|[1-9][0-9]{0,8})$`)

// words of YAML 1.1 and 1.2 that are no text.
var reserved = []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}

// quoted by Go's rules where it has to be: what they escape, YAML reads alike in double quotes.
func quoted(text string) string {
	if plain.MatchString(text) && !slices.Contains(reserved, strings.ToLower(text)) {
		return text
	}
	return strconv.Quote(text)
}
