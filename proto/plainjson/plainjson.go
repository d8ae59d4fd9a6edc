// Package plainjson writes messages as JSON for scripts: the form of the API's answers and of
// `guideway … -o json`. It is proto JSON and can be parsed as such, but with the names of the
// .proto files and with 64-bit numbers as numbers. Numbers, booleans and lists are written even
// if they are 0, false or empty; empty texts and unknown values are left out.
package plainjson

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Marshal a message.
func Marshal(message proto.Message) ([]byte, error) {
	return appendMessage(nil, message.ProtoReflect(), nil)
}

// Value is a message for encoding/json.
type Value struct {
	Message proto.Message
	// Of its fields only these; none: all.
	Fields []protoreflect.Name
}

// MarshalJSON is as Marshal.
func (v Value) MarshalJSON() ([]byte, error) {
	return appendMessage(nil, v.Message.ProtoReflect(), v.Fields)
}

// List of messages for encoding/json; without any it is [].
func List[M proto.Message](messages []M) []Value {
	values := make([]Value, len(messages))
	for i, message := range messages {
		values[i].Message = message
	}
	return values
}

func appendMessage(b []byte, message protoreflect.Message, only []protoreflect.Name) ([]byte, error) {
	if message.Descriptor().ParentFile().Package() == "google.protobuf" { // a time or a duration
		text, err := protojson.Marshal(message.Interface())
		return append(b, text...), err
	}
	b = append(b, '{')
	begin, fields := len(b), message.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		mayBeAbsent := field.HasPresence() || field.Kind() == protoreflect.StringKind && !field.IsList()
		if mayBeAbsent && !message.Has(field) || len(only) > 0 && !slices.Contains(only, field.Name()) {
			continue
		}
		if len(b) > begin {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), field.Name()...), `":`...)
		var err error
		if b, err = appendField(b, field, message.Get(field)); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func appendField(b []byte, field protoreflect.FieldDescriptor, value protoreflect.Value) (_ []byte, err error) {
	switch {
	case field.IsMap():
		entries := map[string]json.RawMessage{}
		value.Map().Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
			entries[key.String()], err = appendOne(nil, field.MapValue(), v)
			return err == nil
		})
		if err != nil {
			return nil, err
		}
		return appendGo(b, entries)
	case field.IsList():
		b = append(b, '[')
		for i, list := 0, value.List(); i < list.Len(); i++ {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendOne(b, field, list.Get(i)); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	}
	return appendOne(b, field, value)
}

func appendOne(b []byte, field protoreflect.FieldDescriptor, value protoreflect.Value) ([]byte, error) {
	switch v := value.Interface().(type) {
	case protoreflect.Message:
		return appendMessage(b, v, nil)
	case protoreflect.EnumNumber:
		if name := field.Enum().Values().ByNumber(v); name != nil {
			return appendGo(b, name.Name())
		}
		return strconv.AppendInt(b, int64(v), 10), nil
	case uint64:
		return strconv.AppendUint(b, v, 10), nil
	case uint32:
		return strconv.AppendUint(b, uint64(v), 10), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return append(b, "null"...), nil // JSON has no such numbers
		}
	}
	return appendGo(b, value.Interface())
}

func appendGo(b []byte, value any) ([]byte, error) {
	text, err := json.Marshal(value)
	return append(b, text...), err
}
