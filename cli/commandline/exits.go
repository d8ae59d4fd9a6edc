package commandline

import "errors"

// How `guideway` ends beyond ExitFailed and ExitUsage.
const (
	// Of `config plan` alone, whose mistakes all end with ExitFailed.
	ExitChanges = 2
	// Of `drain --wait` alone: drained, but before traffic or connections had gone.
	ExitTimeUp = 3
	// Of `config import` alone: a configuration was written, and something was left out.
	ExitLeftOut = 3
)

// ErrReported ends the program with ExitFailed when everything was said already.
var ErrReported = errors.New("reported")

// ErrTimeUp ends the program with ExitTimeUp: `drain --wait` waited long enough.
var ErrTimeUp = errors.New("time is up")

// ErrChanges ends the program with ExitChanges: `config plan` found some.
var ErrChanges = errors.New("changes")

// ErrLeftOut ends the program with ExitLeftOut: `config import` could not convert all.
var ErrLeftOut = errors.New("something was left out")
