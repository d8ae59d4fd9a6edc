package compile

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/guideway/guideway/controller/config"
)

func TestPeersAreAskedInsideTheTunnelThatRedirectsTake(t *testing.T) {
	const services = `
prefix_groups: [{name: class-a, prefixes: [203.0.113.0/24, "2001:db8:a::/64"]}]
pools: [{name: web, backends: [{address: 10.1.0.11}]}]
`
	cases := []struct {
		name, machine, peer, vip string
		want                     string
	}{
		{"one family", "[10.0.0.1]", "[10.0.0.2]", "{address: 203.0.113.10}", "10.0.0.1>10.0.0.2 (10.0.0.1>203.0.113.10)"},
		{"the peer's addresses that we can reach", "[10.0.0.1]", `["2001:db8::2", 10.0.0.2]`, "{address: 203.0.113.10}", "10.0.0.1>10.0.0.2 (10.0.0.1>203.0.113.10)"},
		{"every address that we can reach", `[10.0.0.1, "2001:db8::1"]`, `["2001:db8::2", 10.0.0.2]`, `{address: 203.0.113.10}, {address: "2001:db8:a::10"}`,
			"2001:db8::1>2001:db8::2 (2001:db8::1>2001:db8:a::10), 10.0.0.1>10.0.0.2 (10.0.0.1>203.0.113.10)"},
		{"the tunnel's family inside, too", `[10.0.0.1, "2001:db8::1"]`, `["2001:db8::2"]`, `{address: 203.0.113.10}, {address: "2001:db8:a::10"}`, "2001:db8::1>2001:db8::2 (2001:db8::1>2001:db8:a::10)"},
		{"else the other", `[10.0.0.1, "2001:db8::1"]`, `["2001:db8::2"]`, "{address: 203.0.113.10}", "2001:db8::1>2001:db8::2 (10.0.0.1>203.0.113.10)"},
		{"a prefix and a suffix", "[10.0.0.1]", "[10.0.0.2]", "{prefix_group: class-a, suffix: 0.0.0.7}", "10.0.0.1>10.0.0.2 (10.0.0.1>203.0.113.7)"},
		{"no common family", "[10.0.0.1]", `["2001:db8::2"]`, "{address: 203.0.113.10}", "no address of a family"},
		{"no VIP that we could hear from", "[10.0.0.1]", "[10.0.0.2]", `{address: "2001:db8:a::10"}`, "no service here has a VIP"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			text := "machine: {addresses: " + c.machine + "}\npeers: [{name: lb-2, addresses: " + c.peer + "}]\n" +
				"services: [{name: web, vips: [" + c.vip + "], pools: [web]}]\n" + services
			missing := func(string) ([]byte, fs.FileMode, error) { return nil, 0, fs.ErrNotExist }
			parsed, err := config.Parse([]config.Source{{Name: "test.yaml", Data: []byte(text)}}, missing)
			if err != nil {
				t.Fatal(err)
			}
			targets := PeerTargets(parsed)
			var said []string
			for _, got := range targets {
				text := got.Problem
				if text == "" {
					text = got.From.String() + ">" + got.To.String() + " (" + got.Source.String() + ">" + got.VIP.String() + ")"
				}
				if got.Peer != "lb-2" {
					t.Errorf("%+v", got)
				}
				said = append(said, text)
			}
			if text := strings.Join(said, ", "); !strings.HasPrefix(text, c.want) || len(said) != 1+strings.Count(c.want, "), ") {
				t.Errorf("%s, want %s", text, c.want)
			}
		})
	}
}
