package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/guideway/guideway/cli/commandline"
)

func TestHowItEnds(t *testing.T) {
	runDir := t.TempDir()
	cases := []struct {
		args string
		code int
		want string
	}{
		{"", 0, "Available Commands"},
		{"--version", 0, "guideway-lab development (go1"},
		{"version", 0, "guideway-lab development (go1"},
		{"up --encap vxlan", 2, "give one of gre, ipip, gue, geneve, l2"},
		{"up --encap l2", 1, "needs a lab without a router"},
		{"up --router cisco", 2, "give one of bird, frr, none"},
		{"up --stateless --fabric-mtu 100", 1, "fabric MTU 100"},
		{"up --router none --load-balancers 5", 1, "load balancers 5 without a router: give 1 to 4"},
		{"demo --router none --events generations_apart", 1, "event generations_apart: a router has to rehash flows"},
		{"up --mptcp --fabric-mtu 100", 1, "fabric MTU 100"},
		{"up --stateless --encap gre", 1, "stateless services need geneve"},
		{"up now", 2, `"now" is too much`},
		{"upp", 2, "did you mean up?"},
		{"status -o wide", 2, "give one of table, json, yaml"},
		{"demo --events nap", 1, `event "nap" is unknown`},
		{"helper", 2, "give one of echo, load"},
		{"down --name none --run-dir " + runDir, 1, "lab none: there is none, so nothing was removed"},
		{"status --name none --run-dir " + runDir, 1, "`guideway-lab up --name none` builds it"},
	}
	for _, c := range cases {
		var out bytes.Buffer
		command := root()
		command.SetOut(&out)
		command.SetErr(&out)
		command.SetArgs(strings.Fields(c.args))
		err := command.ExecuteContext(t.Context())
		text := out.String()
		if err != nil {
			text += err.Error()
		}
		if code := commandline.ExitCode(err); code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%q ends with %d, not %d:\n%s", c.args, code, c.code, text)
		}
	}
}

func TestTheEnvironmentGivesWhatNoFlagDoes(t *testing.T) {
	t.Setenv("EVENTS", "nap")
	t.Setenv("BACKENDS", "1")
	command := root()
	command.SetArgs([]string{"demo", "--backends", "3"})
	if err := command.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), `event "nap"`) {
		t.Errorf("error %v", err)
	}
}
