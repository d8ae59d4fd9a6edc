package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/lab/hosts"
)

func statusCommand() *cobra.Command {
	var name, runDir, format string
	command := &cobra.Command{
		Use:   "status",
		Short: "Show a lab's nodes and processes",
		Args:  commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			running, err := hosts.Open(name, runDir)
			if err != nil {
				return err
			}
			if format != "table" {
				return commandline.PrintValue(command.OutOrStdout(), format, running.Status())
			}
			return printStatus(command, running.Status())
		},
	}
	labName(command, &name, &runDir)
	commandline.AddOutput(command, &format, commandline.TextFormats)
	return command
}

func printStatus(command *cobra.Command, nodes []hosts.NodeStatus) error {
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
