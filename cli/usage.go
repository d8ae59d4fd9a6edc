package main

// What a command line may be, and how the program ends: 0 done, 1 refused or
// failed, 2 a command line that means nothing.

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a mistake in the command line.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

func usagef(format string, values ...any) error {
	return usageError{fmt.Errorf(format, values...)}
}

// exitCode tells mistakes in the command line from what else can go wrong.
func exitCode(err error) int {
	if errors.As(err, &usageError{}) {
		return exitUsage
	}
	if err != nil {
		return exitFailed
	}
	return 0
}

// strict makes mistakes that cobra finds usage errors, for a command and all
// below it, and says where to read on.
func strict(command *cobra.Command) {
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
		strict(below)
	}
}

func asUsage(command *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return usagef("%w: see `%s --help`", err, command.CommandPath())
}

// missingFlags: cobra looks for them later, and tells no usage error from
// others.
func missingFlags(command *cobra.Command) error {
	if err := command.ValidateRequiredFlags(); err != nil {
		return fmt.Errorf("%w: as in `guideway %s`", err, command.Use)
	}
	return nil
}

// noArguments is for commands that have flags only.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%q is too much: there are no arguments here", args[0])
	}
	return nil
}

// arguments is for commands that have these, all of them.
func arguments(names ...string) cobra.PositionalArgs {
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

// addChoice adds a flag whose value is one of the allowed, by default the first.
func addChoice(command *cobra.Command, chosen *string, name, short, usage string, allowed ...string) {
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
	tableFormats = []string{"table", "wide", "json", "yaml"}
	textFormats  = []string{"table", "json", "yaml"}
)

func addOutput(command *cobra.Command, format *string, formats []string) {
	addChoice(command, format, "output", "o", "how to print", formats...)
}
