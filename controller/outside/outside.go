// Package outside makes text from others (servers' answers, routers, etcd, agents, clients
// of sockets) safe for logs, terminals and pages. It limits the length, and escapes
// (`\x1b`) what a terminal would take for a command, or a reader for something else than it
// is.
//
// It is applied once, where text enters a process. Applying it twice has no further effect:
// a backslash stays as it is.
package outside

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// TextBytesMax of a line that says how something is: enough for an error with its cure.
const TextBytesMax = 300

const cutMark = " ... (cut)"

// Text as one line.
func Text(s string) string { return Line(s, TextBytesMax) }

// Line is Text of another length.
func Line(s string, bytesMax int) string { return clean(s, bytesMax, "") }

// Lines keeps line ends and tabs.
func Lines(s string, bytesMax int) string { return clean(s, bytesMax, "\n\t") }

// Error with the text of another, which it wraps.
func Error(err error) error {
	if err == nil {
		return nil
	}
	return cleaned{Text(err.Error()), err}
}

type cleaned struct {
	text  string
	inner error
}

func (e cleaned) Error() string { return e.text }
func (e cleaned) Unwrap() error { return e.inner }

// Message has each of its strings, those of messages in it too, as Lines has them.
func Message(m proto.Message, bytesMax int) { message(m.ProtoReflect(), bytesMax) }

func clean(s string, bytesMax int, kept string) string {
	if len(s) <= bytesMax && strings.IndexFunc(s, func(r rune) bool { return isStrange(r, kept) }) < 0 && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	fits := 0 // with the mark of what is cut behind it
	for i, r := range s {
		size := utf8.RuneLen(r)
		if r == utf8.RuneError {
			_, size = utf8.DecodeRuneInString(s[i:])
		}
		written := s[i : i+size]
		if isStrange(r, kept) || r == utf8.RuneError && size == 1 {
			quoted := strconv.QuoteToASCII(written)
			written = quoted[1 : len(quoted)-1]
		}
		if b.Len()+len(written) > bytesMax {
			return b.String()[:fits] + cutMark
		}
		b.WriteString(written)
		if b.Len()+len(cutMark) <= bytesMax {
			fits = b.Len()
		}
	}
	return b.String()
}

// isStrange: control characters, those that change the direction of writing or have no
// width, and every space but the usual one.
func isStrange(r rune, kept string) bool {
	return !unicode.IsPrint(r) && !strings.ContainsRune(kept, r)
}

func message(m protoreflect.Message, bytesMax int) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
			cleanMap(field, value.Map(), bytesMax)
		case field.IsList():
			for i := range value.List().Len() {
				if new, changed := cleanValue(field, value.List().Get(i), bytesMax); changed {
					value.List().Set(i, new)
				}
			}
		default:
			if new, changed := cleanValue(field, value, bytesMax); changed {
				m.Set(field, new)
			}
		}
		return true
	})
}

// cleanValue of a field: a message is changed in its place.
func cleanValue(field protoreflect.FieldDescriptor, value protoreflect.Value, bytesMax int) (new protoreflect.Value, changed bool) {
	switch field.Kind() {
	case protoreflect.StringKind:
		text := Lines(value.String(), bytesMax)
		return protoreflect.ValueOfString(text), text != value.String()
	case protoreflect.MessageKind, protoreflect.GroupKind:
		message(value.Message(), bytesMax)
	}
	return value, false
}

func cleanMap(field protoreflect.FieldDescriptor, values protoreflect.Map, bytesMax int) {
	values.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		new, changed := cleanValue(field.MapValue(), value, bytesMax)
		name, renamed := cleanValue(field.MapKey(), key.Value(), bytesMax)
		if renamed {
			values.Clear(key)
		}
		if changed || renamed {
			values.Set(name.MapKey(), new)
		}
		return true
	})
}
