package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

func upCommand() *cobra.Command {
	var o topology.Options
	command := &cobra.Command{
		Use:   "up",
		Short: "Build a lab, leave it running, and print what to try",
		Long: "Builds clients, a router (BIRD or FRR) or none, load balancers and backends with\n" +
			"nginx out of network namespaces, waits until traffic flows, and prints what to try.\n" +
			"Nothing of the machine itself is changed; `guideway-lab down` removes it all.",
		Example: "  guideway-lab up --load-balancers 3 --backends 8\n" +
			"  guideway-lab up --name segment --router none\n" +
			"  guideway-lab up --name paths --mptcp",
		Args: commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			o.Stateless = o.Stateless || o.Multipath
			if o.Stateless && !command.Flags().Changed("encap") {
				o.Encap = "geneve"
			}
			o.TunnelChecks = true
			running, err := hosts.Up(command.Context(), o, false)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(command.OutOrStdout(), running.Hints())
			return err
		},
	}
	labName(command, &o.Name, &o.RunDir)
	command.Flags().IntVar(&o.LoadBalancers, "load-balancers", 2, "how many load balancers")
	command.Flags().IntVar(&o.Backends, "backends", 4, "how many backends")
	command.Flags().IntVar(&o.Spares, "spare-backends", 1, "how many more run that no config names yet")
	command.Flags().IntVar(&o.Queues, "queues", 2, "queues, so workers, of each load balancer")
	commandline.AddChoice(command, &o.Router, "router", "", routerHelp, "bird", "frr", topology.NoRouter)
	commandline.AddChoice(command, &o.Encap, "encap", "", "how packets get to backends; l2 with --router none", "gre", "ipip", "gue", "geneve", "l2")
	command.Flags().BoolVar(&o.Stateless, "stateless", false, "services select by buckets, without connection tables (needs --encap geneve, the default then)")
	command.Flags().BoolVar(&o.Multipath, "mptcp", false, "the echo service takes Multipath TCP by keys and tokens (includes --stateless)")
	commandline.AddChoice(command, &o.Driver, "driver", "", "how load balancers get frames; with af_packet interfaces keep their offloads", "af_xdp", "af_packet")
	commandline.AddChoice(command, &o.Steering, "steering", "", "how packets come to workers", "rss", "software")
	command.Flags().IntVar(&o.Workers, "steered-workers", 0, "workers of each load balancer with --steering software (default one for each core but one)")
	command.Flags().IntVar(&o.FabricMTU, "fabric-mtu", 0, "MTU of load balancers and backends (default 1600, room for tunnel headers; their options take 1650)")
	command.Flags().BoolVar(&o.TwoClusters, "two-clusters", false, "the first half of the load balancers and backends are one cluster, the others another; each spills to the other")
	return command
}

const routerHelp = "what speaks BGP on the router; with none, all machines share a segment, and load balancers own VIPs by VRRP"

// labName adds the two flags that say which lab is meant.
func labName(command *cobra.Command, name, runDir *string) {
	command.Flags().StringVar(name, "name", "lab", "which lab: several may run side by side")
	command.Flags().StringVar(runDir, "run-dir", "", "where it keeps its files (default /run/guideway-lab/NAME)")
}
