package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/traffic/echo"
	"github.com/guideway/guideway/lab/traffic/load"
)

// helperCommand holds what a lab runs inside its namespaces.
func helperCommand() *cobra.Command {
	command := commandline.Group(hosts.HelperVerb, "Programs that a lab runs in its namespaces", echoCommand(), loadCommand())
	command.Hidden = true
	return command
}

func echoCommand() *cobra.Command {
	var server echo.Server
	command := &cobra.Command{
		Use:   "echo",
		Short: "Say a name, then return what comes",
		Args:  commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			return server.Run(command.Context())
		},
	}
	command.Flags().StringVar(&server.Name, "name", "echo", "the backend's name")
	command.Flags().StringArrayVar(&server.TCP, "tcp", nil, "address to listen on, may repeat")
	command.Flags().StringArrayVar(&server.UDP, "udp", nil, "address to listen on, may repeat, no wildcards")
	return command
}

func loadCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "load",
		Short: "Be the clients, as told by lines of JSON on standard input",
		Args:  commandline.NoArguments,
		RunE: func(*cobra.Command, []string) error {
			return load.Serve(os.Stdin, os.Stdout)
		},
	}
}
