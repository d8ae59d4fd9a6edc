package config

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// backendConfig is one with a service of Multipath TCP at this VIP.
func backendConfig(t *testing.T, vip string) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "cluster.key"), []byte("0123456789abcdef0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "guideway.yaml")
	text := `
machine: {addresses: [10.0.0.1]}
cluster: {secret_file: cluster.key}
agents: {}
services:
- {name: web, vips: [` + vip + `], pools: [web], mode: stateless, encap: geneve, mptcp: {}}
- {name: other, vips: [{address: 203.0.113.11, ports: [443]}], pools: [web], mode: stateless, encap: geneve}
pools: [{name: web, backends: [{name: web-1, address: 10.1.0.11}]}]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func configBackend(t *testing.T, file string) (string, error) {
	t.Helper()
	command := configBackendCommand()
	var out bytes.Buffer
	command.SetOut(&out)
	command.SetErr(&out)
	command.SetArgs([]string{"web-1", file})
	command.SilenceUsage, command.SilenceErrors = true, true
	err := command.Execute()
	return out.String(), err
}

func TestConfigBackendListsServicesOfMultipathTCP(t *testing.T) {
	out, err := configBackend(t, backendConfig(t, `{address: 203.0.113.10, ports: [80, "443-444"]}, {address: "2001:db8:a::10", ports: [443], protocol: tcp}`))
	if err != nil {
		t.Fatal(err)
	}
	want := `mptcp:
- {address: "203.0.113.10", port: 80}
- {address: "203.0.113.10", port: 443}
- {address: "203.0.113.10", port: 444}
- {address: "2001:db8:a::10", port: 443}
#`
	if !strings.Contains(out, want) {
		t.Errorf("%s\nis not in\n%s", want, out)
	}
	if sysctl := "net.mptcp.enabled=1 net.ipv4.tcp_syncookies=1"; !strings.Contains(out, sysctl) {
		t.Errorf("%s is not in\n%s", sysctl, out)
	}
}

func TestConfigBackendRefusesServicesThatAgentsCannotKnow(t *testing.T) {
	for vip, want := range map[string]string{
		`{address: 203.0.113.10}`:                    "a VIP without `ports`",
		`{address: 203.0.113.10, ports: ["1-5000"]}`: "have 5000 addresses and ports, and an agent knows 4096",
	} {
		if _, err := configBackend(t, backendConfig(t, vip)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", vip, err, want)
		}
	}
}
