package config

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/config"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

func configHistoryCommand() *cobra.Command {
	var m machine.Machine
	var format string
	command := &cobra.Command{
		Use:   "history",
		Short: "List the configurations that were in use: who applied them, when and why",
		Long: "Lists the configurations that were in use on this machine, the latest first. The\n" +
			"controller keeps the last 50, or 64 MiB, in its state directory. If machines share\n" +
			"their configuration by etcd, the last 50 there are listed.",
		Args: commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			response, err := configHistory(command.Context(), m)
			if err != nil {
				return err
			}
			if response.NotRecorded != "" {
				fmt.Fprintf(command.ErrOrStderr(), "warning: the latest config is not recorded, which is tried again: %s\n", response.NotRecorded)
			}
			if response.Refused != "" {
				fmt.Fprintf(command.ErrOrStderr(), "warning: what was loaded last is refused, and the one in use goes on: %s\n", response.Refused)
			}
			return historyListing(response).Print(command.OutOrStdout(), format)
		},
	}
	commandline.AddOutput(command, &format, commandline.TableFormats)
	machine.AddController(command, &m)
	return command
}

func historyListing(response *controllerv1.GetConfigHistoryResponse) output.Listing {
	list := output.Listing{
		Value:  plainjson.Value{Message: response},
		Header: []string{"NUMBER", "TIME", "HOW", "USER", "MESSAGE", "FROM", "DIGEST"}, WideFrom: 5,
		None: "no config was in use here yet",
	}
	for _, r := range response.Records {
		number, how := strconv.FormatUint(r.Number, 10), r.How
		if r.InUse {
			number += " (in use)"
		}
		if r.RollbackTo > 0 {
			how = fmt.Sprintf("rollback to %d", r.RollbackTo)
		}
		list.Rows = append(list.Rows, []string{
			number, r.Time.AsTime().Local().Format("2006-01-02 15:04:05"), how, output.Dash(r.User), output.Dash(r.Message),
			output.Dash(strings.Join(r.From, " ")), r.Digest,
		})
	}
	return list
}

func configHistory(ctx context.Context, m machine.Machine) (*controllerv1.GetConfigHistoryResponse, error) {
	var response *controllerv1.GetConfigHistoryResponse
	err := m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) (err error) {
		response, err = client.GetConfigHistory(ctx, &controllerv1.GetConfigHistoryRequest{})
		return err
	})
	return response, err
}

func recordedConfig(ctx context.Context, m machine.Machine, number uint64) (*controllerv1.GetConfigResponse, error) {
	var response *controllerv1.GetConfigResponse
	err := m.OperateController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) (err error) {
		response, err = client.GetConfig(ctx, &controllerv1.GetConfigRequest{Number: number})
		return err
	})
	if r := (machine.Refused{}); errors.As(err, &r) && r.Code == codes.Unimplemented {
		return nil, fmt.Errorf("%w: the controller is of another version than this program", err)
	}
	return response, err
}

func configDiffCommand() *cobra.Command {
	var m machine.Machine
	var format string
	command := &cobra.Command{
		Use:   "diff NUMBER NUMBER",
		Short: "Compare two configurations of the history",
		Long: "Compares two configurations by their meaning, as `guideway config plan` does: a\n" +
			"default that is written out is no change. The lines that differ follow.",
		Example: "  guideway config diff 11 12\n" +
			"  guideway config diff 11 0      # 0 is the one in use",
		Args: commandline.Arguments("NUMBER", "NUMBER"),
		RunE: func(command *cobra.Command, args []string) error {
			var numbers [2]uint64
			for i, arg := range args {
				var err error
				if numbers[i], err = recordNumber(arg); err != nil {
					return err
				}
			}
			var configs [2]*controllerv1.GetConfigResponse
			for i, number := range numbers {
				var err error
				if configs[i], err = recordedConfig(command.Context(), m, number); err != nil {
					return err
				}
			}
			return printDiff(command, format, configs[0], configs[1])
		},
	}
	commandline.AddOutput(command, &format, commandline.TextFormats)
	machine.AddController(command, &m)
	return command
}

type shownDiff struct {
	Changes []plainjson.Value `json:"changes"`
	// Why only lines are compared.
	NotCompared string `json:"not_compared,omitempty"`
	Lines       string `json:"lines"`
}

func printDiff(command *cobra.Command, format string, before, after *controllerv1.GetConfigResponse) error {
	var changes []*controllerv1.ConfigChange
	shown := shownDiff{Lines: printable(differences(before, after))}
	var meanings [2]*config.Config
	for i, c := range []*controllerv1.GetConfigResponse{before, after} {
		var err error
		if meanings[i], err = meaningOf(c); err != nil {
			shown.NotCompared = fmt.Sprintf("number %d is no good config by this version, so only lines are compared: %s", c.Record.GetNumber(), firstLine(err))
		}
	}
	if shown.NotCompared == "" {
		changes = api.DescribeChanges(config.Compare(meanings[0], meanings[1]))
	}
	shown.Changes = plainjson.List(changes)
	out := command.OutOrStdout()
	if format != "table" {
		return commandline.PrintValue(out, format, shown)
	}
	switch {
	case shown.NotCompared != "":
		fmt.Fprintln(command.ErrOrStderr(), "warning: "+shown.NotCompared)
	case shown.Lines == "":
		return nil
	case len(changes) == 0:
		fmt.Fprint(out, "no change: both mean the same\n\n")
	default:
		if err := changesTable(changes).PrintTable(out, false); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	_, err := fmt.Fprint(out, shown.Lines)
	return err
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// Stands for the machine's own files where the config comes from etcd, which has
// what all machines share.
const anyMachine = "machine: {name: any, addresses: [192.0.2.1, \"2001:db8::1\"]}\n"

// meaningOf a recorded config. Files that it names are not read: they may be another
// machine's, or gone.
func meaningOf(c *controllerv1.GetConfigResponse) (*config.Config, error) {
	var sources []config.Source
	for _, file := range c.Files {
		sources = append(sources, config.Source{Name: file.Name, Data: file.Data})
	}
	unread := func(string) ([]byte, fs.FileMode, error) {
		return []byte("the secret of another machine..."), 0o600, nil
	}
	parsed, err := config.ParseToCompile(sources, unread)
	if err == nil || len(sources) != 1 {
		return parsed, err
	}
	sources[0].Generation = max(1, c.Record.GetNumber())
	if shared, problem := config.ParseToCompile(append(sources, config.Source{Name: "machine", Data: []byte(anyMachine)}), unread); problem == nil {
		return shared, nil
	}
	return nil, err
}

// recordNumber is a mistake of the command line if it is none; 0 is the one in
// use.
func recordNumber(text string) (uint64, error) {
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, commandline.Usagef("%q is no number of a config: `guideway config history` lists them", text)
	}
	return number, nil
}

// differences of each file that either has; nothing where they are alike.
func differences(before, after *controllerv1.GetConfigResponse) (out []byte) {
	files := func(c *controllerv1.GetConfigResponse) (names []string, data map[string][]byte) {
		data = map[string][]byte{}
		for _, file := range c.Files {
			names = append(names, file.Name)
			data[file.Name] = file.Data
		}
		return names, data
	}
	oldNames, old := files(before)
	newNames, new := files(after)
	for _, name := range newNames {
		if _, known := old[name]; !known {
			oldNames = append(oldNames, name)
		}
	}
	for _, name := range oldNames {
		label := func(c *controllerv1.GetConfigResponse) string {
			return fmt.Sprintf("%s (number %d)", name, c.Record.GetNumber())
		}
		out = append(out, diff.Diff(label(before), old[name], label(after), new[name])...)
	}
	return out
}
