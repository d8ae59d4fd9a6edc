package config

import (
	"errors"
	"fmt"
	"os/user"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/fleet"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

func configSeedCommand() *cobra.Command {
	var machineFiles []string
	command := &cobra.Command{
		Use:   "seed FILE --machine FILE...",
		Short: "Store the first configuration of a cluster in etcd",
		Long: "Checks FILE, the part that all machines share, together with the own files of one\n" +
			"machine, which say where etcd is, and stores it in etcd. Refused if etcd holds a\n" +
			"configuration: later ones are stored by `guideway config apply`. No controller is\n" +
			"needed.",
		Example: "  guideway config seed shared.yaml --machine /etc/guideway/guideway.yaml",
		Args:    commandline.Arguments("FILE"),
		RunE: func(command *cobra.Command, args []string) error {
			return seed(command, args[0], machineFiles)
		},
	}
	command.Flags().StringArrayVar(&machineFiles, "machine", nil, "a machine's own `FILE` or directory, as its controller has it in --config; may be repeated")
	_ = command.MarkFlagRequired("machine") // an error only if the flag did not exist
	return command
}

func seed(command *cobra.Command, file string, machineFiles []string) error {
	reader := config.Reader{Machine: config.HostName(), AnyMachine: true, ReadFile: config.ReadFromDisk}
	sources, err := config.Read(machineFiles...)
	if err != nil {
		return err
	}
	settings, err := reader.EtcdOf(sources)
	if err != nil {
		return err
	}
	if settings == nil {
		return errors.New("the machine's files have no `etcd`, which says where to store the config")
	}
	shared, err := config.Read(file)
	if err != nil {
		return err
	}
	if len(shared) != 1 {
		return fmt.Errorf("%s has %d files: give one file", file, len(shared))
	}
	shared[0].Generation = 1
	parsed, err := reader.Parse(append(sources, shared[0]))
	if err != nil {
		return err
	}
	for _, warning := range parsed.Warnings {
		fmt.Fprintf(command.ErrOrStderr(), "warning: %s\n", warning)
	}
	store := fleet.NewStore(*settings)
	defer store.Close()
	seen, err := store.See(command.Context())
	if err != nil {
		return err
	}
	if seen.Current != nil {
		return fmt.Errorf("etcd holds config %d of cluster %s already: `guideway config apply` stores the next one", seen.Current.Generation, settings.Cluster)
	}
	stored, err := store.Publish(command.Context(), seen, 0, &fleetv1.ConfigRecord{Machine: parsed.Machine.Name, User: userName(), Message: "the first config", From: file}, shared[0].Data)
	if err != nil {
		return err
	}
	fmt.Fprintf(command.OutOrStdout(), "stored: config %d of cluster %s\n", stored.GetGeneration(), settings.Cluster)
	return nil
}

// userName is empty where the system has no name for the user.
func userName() string {
	current, err := user.Current()
	if err != nil {
		return ""
	}
	return current.Username
}
