package blackbox

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/guideway/guideway/controller/check"
)

func parser() Parser {
	return Parser{Lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
		if host != "www.example.com" {
			return nil, errors.New("no such host")
		}
		return []netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("::ffff:192.0.2.1"), netip.MustParseAddr("192.0.2.1")}, nil
	}}
}

func TestATargetIsWhatItsTextSays(t *testing.T) {
	const vip = "203.0.113.10"
	statuses := check.StatusesOf(answered()...)
	request := check.HTTP{Port: 80, Method: "GET", Path: "/", Status: statuses}
	deep := request
	deep.Port, deep.Path = 8080, "/a%20b?c=d"
	certificate := check.Certificate{ExpiryDays: 14}
	secure := check.HTTPS{HTTP: request, Certificate: certificate}
	secure.Port = 443
	for text, want := range map[string]Target{
		"http://203.0.113.10":                {Port: 80, Protocol: "tcp", Check: request},
		"http://203.0.113.10:8080/a%20b?c=d": {Port: 8080, Protocol: "tcp", Check: deep},
		"https://203.0.113.10/":              {Port: 443, Protocol: "tcp", Check: secure},
		"tcp://203.0.113.10:22":              {Port: 22, Protocol: "tcp", Check: check.TCP{Port: 22}},
		"tls://203.0.113.10:636":             {Port: 636, Protocol: "tcp", Check: check.TLS{Port: 636, Certificate: certificate}},
		"dns://203.0.113.10/www.example.com?type=aaaa": {Port: 53, Protocol: "udp",
			Check: check.DNS{Port: 53, Name: "www.example.com.", Type: dnsmessage.TypeAAAA, Network: "udp"}},
		"udp://203.0.113.10:7000?payload=ping&answer_hex=70%206f": {Port: 7000, Protocol: "udp", Check: check.UDP{Port: 7000, Payload: "ping", Answer: "po"}},
	} {
		want.Name, want.Address = text, netip.MustParseAddr(vip)
		got, err := parser().Parse(t.Context(), text)
		if err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s: %#v, %v\nwanted %#v", text, got, err, want)
		}
	}
}

func TestAHostIsATargetForEachOfItsAddresses(t *testing.T) {
	got, err := parser().Parse(t.Context(), "https://www.example.com:8443/x")
	if err != nil || len(got) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	titles := []string{got[0].Title(), got[1].Title()}
	if !slices.Equal(titles, []string{"https://www.example.com:8443/x at 192.0.2.1", "https://www.example.com:8443/x at 2001:db8::1"}) {
		t.Errorf("%q", titles)
	}
	// The server hears its name, without which it may serve something else.
	secure := got[0].Check.(check.HTTPS)
	if secure.Host != "www.example.com:8443" || secure.Certificate.ServerName != "www.example.com" {
		t.Errorf("%+v", secure)
	}
	if _, err := parser().Parse(t.Context(), "tcp://nowhere.example:1"); err == nil || errors.Is(err, ErrSyntax) || !strings.Contains(err.Error(), "address of nowhere.example: no such host") {
		t.Errorf("%v", err)
	}
}

func TestABadTargetIsNamedWithItsCure(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "write it like http://203.0.113.10/",
		"203.0.113.10:80":                        "write it like http://203.0.113.10/",
		"ftp://203.0.113.10":                     "scheme that is known",
		"http://2001:db8::1/":                    "IPv6 address in brackets",
		"http:///path":                           "has no address",
		"tcp://203.0.113.10":                     "write tcp://203.0.113.10:PORT",
		"tcp://203.0.113.10:0":                   "give 1 to 65535",
		"tcp://203.0.113.10:70000":               "give 1 to 65535",
		"tcp://203.0.113.10:80/x":                "has a path, which tcp has not",
		"tls://203.0.113.10:80?x=1":              "has parameters (`?`), which tls has not",
		"http://me@203.0.113.10/":                "a user or a fragment",
		"http://203.0.113.10/#x":                 "a user or a fragment",
		"udp://203.0.113.10:7?text=x":            "udp has payload, payload_hex, answer, answer_hex",
		"udp://203.0.113.10:7?answer=x&answer=y": "\"answer\" twice",
		"udp://203.0.113.10:7?payload_hex=0":     "two hexadecimal digits",
		"dns://203.0.113.10":                     "dns.name",
		"dns://203.0.113.10/a..b":                "nothing between two dots",
		"dns://203.0.113.10/a?type=X":            "dns.type must be in list",
	} {
		_, err := parser().Parse(t.Context(), text)
		if !errors.Is(err, ErrSyntax) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v\nwanted %q", text, err, want)
		}
	}
	p := parser()
	p.CAFile = "/nowhere"
	if _, err := p.Parse(t.Context(), "tls://203.0.113.10:1"); err == nil || !strings.Contains(err.Error(), "tls.ca_file cannot be read") {
		t.Errorf("%v", err)
	}
}

const someConfig = `
cluster: {name: c, secret_file: /nowhere/cluster.key, prefixes: [203.0.113.0/24, "2001:db8:a::/64"]}
machine: {name: lb-1, addresses: [10.0.0.1, "2001:db8:1::1"]}
prefix_groups: [{name: all, prefixes: [203.0.113.0/24, 198.51.100.0/24, "2001:db8:a::/64"]}]
services:
- {name: web, vips: [{address: 203.0.113.10, ports: [80, 443, "8000-8010"], protocol: tcp}], pools: [web]}
- {name: names, vips: [{address: "2001:db8:a::53", ports: [53]}], pools: [names]}
- {name: sixes, vips: [{prefix_group: all, suffix: 0.0.0.6, ports: [8005], protocol: tcp}], pools: [web]}
- {name: any, vips: [{address: 203.0.113.99}], pools: [web]}
pools:
- {name: web, health_checks: [page, alive], pools: [more], backends: [{address: 10.1.0.11}]}
- {name: more, health_checks: [ping], backends: [{address: 10.1.0.12}]}
- {name: names, health_checks: [ask], backends: [{address: "2001:db8:2::1"}]}
health_checks:
- {name: page, http: {port: 80, path: /healthz}}
- {name: alive, tcp: {port: 8005}}
- {name: ping, icmp: {}}
- {name: ask, dns: {name: www.example.com}}
`

// Of each port of each VIP: the pool's check that names the port, else TCP.
func TestAConfigsVIPsAreTriedAsTheirPoolsAreChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(someConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	targets, left, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, target := range targets {
		got = append(got, target.Service+" "+target.Name)
	}
	want := []string{
		"web http://203.0.113.10:80/healthz", "web tcp://203.0.113.10:443", "web tcp://203.0.113.10:8005",
		"names tcp://[2001:db8:a::53]:53", "names dns://[2001:db8:a::53]:53/www.example.com",
		"sixes tcp://203.0.113.6:8005",
		"any http://203.0.113.99:80/healthz", "any tcp://203.0.113.99:8005",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwanted %q", got, want)
	}
	if len(left) != 1 || !strings.HasPrefix(left[0], "service any, 203.0.113.99, udp all ports: no health check") {
		t.Errorf("left %q", left)
	}
}

func TestABadConfigIsRefusedAsTheControllerDoes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(someConfig, "pools: [web]", "pools: [wbe]", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(file); err == nil || !strings.Contains(err.Error(), "wbe") {
		t.Errorf("%v", err)
	}
}
