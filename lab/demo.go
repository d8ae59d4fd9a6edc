package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/lab/events"
	"github.com/guideway/guideway/lab/topology"
)

func demoCommand() *cobra.Command {
	o := events.Defaults()
	var names string
	command := &cobra.Command{
		Use:   "demo",
		Short: "Build a lab, put it under load, break things, and judge what clients saw (root)",
		Long: "Builds a lab of its own, then performs events under load, each from the whole\n" +
			"topology, and ends with one screen. Exits with 1 if a request failed or a\n" +
			"connection broke that should not have. Events:\n  " + strings.Join(events.EventNames(), "\n  ") + "\n\n" +
			"Each flag may be given in the environment too: SEED, BACKENDS, LOAD_BALANCERS,\n" +
			"CONNECTIONS, AGENTS (0 or 1), ROUTER, EVENTS, DEMO_REPORT, DEMO_PICTURE. A flag wins.",
		Example: "  guideway-lab demo --seed 7 --events steady,kill_load_balancer\n" +
			"  guideway-lab demo --router none",
		Args: commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			o.Output = command.OutOrStdout()
			return events.Run(command.Context(), o)
		},
	}
	flags := command.Flags()
	flags.Uint64Var(&o.Seed, "seed", o.Seed, "decides on five-tuples and on who is hit")
	flags.IntVar(&o.Backends, "backends", o.Backends, "how many backends")
	flags.IntVar(&o.LoadBalancers, "load-balancers", o.LoadBalancers, "how many load balancers")
	flags.IntVar(&o.Connections, "connections", o.Connections, "how many long-lived connections")
	flags.BoolVar(&o.Agents, "agents", o.Agents, "Geneve, and agents that pass on what belongs to another backend; false: GRE without their help")
	commandline.AddChoice(command, &o.Router, "router", "", routerHelp, "bird", "frr", topology.NoRouter)
	flags.StringVar(&names, "events", "", "which events, with commas between, in this order (default all)")
	flags.StringVar(&o.Report, "report", "", "file for the result as JSON")
	flags.StringVar(&o.Picture, "picture", "", "file for the result as a picture (SVG)")
	command.PreRunE = func(command *cobra.Command, _ []string) error {
		return demoOptions(command, &o, names)
	}
	return command
}

// demoOptions completes what flags say by what the environment says.
func demoOptions(command *cobra.Command, o *events.Options, names string) error {
	if names != "" {
		o.Events = events.SplitEvents(names)
	}
	given, err := events.Defaults().FromEnvironment(os.Getenv)
	if err != nil {
		return commandline.Usagef("%w", err)
	}
	for name, take := range map[string]func(){
		"seed":           func() { o.Seed = given.Seed },
		"backends":       func() { o.Backends = given.Backends },
		"load-balancers": func() { o.LoadBalancers = given.LoadBalancers },
		"connections":    func() { o.Connections = given.Connections },
		"agents":         func() { o.Agents = given.Agents },
		"router":         func() { o.Router = given.Router },
		"events":         func() { o.Events = given.Events },
		"report":         func() { o.Report = given.Report },
		"picture":        func() { o.Picture = given.Picture },
	} {
		if !command.Flags().Changed(name) {
			take()
		}
	}
	return nil
}
