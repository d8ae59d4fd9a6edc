package main

import "github.com/guideway/guideway/cli/commandline"

// What the verbs say of their command lines, by short names.
const (
	exitFailed = commandline.ExitFailed
	exitUsage  = commandline.ExitUsage
	// Of `config plan` alone, whose mistakes all end with exitFailed.
	exitChanges = 2
	// Of `drain --wait` alone: drained, but before traffic or connections had gone.
	exitTimeUp = 3
)

var (
	usagef         = commandline.Usagef
	exitCode       = commandline.ExitCode
	strict         = commandline.Strict
	failsByUsage   = commandline.FailsByUsage
	group          = commandline.Group
	unknownCommand = commandline.Unknown
	noArguments    = commandline.NoArguments
	arguments      = commandline.Arguments
	addChoice      = commandline.AddChoice
	addOutput      = commandline.AddOutput
	tableFormats   = commandline.TableFormats
	textFormats    = commandline.TextFormats
	printValue     = commandline.PrintValue
)
