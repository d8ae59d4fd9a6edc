package commandline

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// commit that the program was built from, and whether it was changed; set by the linker.
var commit string

// AddVersion has a program print its version, by `version` and by `--version`.
func AddVersion(program *cobra.Command) {
	line := fmt.Sprintf("%s %s%s (%s, %s/%s)\n", program.Name(), program.Version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	program.SetVersionTemplate(line)
	program.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(command.OutOrStdout(), line)
			return err
		},
	})
}
