package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/lab/traffic/echo"
	"github.com/guideway/guideway/lab/traffic/load"
	"github.com/spf13/cobra"
)

func labCommand() *cobra.Command {
	return group("lab", "A whole data centre in network namespaces, to try things in (root)",
		labUpCommand(), labDownCommand(), labStatusCommand())
}

// labName adds the two flags that say which lab is meant.
func labName(command *cobra.Command, name, runDir *string) {
	command.Flags().StringVar(name, "name", "lab", "which lab: several may run side by side")
	command.Flags().StringVar(runDir, "run-dir", "", "where it keeps its files (default /run/guideway-lab/NAME)")
}

func labUpCommand() *cobra.Command {
	var o topology.Options
	command := &cobra.Command{
		Use:   "up",
		Short: "Build a lab, leave it running, and print what to try",
		Long: "Builds clients, a router with BIRD, load balancers and backends with nginx out\n" +
			"of network namespaces, waits until traffic flows, and prints what to try.\n" +
			"Nothing of the machine itself is changed; `guideway lab down` removes it all.",
		Example: "  guideway lab up --load-balancers 3 --backends 8",
		Args:    noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
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
	addChoice(command, &o.Encap, "encap", "", "tunnels to backends", "gre", "ipip", "gue", "geneve")
	addChoice(command, &o.Steering, "steering", "", "how packets come to workers", "rss", "software")
	command.Flags().IntVar(&o.Workers, "steered-workers", 0, "workers of each load balancer with --steering software (default one for each core but one)")
	command.Flags().IntVar(&o.FabricMTU, "fabric-mtu", 0, "MTU of load balancers and backends (default 1600, room for tunnel headers)")
	command.Flags().BoolVar(&o.TwoClusters, "two-clusters", false, "the first half of the load balancers and backends are one cluster, the others another; each spills to the other")
	return command
}

func labDownCommand() *cobra.Command {
	var name, runDir string
	command := &cobra.Command{
		Use:   "down",
		Short: "Remove a lab, whatever is left of it",
		Args:  noArguments,
		RunE: func(*cobra.Command, []string) error {
			if !hosts.Exists(name, runDir) {
				return fmt.Errorf("lab %s: there is none, so nothing was removed; %s", name, config.DidYouMean(name, hosts.Names()))
			}
			return hosts.Down(name, runDir)
		},
	}
	labName(command, &name, &runDir)
	return command
}

func labStatusCommand() *cobra.Command {
	var name, runDir, format string
	command := &cobra.Command{
		Use:   "status",
		Short: "Show a lab's nodes and processes",
		Args:  noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			running, err := hosts.Open(name, runDir)
			if err != nil {
				return err
			}
			if format != "table" {
				return printValue(command.OutOrStdout(), format, running.Status())
			}
			return printLabStatus(command, running.Status())
		},
	}
	labName(command, &name, &runDir)
	addOutput(command, &format, textFormats)
	return command
}

func printLabStatus(command *cobra.Command, nodes []hosts.NodeStatus) error {
	table := tabwriter.NewWriter(command.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tNAMESPACE\tADDRESSES\tPROCESSES")
	for _, node := range nodes {
		var processes []string
		for _, process := range node.Processes {
			state := fmt.Sprint(process.Pid)
			if !process.Alive {
				state = "dead"
			}
			processes = append(processes, process.Name+"="+state)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", node.Node, node.Namespace, strings.Join(node.Addresses, " "), strings.Join(processes, " "))
	}
	return table.Flush()
}

// labHelperCommand holds what a lab runs inside its namespaces.
func labHelperCommand() *cobra.Command {
	command := group("lab-helper", "Programs that a lab runs", labEchoCommand(), labLoadCommand())
	command.Hidden = true
	return command
}

func labEchoCommand() *cobra.Command {
	var server echo.Server
	command := &cobra.Command{
		Use:   "echo",
		Short: "Say a name, then return what comes",
		Args:  noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			return server.Run(command.Context())
		},
	}
	command.Flags().StringVar(&server.Name, "name", "echo", "the backend's name")
	command.Flags().StringArrayVar(&server.TCP, "tcp", nil, "address to listen on, may repeat")
	command.Flags().StringArrayVar(&server.UDP, "udp", nil, "address to listen on, may repeat, no wildcards")
	return command
}

func labLoadCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "load",
		Short: "Be the clients, as told by lines of JSON on standard input",
		Args:  noArguments,
		RunE: func(*cobra.Command, []string) error {
			return load.Serve(os.Stdin, os.Stdout)
		},
	}
}
