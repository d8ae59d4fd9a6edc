package buckets

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// A map in the middle of a drain, of which one bucket's move goes on.
func halfway() *Map {
	var none *Map
	names := map[string]string{"a": "10.1.0.11", "b": "10.1.0.12", "c": "2001:db8:1::13"}
	at := func(s Situation) Situation {
		for name, backend := range s.Backends {
			backend.Address = parseAddress(names[name])
			s.Backends[name] = backend
		}
		return s
	}
	m := none.Next(at(serving(256, members("a", "b", "c"))))
	s := at(serving(256, members("b", "c"), "a"))
	m = m.acknowledged(s).acknowledged(s)
	s = at(serving(256, members("c"), "a", "b"))
	s.Now = began.Add(1234567890 * time.Nanosecond)
	return m.acknowledged(s)
}

func TestAMapIsReadAsItWasStored(t *testing.T) {
	m := halfway()
	data, err := m.Marshal("web")
	if err != nil {
		t.Fatal(err)
	}
	service, read, err := Unmarshal(data)
	if err != nil || service != "web" || !reflect.DeepEqual(read, m) {
		t.Errorf("%v: %s %+v", err, service, read)
	}
	if worst := len(data) * 32; worst > 1<<20 {
		t.Errorf("%d bytes for 256 buckets: 8192 do not fit into a value of etcd", len(data))
	}
	empty := &Map{Generation: 1, Buckets: make([]Bucket, 256), Unserved: true}
	if data, err = empty.Marshal("web"); err != nil {
		t.Fatal(err)
	}
	if _, read, err = Unmarshal(data); err != nil || !read.Unserved || len(read.Buckets) != 0 {
		t.Errorf("%v: %+v", err, read)
	}
}

func TestADamagedMapIsRefused(t *testing.T) {
	data, err := halfway().Marshal("web")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(data), " ", "") // protojson varies its spaces
	for _, c := range []struct{ from, to, said string }{
		{`"service":"web"`, `"service":""`, "names no service"},
		{`"generation":"4"`, `"generation":"0"`, "no generation"},
		{`"name":"b"`, `"name":"a"`, `"a" is there twice`},
		{`"2001:db8:1::13"`, `"2001:db8:1"`, "backend c"},
		{`"byBucket":[`, `"byBucket":[0,`, "257 buckets are not"},
		{`"byBucket":[`, `"byBucket":[7,`, "257 buckets are not"},
		{`"moves":[`, `"moves":[{"bucket":256},`, "there are 256 buckets"},
		{`"moves":[`, `"moves":[{"bucket":0,"next":9},`, "9 is no index"},
		{`"moves":[`, `"moves":[{"bucket":0,"earlier":[{"backend":2,"generation":"99"}]},`, "no step"},
		{`{`, `[`, ""},
		{`"steps":[`, `"steps":[{"generation":"3"},`, "no time"},
		{`"steps":[`, `"steps":[{"generation":"9","at":"2026-01-01T00:00:00Z"},`, "step 9 is after the map"},
		{`"generation":"4"`, `"generation":"18446744073709551615"`, "was not made by Guideway"},
		{`"generation":"4"`, `"generation":"4611686018427387905"`, "was not made by Guideway"},
		{`"generation":"4"`, `"generation":"4","madeOf":"5"`, "was not made by Guideway"},
	} {
		damaged := strings.Replace(text, c.from, c.to, 1)
		if damaged == text {
			t.Fatalf("%s is not in %s", c.from, text)
		}
		if _, _, err := Unmarshal([]byte(damaged)); err == nil || !strings.Contains(err.Error(), c.said) {
			t.Errorf("%s: %v, want %q", c.to, err, c.said)
		}
	}
	for _, text := range []string{"", "{}", text[:len(text)/2], "\x00\x00\x00"} {
		if _, _, err := Unmarshal([]byte(text)); err == nil {
			t.Errorf("%q is a map", text)
		}
	}
}
