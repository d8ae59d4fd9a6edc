package check

import (
	"fmt"
	"slices"
	"testing"

	"github.com/guideway/guideway/looptest"
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
		found := Read(given, reader{t: t})
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
		HTTP{Port: 80, Method: "HEAD"},
		HTTP{Port: 80, Headers: "A: b\n"},
		HTTP{Port: 80, Body: "ok"},
		HTTPS{HTTP: HTTP{Port: 80}},
		HTTPS{HTTP: HTTP{Port: 80}, Certificate: Certificate{ServerName: "a"}},
		HTTPS{HTTP: HTTP{Port: 80}, Certificate: Certificate{Unverified: true}},
		TLS{Port: 80},
		GRPC{Port: 80},
		GRPC{Port: 80, Secured: true},
		DNS{Port: 80, Network: "udp"},
		DNS{Port: 80, Network: "tcp"},
		UDP{Port: 80},
		UDP{Port: 80, Payload: "x"},
		UDP{Port: 80, Answer: "x"},
		ICMP{Size: 80},
		TLS{Port: 80, Certificate: Certificate{Authorities: trusting(t, looptest.NewAuthority(t))}},
		TLS{Port: 80, Certificate: Certificate{Authorities: trusting(t, looptest.NewAuthority(t))}},
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
	ca := looptest.NewAuthority(t)
	if one, other := (TLS{Certificate: Certificate{Authorities: trusting(t, ca)}}), (TLS{Certificate: Certificate{Authorities: trusting(t, ca)}}); one != other || Key(one) != Key(other) {
		t.Error("the same file read twice makes another check")
	}
}

// reader of fields without mistakes, but for those that a test looks at.
type reader struct {
	t        *testing.T
	problems *[]string
	files    map[string][]byte
}

func (r reader) Errorf(field, format string, args ...any) {
	text := field + " " + fmt.Sprintf(format, args...)
	if r.problems == nil {
		r.t.Errorf("reported: %s", text)
		return
	}
	*r.problems = append(*r.problems, text)
}

func (r reader) ReadFile(_, path string) ([]byte, bool) {
	data, ok := r.files[path]
	return data, ok
}

// problemsOf reads a check with mistakes.
func problemsOf(t *testing.T, given *configv1.HealthCheck, files map[string][]byte) []string {
	t.Helper()
	var problems []string
	Read(given, reader{t, &problems, files})
	return problems
}

func Test_a_kind_has_the_name_of_its_field(t *testing.T) {
	given := map[string]*configv1.HealthCheck{
		"http": {Http: &configv1.HttpCheck{Port: 1}}, "https": {Https: &configv1.HttpsCheck{Port: 1}}, "tcp": {Tcp: &configv1.TcpCheck{Port: 1}},
		"tls": {Tls: &configv1.TlsCheck{Port: 1}}, "grpc": {Grpc: &configv1.GrpcCheck{Port: 1}}, "dns": {Dns: &configv1.DnsCheck{Name: "a.example"}},
		"udp": {Udp: &configv1.UdpCheck{Port: 1}}, "icmp": {Icmp: &configv1.IcmpCheck{}},
	}
	for _, field := range Fields() {
		if found := Read(given[field], reader{}); len(found) != 1 || Kind(found[0].Check) != field {
			t.Errorf("%s is %+v", field, found)
		}
	}
}
