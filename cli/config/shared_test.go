package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guideway/guideway/controller/etcdtest"
)

const sharedPart = `
cluster: {name: c1}
peers: [{name: lb-1, addresses: [10.0.0.1]}, {name: lb-2, addresses: [10.0.0.2]}]
services: [{name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}], pools: [web]}]
pools: [{name: web, backends: [{name: web-1, address: 10.1.0.11}%s]}]
`

func TestAMachinesOwnFileIsCheckedWithWhatAllShare(t *testing.T) {
	etcd := etcdtest.Start(t)
	folder := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	own := write("own.yaml", fmt.Sprintf("machine: {name: lb-1, addresses: [10.0.0.1]}\netcd: {cluster: c1, endpoints: [%q]}\n", etcd.URL()))
	shared := write("shared.yaml", fmt.Sprintf(sharedPart, ""))
	expect := func(what string, good bool, says string, files ...string) {
		t.Helper()
		stdout, stderr, err := guideway(t, append([]string{"config", "check"}, files...)...)
		if told := fmt.Sprint(stdout, stderr, err); (err == nil) != good || !strings.Contains(told, says) {
			t.Errorf("%s: %s", what, told)
		}
	}
	expect("both files", true, "1 backend", own, shared)
	expect("nothing is stored", false, "it holds no config yet", own)
	if _, _, err := guideway(t, "config", "seed", write("stored.yaml", fmt.Sprintf(sharedPart, ", {name: web-2, address: 10.1.0.12}")), "--machine", own); err != nil {
		t.Fatal(err)
	}
	expect("with what is stored", true, "2 backends", own)
	expect("the file given counts", true, "1 backend", shared, own)
	mixed := write("mixed.yaml", "metrics: {listen: \"127.0.0.1:9\"}\n"+fmt.Sprintf(sharedPart, ""))
	expect("a file with both parts", false, "is shared by the machines of the cluster and comes from etcd", own, mixed)
	// A program gets the same verdict.
	if stdout, _, err := guideway(t, "config", "check", own, "-o", "json"); err != nil || !strings.Contains(stdout, `"good": true`) {
		t.Errorf("%v\n%s", err, stdout)
	}
	several := write("several.yaml", fmt.Sprintf(sharedPart, "")+`
machines: [{name: lb-7, addresses: [10.0.0.7]}, {name: lb-8, addresses: [10.0.0.8]}]
`)
	expect("several machines", true, "1 backend", several)
	expect("one of several", true, "1 backend", several, "--machine", "lb-8")
	expect("none of them", false, "which of lb-7, lb-8 it is", several, "--machine", "lb-9")
	bad := write("bad.yaml", strings.Replace(fmt.Sprintf(sharedPart, ""), "peers:", "machines: [{name: lb-7, addresses: [10.0.0.7]}, {name: lb-8, addresses: [10.0.0.8], metrics: {listen: x}}]\npeers:", 1))
	expect("a mistake in one of several", false, "machines[1].metrics.listen", bad)
	etcd.Kill()
	expect("etcd is away", false, "to check without etcd, give a file with that part, too", own)
	expect("both files, without etcd", true, "1 backend", own, shared)
}
