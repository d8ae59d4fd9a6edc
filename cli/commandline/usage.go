// Package commandline has what the command-line programs have in common: parsing command
// lines, exit statuses (0 done, 1 refused or failed, 2 usage error), and printing values.
package commandline

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// How a program ends that is not done.
const (
	ExitFailed = 1
	ExitUsage  = 2
)

// UsageError is a mistake in the command line.
type UsageError struct{ error }

// Unwrap the mistake.
func (u UsageError) Unwrap() error { return u.error }

// Usagef makes a UsageError.
func Usagef(format string, values ...any) error {
	return UsageError{fmt.Errorf(format, values...)}
}

// ExitCode of mistakes in the command line differs from that of other failures.
func ExitCode(err error) int {
	if errors.As(err, &UsageError{}) {
		return ExitUsage
	}
	if err != nil {
		return ExitFailed
	}
	return 0
}

// Strict makes mistakes that cobra finds usage errors, for a command and all
// below it, and says where to read on.
func Strict(command *cobra.Command) {
	if check := command.Args; check != nil {
		command.Args = func(command *cobra.Command, args []string) error {
			err := check(command, args)
			if err == nil {
				err = missingFlags(command)
			}
			return asUsage(command, err)
		}
	}
	command.SetFlagErrorFunc(asUsage)
	for _, below := range command.Commands() {
		Strict(below)
	}
}

// FailsByUsage marks a command that ends with ExitFailed after any error, a
// mistake in the command line too: its ExitUsage means something else.
func FailsByUsage(command *cobra.Command) { command.Annotations = map[string]string{failsByUsage: ""} }

const failsByUsage = "fails-by-usage"

func asUsage(command *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	if _, fails := command.Annotations[failsByUsage]; fails {
		return fmt.Errorf("%w: see `%s --help`", withoutUsage(err), command.CommandPath())
	}
	return Usagef("%w: see `%s --help`", err, command.CommandPath())
}

func withoutUsage(err error) error {
	if usage := (UsageError{}); errors.As(err, &usage) {
		return usage.error
	}
	return err
}

// missingFlags: cobra looks for them later, and returns no usage error but
// others.
func missingFlags(command *cobra.Command) error {
	if err := command.ValidateRequiredFlags(); err != nil {
		return fmt.Errorf("%w: as in `%s %s`", err, command.Root().Name(), command.Use)
	}
	return nil
}

// NoArguments is for commands that have flags only.
func NoArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%q is too much: there are no arguments here", args[0])
	}
	return nil
}

// Arguments is for commands that have these, all of them.
func Arguments(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		wanted := strings.Join(names, " ")
		switch {
		case len(args) < len(names):
			return fmt.Errorf("%s is missing: give %s", names[len(args)], wanted)
		case len(args) > len(names):
			return fmt.Errorf("%q is too much: give %s", args[len(names)], wanted)
		}
		return nil
	}
}

// choice is a flag's value that is one of a few words.
type choice struct {
	chosen  *string
	allowed []string
}

// AddChoice adds a flag whose value is one of the allowed, by default the first.
func AddChoice(command *cobra.Command, chosen *string, name, short, usage string, allowed ...string) {
	*chosen = allowed[0]
	command.Flags().VarP(choice{chosen, allowed}, name, short, usage+": "+strings.Join(allowed, ", "))
	_ = command.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(allowed, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
}

func (c choice) String() string { return *c.chosen }

// Type is what stands for the value in the help.
func (c choice) Type() string { return "WORD" }

func (c choice) Set(text string) error {
	if !slices.Contains(c.allowed, text) {
		return fmt.Errorf("give one of %s", strings.Join(c.allowed, ", "))
	}
	*c.chosen = text
	return nil
}

// Formats of what is shown.
var (
	TableFormats = []string{"table", "wide", "json", "yaml"}
	TextFormats  = []string{"table", "json", "yaml"}
)

// AddOutput adds the flag that says how to print: one of these formats.
func AddOutput(command *cobra.Command, format *string, formats []string) {
	AddChoice(command, format, "output", "o", "how to print", formats...)
}

// Group is a command that only holds others. Left alone, cobra answers a
// misspelt verb below the root with help and success.
func Group(use, short string, verbs ...*cobra.Command) *cobra.Command {
	command := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return Usagef("%s: give one of %s", command.CommandPath(), strings.Join(namesOf(command), ", "))
			}
			return Unknown(command, args[0])
		},
		SuggestionsMinimumDistance: 2,
	}
	command.AddCommand(verbs...)
	return command
}

// Unknown verb of a command: the error names similar ones.
func Unknown(command *cobra.Command, name string) error {
	hint := "give one of " + strings.Join(namesOf(command), ", ")
	if similar := command.SuggestionsFor(name); len(similar) > 0 {
		hint = "did you mean " + strings.Join(similar, " or ") + "?"
	}
	return Usagef("unknown command %q for %q: %s", name, command.CommandPath(), hint)
}

func namesOf(command *cobra.Command) []string {
	var names []string
	for _, below := range command.Commands() {
		if below.IsAvailableCommand() {
			names = append(names, below.Name())
		}
	}
	return names
}
