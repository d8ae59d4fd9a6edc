package config

import (
	"fmt"
	"io/fs"
	"reflect"
	"strings"
	"testing"

	"github.com/guideway/guideway/controller/check"
)

const compared = `
cluster: {name: c1, prefixes: [203.0.113.0/24]}
machine: {name: lb-1, addresses: [10.0.0.1]}
prefix_groups: [{name: a, prefixes: [203.0.113.0/24]}]
services:
- {name: web, vips: [{address: 203.0.113.10, protocol: tcp, ports: [80]}], pools: [web], idle_timeouts: {tcp: 15m}}
- {name: dns, vips: [{prefix_group: a, suffix: 0.0.0.53, protocol: udp, ports: [53]}], pools: [web]}
pools: [{name: web, health_checks: [ok], backends: [{name: w1, address: 10.1.0.11}, {name: w2, address: 10.1.0.12}]}]
health_checks: [{name: ok, via: direct, http: {port: 80, path: /healthz}}]
bgp: {asn: 64512, neighbors: [{address: 10.0.0.254, asn: 64513}]}
metrics: {listen: "127.0.0.1:9470"}
`

func parsed(t *testing.T, text string) *Config {
	t.Helper()
	noFiles := func(string) ([]byte, fs.FileMode, error) { return nil, 0, fs.ErrNotExist }
	c, err := Parse([]Source{{Name: "test.yaml", Data: []byte(text)}}, noFiles)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func changeLines(changes []Change) []string {
	lines := []string{}
	for _, c := range changes {
		line := fmt.Sprintf("%s %s %s", c.Kind, c.Name, c.What)
		for _, f := range c.Fields {
			line += fmt.Sprintf("; %s: %q to %q", f.Field, f.Before, f.After)
		}
		lines = append(lines, line)
	}
	return lines
}

func TestCompareNamesWhatDiffers(t *testing.T) {
	for _, c := range []struct {
		what, from, to string
		want           []string
	}{
		{"spelling and defaults", "ports: [80]", "ports: ['80-80'], ", nil},
		{"a default that is given", "name: web, vips", "encap: gre, name: web, vips", nil},
		{"a field", "tcp: 15m", "tcp: 1h, udp: 30s", []string{`service web changed; idle_timeouts.tcp: "15m0s" to "1h0m0s"; idle_timeouts.udp: "1m0s" to "30s"`}},
		{"a vip", "ports: [80]", "ports: [80, 443]", []string{"vip 203.0.113.10 tcp 80 of web removed", "vip 203.0.113.10 tcp 80,443 of web added"}},
		{"a service's name", "name: dns,", "name: names,", []string{"service dns removed", "service names added", "vip a:0.0.0.53 udp 53 of dns removed", "vip a:0.0.0.53 udp 53 of names added"}},
		{"a backend's name", "name: w2", "name: w3", []string{`pool web changed; backends[w2].weight: "1" to ""; backends[w3].weight: "" to "1"`, "backend w2 removed", "backend w3 added"}},
		{"damping and slow start", "[ok], ", "[ok], damping: {hold: 10m}, slow_start: 30s, ", []string{`pool web changed; damping.flaps: "" to "3"; damping.hold: "" to "10m0s"; damping.within: "" to "5m0s"; slow_start: "0s" to "30s"`}},
		{"an address", "10.1.0.12", "10.1.0.13", []string{`backend w2 changed; address: "10.1.0.12" to "10.1.0.13"`}},
		{"a weight", "address: 10.1.0.12", "weight: 0, address: 10.1.0.12", []string{`pool web changed; backends[w2].weight: "1" to "0"`}},
		{"a check", "path: /healthz", "path: /ready", []string{`health_check ok changed; http.path: "/healthz" to "/ready"`}},
		{"another kind of check", "http: {port: 80, path: /healthz}", "tcp: {port: 80}", []string{`health_check ok changed; http: "given" to ""; http.method: "GET" to ""; http.path: "/healthz" to ""; http.port: "80" to ""; http.status: "200" to ""; tcp: "" to "given"; tcp.port: "" to "80"`}},
		{"a prefix", "0/24]}]", "0/24, 198.51.100.0/24]}]", []string{`prefix_group a changed; prefixes: "203.0.113.0/24" to "203.0.113.0/24, 198.51.100.0/24"`}},
		{"a neighbor", "64513}", "64513, hold_time: 30s}", []string{`setting bgp changed; neighbors[10.0.0.254].hold_time: "9s" to "30s"`}},
		{"a setting", "9470", "9471", []string{`setting metrics changed; listen: "127.0.0.1:9470" to "127.0.0.1:9471"`}},
		{"a section that begins", "metrics:", "tunnel: {mtu: 1400}\nmetrics:", []string{`setting tunnel changed; mtu: "0" to "1400"`}},
	} {
		t.Run(c.what, func(t *testing.T) {
			changed := strings.Replace(compared, c.from, c.to, 1)
			if changed == compared {
				t.Fatalf("there is no %q", c.from)
			}
			got := changeLines(Compare(parsed(t, compared), parsed(t, changed)))
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// Every field that a Config may have must be named when it differs, also one that is
// added later.
func TestEveryFieldOfAConfigIsCompared(t *testing.T) {
	c := parsed(t, compared)
	for name, value := range map[string]any{
		"service": c.Services[0], "pool": c.Pools[0], "backend": *c.Pools[0].Backends[0].Backend,
		"health_check": c.HealthChecks[0], "neighbor": c.BGP.Neighbors[0], "cluster": c.Cluster, "machine": c.Machine,
	} {
		of := reflect.TypeOf(value)
		for i := range of.NumField() {
			field := of.Field(i)
			if !field.IsExported() || notCompared[of.Name()+"."+field.Name] {
				continue
			}
			filled := reflect.New(of).Elem()
			fill(filled.Field(i))
			empty, full := flat{}, flat{}
			empty.add("", reflect.New(of).Elem())
			full.add("", filled)
			if len(empty.compare(full)) == 0 {
				t.Errorf("%s: nothing is told of %s", name, field.Name)
			}
		}
	}
}

// fill a value with anything but what is zero.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Struct:
		if prefix, ok := v.Addr().Interface().(interface{ UnmarshalText([]byte) error }); ok {
			if prefix.UnmarshalText([]byte("192.0.2.0/24")) != nil {
				_ = prefix.UnmarshalText([]byte("192.0.2.1"))
			}
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	case reflect.Interface:
		v.Set(reflect.ValueOf(check.TCP{Port: 80}))
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	default:
		v.SetUint(7)
	}
}
