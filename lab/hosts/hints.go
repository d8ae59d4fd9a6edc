package hosts

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/guideway/guideway/lab/topology"
)

// Hints are commands to try on a lab that runs.
func (lab *Lab) Hints() string {
	var b strings.Builder
	first, last := lab.Network.LoadBalancers[0], lab.Network.LoadBalancers[len(lab.Network.LoadBalancers)-1]
	backend := lab.Network.Backends[0]
	guideway := filepath.Join(lab.state.Options.BinDir, "guideway")
	client := "ip netns exec " + lab.Network.Client.Namespace
	show := fmt.Sprintf("%s show backends --run-dir %s", guideway, lab.path(first, "run"))
	forwarder, _ := lab.find(last.Name, "forwarder")
	controller, _ := lab.find(last.Name, "controller")

	fmt.Fprintf(&b, "Lab %s runs: client, %s, %d load balancers, %d backends (root). Try:\n",
		lab.state.Options.Name, lab.Network.RouterName(), len(lab.Network.LoadBalancers), lab.state.Options.Backends)
	for _, hint := range slices.Concat([][2]string{
		{"requests over IPv4 and IPv6", fmt.Sprintf("%s curl http://%s/ 'http://[%s]/'", client, topology.WebVIPs[0], topology.WebVIPs[1])},
		{"an echo, by UDP", fmt.Sprintf("%s bash -c 'exec 3<>/dev/udp/%s/%d; echo hello >&3; timeout 1 head -2 <&3'", client, topology.EchoVIPs[0], topology.EchoPort)},
		{"twenty, counted by backend", fmt.Sprintf("%s bash -c 'for i in {1..20}; do curl -s http://%s/; done' | sort | uniq -c", client, topology.WebVIPs[0])},
		{"what a load balancer knows", show},
		{"", strings.Replace(show, "backends", "connections", 1)},
		{"", strings.Replace(show, "backends", "drops", 1)},
		{"what happens to a packet on its way", fmt.Sprintf("%s %s trace --vip %s --count 4 --secret-file %s", client, guideway, topology.WebVIPs[0], lab.SecretFile())},
	}, lab.routing().show(), [][2]string{
		{"packets on their way (in a tunnel)", fmt.Sprintf("ip netns exec %s tcpdump -ni %s 'ip proto 47 or ip proto 4 or udp port 6080 or udp port 6081'", lab.Network.Router, backend.Port)},
		{"kill " + last.Name, fmt.Sprintf("kill -9 %d %d", forwarder.Pid, controller.Pid)},
		{"cut off " + backend.Name, fmt.Sprintf("ip -n %s link set %s down", lab.Network.Router, backend.Port)},
		{"change the config of " + first.Name, fmt.Sprintf("$EDITOR %s && kill -HUP %d", lab.path(first, "config.yaml"), lab.pidOf(first, "controller"))},
		{"logs", fmt.Sprintf("ls %s/*/*.log", lab.state.Options.RunDir)},
		{"remove all of it", fmt.Sprintf("%s-lab down --name %s%s", guideway, lab.state.Options.Name, lab.runDirFlag())},
	}) {
		if hint[0] != "" {
			fmt.Fprintf(&b, "  # %s\n", hint[0])
		}
		fmt.Fprintf(&b, "  %s\n", hint[1])
	}
	return b.String()
}

func (lab *Lab) pidOf(n topology.Node, what string) int {
	p, _ := lab.find(n.Name, what)
	return p.Pid
}

func (lab *Lab) runDirFlag() string {
	if o := lab.state.Options; o.RunDir != DefaultRunDir(o.Name) {
		return " --run-dir " + o.RunDir
	}
	return ""
}
