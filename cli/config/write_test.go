package config

import (
	"testing"
	"time"

	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

func Test_a_written_config_reads_as_one_would_write_it(t *testing.T) {
	c := firstConfig("lb-1", []string{"10.0.0.1", "2001:db8::1"}, "eth1")
	c.Cluster.SecretFile = nil // an installation's
	backend := &configv1.Backend{Address: "10.1.0.12", Weight: proto.Uint32(0)}
	c.Services = []*configv1.Service{{
		Name: "web", Pools: []string{"web", "no"},
		Vips: []*configv1.Vip{{Address: proto.String("203.0.113.10"), Ports: []string{"80", "8000-8100"}}, {Address: proto.String("2001:db8::10")}},
	}}
	c.Pools = []*configv1.Pool{{Name: "web", Backends: []*configv1.Backend{{Address: "10.1.0.11"}, backend}}}
	c.HealthChecks = []*configv1.HealthCheck{{Name: "ping", Icmp: &configv1.IcmpCheck{}, Interval: durationpb.New(time.Minute)}}
	const wanted = `cluster: {name: c1}
machine: {name: lb-1, addresses: [10.0.0.1, "2001:db8::1"]}
services:
- name: web
  vips:
  - {address: 203.0.113.10, ports: [80, "8000-8100"]}
  - {address: "2001:db8::10"}
  pools: [web, "no"]
pools:
- name: web
  backends:
  - {address: 10.1.0.11}
  # drained
  - {address: 10.1.0.12, weight: 0}
health_checks:
- {name: ping, icmp: {}, interval: 1m}
forwarder: {interfaces: [{name: eth1}]}
`
	if got := yamlOf(c, comments{backend: {"drained"}}); got != wanted {
		t.Errorf("it is\n%s", got)
	}
}

func Test_any_text_is_read_back_as_it_was(t *testing.T) {
	for _, text := range []string{
		"", "web", "no", "NULL", "~", "0", "010", "1e3", "0x1f", "1.5", "10.0.0.1", "::1", "2001:db8::1", "a: b", "- a", "#", "a #b", `"`, `\`, "'", "é", "a\nb\r\t\x00\x1b\x7f\u2028\U0001F600",
		"{}", "[", "*a", "&a", "!a", "%", "@a", "`", "<<", "=", " a ", "1_000", "12:30", "/a?b=c&d", "2020-01-01",
	} {
		var read struct{ Text string }
		if err := yaml.Unmarshal([]byte("text: "+quoted(text)), &read); err != nil || read.Text != text {
			t.Errorf("%q is written %s and read as %q: %v", text, quoted(text), read.Text, err)
		}
	}
}
