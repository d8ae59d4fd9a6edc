package commandline

import "errors"

// How `guideway` ends beyond that.
const (
	// Of `config plan` alone, whose mistakes all end with exitFailed.
	ExitChanges = 2
	// Of `drain --wait` alone: drained, but before traffic or connections had gone.
	ExitTimeUp = 3
)

// ErrReported ends the program with exitFailed when everything was said already.
var ErrReported = errors.New("reported")

// ErrTimeUp ends the program with exitTimeUp: `drain --wait` waited long enough.
var ErrTimeUp = errors.New("time is up")

// ErrChanges ends the program with exitChanges: `config plan` found some.
var ErrChanges = errors.New("changes")
