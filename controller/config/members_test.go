package config

import (
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

const withSource = `
machine: {name: lb-1, addresses: [10.0.0.1]}
cluster: {name: c1, secret_file: /etc/secret}
services: [{name: web, vips: [{address: 203.0.113.10}], pools: [web], backends_min: 2, table_size: 101}]
pools: [{name: web, from: {file: web.json}}]
`

func parseWithSource(t *testing.T) *Config {
	t.Helper()
	reads := 0
	c, err := Parse([]Source{{Name: "/etc/guideway/a.yaml", Data: []byte(withSource)}}, func(string) ([]byte, fs.FileMode, error) {
		if reads++; reads > 1 {
			return nil, 0, fs.ErrNotExist
		}
		return []byte("0123456789abcdef"), 0o600, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func member(t *testing.T, name, address, weight string) PoolMember {
	t.Helper()
	m, err := ParseMember(name, address, weight)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestAConfigWithMembersIsTheConfigThatListsThem(t *testing.T) {
	c := parseWithSource(t)
	if from := c.Pools[0].From; from.File != "/etc/guideway/web.json" || len(c.Backends) != 0 {
		t.Fatalf("%+v, backends %v", from, c.Backends)
	}
	leaves := member(t, "c", "10.1.0.3", "5")
	leaves.Leaves = true
	again, err := c.WithMembers(map[string][]PoolMember{"web": {member(t, "", "10.1.0.1", ""), member(t, "b", "10.1.0.2", "3"), leaves}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range again.Services[0].Members {
		got = append(got, m.Backend.Name+" "+m.Backend.Address.String()+" "+strings.Repeat("x", int(m.Weight)))
	}
	if want := []string{"10.1.0.1 10.1.0.1 x", "b 10.1.0.2 xxx", "c 10.1.0.3 "}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if again.Cluster.KeyID != c.Cluster.KeyID {
		t.Errorf("cluster %+v, want %+v", again.Cluster, c.Cluster)
	}
	if len(c.Backends) != 0 {
		t.Error("the first config has changed")
	}
}

func TestMembersThatDoNotFitTheConfigAreRefusedAtTheirPool(t *testing.T) {
	c := parseWithSource(t)
	for what, one := range map[string]struct {
		members []PoolMember
		want    string
	}{
		"the machine itself": {[]PoolMember{member(t, "", "10.0.0.1", "")}, "/etc/guideway/a.yaml:5:9: pools[0].backends[0].address: 10.0.0.1 is this machine's own address"},
		"a VIP":              {[]PoolMember{member(t, "", "203.0.113.10", "")}, "203.0.113.10 is also a VIP"},
		"another family":     {[]PoolMember{member(t, "", "2001:db8::1", "")}, "machine.addresses has no IPv6 address to tunnel from"},
		"too many for the table": {func() (many []PoolMember) {
			for address := netip.MustParseAddr("10.1.0.0"); len(many) < 102; address = address.Next() {
				many = append(many, member(t, "", address.String(), ""))
			}
			return many
		}(), "services[0].table_size: is 101, smaller than the service's 102 backends"},
	} {
		if _, err := c.WithMembers(map[string][]PoolMember{"web": one.members}); err == nil || !strings.Contains(err.Error(), one.want) {
			t.Errorf("%s: %v, want %q", what, err, one.want)
		}
	}
}

func TestAMemberIsParsedByTheRulesOfBackends(t *testing.T) {
	for _, one := range []struct{ name, address, weight, want string }{
		{"", "web.internal", "", `the address is "web.internal": give an IPv4 or IPv6 address`},
		{"", "127.0.0.1", "", "a loopback address"},
		{"a b", "10.1.0.1", "", `the name is "a b"`},
		{strings.Repeat("x", 129), "10.1.0.1", "", "1 to 128"},
		{"", "10.1.0.1", "1001", `the weight is "1001"`},
		{"", "10.1.0.1", "-1", `the weight is "-1"`},
	} {
		if _, err := ParseMember(one.name, one.address, one.weight); err == nil || !strings.Contains(err.Error(), one.want) {
			t.Errorf("%+v: %v", one, err)
		}
	}
}
