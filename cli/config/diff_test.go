package config

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/clitest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

const (
	diffMachine = "machine: {name: lb-1, addresses: [10.0.0.1]}\n"
	diffShared  = `services: [{name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}], pools: [web]}]
pools: [{name: web, backends: [{name: web-1, address: 10.1.0.11}]}]
`
)

func TestConfigDiffIsByMeaning(t *testing.T) {
	for name, c := range map[string]struct {
		before, after string
		want          string
		said          string
	}{
		"a weight":            {diffMachine + diffShared, diffMachine + strings.Replace(diffShared, "0.11}", "0.11, weight: 7}", 1), "KIND NAME CHANGE pool web backends[web-1].weight: 1 to 7 diff a.yaml", ""},
		"a default":           {diffMachine + diffShared, diffMachine + strings.Replace(diffShared, "0.11}", "0.11, weight: 1}", 1), "no change: both mean the same diff a.yaml", ""},
		"a comment":           {diffMachine + diffShared, "# ours\n" + diffMachine + diffShared, "no change: both mean the same diff a.yaml", ""},
		"nothing":             {diffMachine + diffShared, diffMachine + diffShared, "", ""},
		"etcd, a backend":     {diffShared, strings.Replace(diffShared, "0.11}", "0.11}, {name: web-2, address: 10.1.0.12}", 1), "backend web-2 added diff a.yaml", ""},
		"etcd, a default":     {diffShared, strings.Replace(diffShared, "0.11}", "0.11, weight: 1}", 1), "no change: both mean the same diff a.yaml", ""},
		"a file that is gone": {diffMachine + diffShared, diffMachine + "cluster: {secret_file: /no/such/file}\n" + diffShared, "secret_file: - to /no/such/file", ""},
		"not of this version": {diffMachine + diffShared, diffMachine + "nonsense: 1\n" + diffShared, "---", "number 2 is no good config by this version, so only lines are compared: a.yaml:2:1"},
	} {
		var out, said bytes.Buffer
		command := &cobra.Command{}
		command.SetOut(&out)
		command.SetErr(&said)
		recorded := func(number uint64, text string) *controllerv1.GetConfigResponse {
			return &controllerv1.GetConfigResponse{Record: &controllerv1.ConfigRecord{Number: number}, Files: []*controllerv1.ConfigFile{{Name: "a.yaml", Data: []byte(text)}}}
		}
		if err := printDiff(command, "table", recorded(1, c.before), recorded(2, c.after)); err != nil {
			t.Fatal(err)
		}
		if got := clitest.Fields(out.String()); !strings.Contains(got, c.want) || c.want == "" && got != "" || !strings.Contains(said.String(), c.said) || c.said == "" && said.Len() > 0 {
			t.Errorf("%s: said %q\n%s", name, said.String(), out.String())
		}
	}
}
