// Package config has the verbs of `guideway config`, one file each.
package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// Command is `guideway config`.
func Command() *cobra.Command {
	return commandline.Group("config", "Check, plan, apply and roll back configurations",
		configCheckCommand(), configCompileCommand(), configPlanCommand(), configApplyCommand(), configPromoteCommand(), configCancelCommand(),
		configHistoryCommand(), configDiffCommand(), configRollbackCommand(), configSeedCommand(), configBackendCommand(), configImportCommand())
}

func configCheckCommand() *cobra.Command {
	var format, name string
	command := &cobra.Command{
		Use:   "check FILE...",
		Short: "Check a configuration for errors",
		Long: "Reads files, or directories of *.yaml, *.yml and *.json, as one configuration and\n" +
			"prints every error and warning with its place and its cure. If they name etcd, they\n" +
			"are checked with the part that machines share: one of the files, or what etcd holds.\n" +
			"If they have `machines`, they are checked for each of them, or for --machine NAME.\n" +
			"Exit status: 0 if the configuration can be used, 1 if not.",
		Example: "  guideway config check /etc/guideway/config.yaml",
		Args:    configFiles,
		RunE: func(command *cobra.Command, files []string) error {
			if format != "table" {
				return printVerdict(whole(command.Context(), name), command.OutOrStdout(), format, files)
			}
			c, err := loadConfig(command.ErrOrStderr(), whole(command.Context(), name), files)
			if err != nil {
				return err
			}
			fmt.Fprintln(command.OutOrStdout(), summary(c))
			printNotes(command.OutOrStdout(), notes(c))
			return nil
		},
	}
	addMachine(command, &name)
	commandline.AddOutput(command, &format, commandline.TextFormats)
	return command
}

func addMachine(command *cobra.Command, name *string) {
	command.Flags().StringVar(name, "machine", "", "`NAME` of an entry of `machines` [default: the host name]")
}

type shownVerdict struct {
	Good     bool            `json:"good"`
	Errors   config.Problems `json:"errors"`
	Warnings config.Problems `json:"warnings"`
	// About this machine, which the config may not be for.
	Notes []string `json:"notes"`
}

// printVerdict says for programs what check says for people.
func printVerdict(load func(...string) (*config.Config, error), stdout io.Writer, format string, files []string) error {
	c, err := load(files...)
	verdict := shownVerdict{Good: err == nil, Errors: config.Problems{}, Warnings: config.Problems{}, Notes: []string{}}
	var refusal *config.Refusal
	switch {
	case errors.As(err, &refusal):
		verdict.Errors, verdict.Warnings = append(verdict.Errors, refusal.Errors...), append(verdict.Warnings, refusal.Warnings...)
	case err != nil:
		return err
	default:
		verdict.Warnings, verdict.Notes = append(verdict.Warnings, c.Warnings...), append(verdict.Notes, notes(c)...)
	}
	if err := commandline.PrintValue(stdout, format, verdict); err != nil {
		return err
	}
	if !verdict.Good {
		return commandline.ErrReported
	}
	return nil
}

func missingInterfaces(c *config.Config) (notes []string) {
	var there []string
	interfaces, _ := net.Interfaces() // none: then the next lines say so
	for _, i := range interfaces {
		there = append(there, i.Name)
	}
	note := func(name, field string) {
		if !slices.Contains(there, name) {
			notes = append(notes, fmt.Sprintf("this machine has no interface %q (%s): %s", name, field, config.DidYouMean(name, there)))
		}
	}
	if c.Forwarder != nil {
		for _, one := range c.Forwarder.Interfaces {
			note(one.Name, "forwarder.interfaces")
		}
	}
	if c.VRRP != nil {
		note(c.VRRP.Interface, "vrrp.interface")
	}
	return notes
}

// notes are what only this machine can know, if the config is for it.
func notes(c *config.Config) (notes []string) {
	notes = missingInterfaces(c)
	if file := c.Cluster.SecretFile; file != "" && file != config.DefaultSecretFile {
		notes = append(notes, fmt.Sprintf("the forwarder needs the same secret: --secret-file %s (its unit has %s)", file, config.DefaultSecretFile))
	}
	for _, pool := range c.MemberPools() {
		notes = append(notes, fmt.Sprintf("pool %s: %s is not asked here for its backends; `guideway show pools` says what it lists once the config is in use", pool.Name, pool.From))
	}
	return append(notes, notesOnChecks(c)...)
}

func configCompileCommand() *cobra.Command {
	var name string
	command := &cobra.Command{
		Use:   "compile FILE...",
		Short: "Print the plan that a configuration compiles to",
		Long: "Reads files, or directories of *.yaml, *.yml and *.json, as one configuration and\n" +
			"prints the plan of this machine as JSON: generation 1, every backend active (draining\n" +
			"if its weight is 0). Errors and warnings go to standard error. A configuration that\n" +
			"would break connections, like a stateless service without agents, is only warned about.",
		Example: "  guideway config compile config.yaml > plan.json\n" +
			"  guideway-forwarder replay --plan plan.json --in in.pcap --out out.pcap",
		Args: configFiles,
		RunE: func(command *cobra.Command, files []string) error {
			reader := config.Reader{Machine: cmp.Or(name, config.HostName()), ReadFile: config.ReadFromDisk}
			c, err := loadConfig(command.ErrOrStderr(), reader.LoadToCompile, files)
			if err != nil {
				return err
			}
			text, err := planJSON(compile.Compile(c, compile.States{}, 1))
			if err != nil {
				return err
			}
			_, err = command.OutOrStdout().Write(text)
			return err
		},
	}
	addMachine(command, &name)
	return command
}

func configFiles(command *cobra.Command, files []string) error {
	if len(files) == 0 {
		return fmt.Errorf("FILE is missing: give a config file or a directory of them, like `%s /etc/guideway/guideway.yaml`", command.CommandPath())
	}
	return nil
}

// loadConfig reads a config and prints what is wrong with it.
func loadConfig(stderr io.Writer, load func(...string) (*config.Config, error), files []string) (*config.Config, error) {
	c, err := load(files...)
	var refusal *config.Refusal
	if errors.As(err, &refusal) {
		for _, problem := range refusal.Errors {
			fmt.Fprintf(stderr, "error: %s\n", problem)
		}
		printWarnings(stderr, refusal.Warnings)
		text := output.Counted(len(refusal.Errors), "error")
		if n := len(refusal.Warnings); n > 0 {
			text += ", " + output.Counted(n, "warning")
		}
		fmt.Fprintln(stderr, text)
		return nil, commandline.ErrReported
	}
	if err != nil {
		return nil, err
	}
	printWarnings(stderr, c.Warnings)
	return c, nil
}

func printWarnings(stderr io.Writer, warnings config.Problems) {
	for _, warning := range warnings {
		fmt.Fprintf(stderr, "warning: %s\n", warning)
	}
}

func summary(c *config.Config) string {
	vips, names := 0, map[string]bool{}
	services := c.ServicesHere()
	for _, service := range services {
		vips += len(service.VIPs)
		for _, member := range service.Members {
			names[member.Backend.Name] = true
		}
	}
	text := fmt.Sprintf("config is good: %s, %s, %s",
		output.Counted(len(services), "service"), output.Counted(vips, "vip"), output.Counted(len(names), "backend"))
	if elsewhere := len(c.Services) - len(services); elsewhere > 0 {
		text += fmt.Sprintf("; %s of other shards", output.Counted(elsewhere, "service"))
	}
	if n := len(c.Warnings); n > 0 {
		text += "; " + output.Counted(n, "warning")
	}
	return text
}

// planJSON is proto JSON with two spaces of indent and a newline at the end.
// protojson varies its white space on purpose; indenting anew makes it steady.
func planJSON(plan *planv1.Plan) ([]byte, error) {
	compact, err := protojson.Marshal(plan)
	if err != nil {
		return nil, fmt.Errorf("write plan as JSON: %w", err)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, compact, "", "  "); err != nil {
		return nil, fmt.Errorf("indent plan: %w", err)
	}
	indented.WriteByte('\n')
	return indented.Bytes(), nil
}
