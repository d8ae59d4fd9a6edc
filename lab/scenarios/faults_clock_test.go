//go:build vms

package scenarios_test

import (
	"time"

	"golang.org/x/sys/unix"
)

// The wall clock of a whole machine is stepped, and only of an emulated one.
func init() {
	if !emulated {
		return
	}
	stepWallClock = func(step time.Duration) error {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
			return err
		}
		stepped := unix.NsecToTimespec(now.Nano() + int64(step))
		return unix.ClockSettime(unix.CLOCK_REALTIME, &stepped)
	}
}
