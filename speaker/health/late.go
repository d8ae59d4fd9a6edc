package health

// Whether a forwarder that does not answer hangs or only waits for a processor: its answering
// thread is examined like all others (threads.go).

import (
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	// The forwarder's thread that answers, within a millisecond.
	answeringThread = "health"
	// A request is given up after this time if that thread waits for a processor: it
	// answers nothing now, and need not be dead.
	waitingMax = 250 * time.Millisecond
)

var (
	errHangs = fmt.Errorf("it does not answer, and its thread for that does not wait for a processor: %w", os.ErrDeadlineExceeded)
	errWaits = fmt.Errorf("it does not answer within %v: its thread for that waits for a processor: %w", waitingMax, os.ErrDeadlineExceeded)
)

// receiveSoon receives by the deadline, or finds out before that the forwarder
// hangs, or waits.
func (c *client) receiveSoon(receive func() error, asked, deadline time.Time) error {
	for next := asked.Add(lateAfter); ; next = time.Now().Add(latePause) {
		last := !next.Before(deadline)
		if last {
			next = deadline
		}
		if err := c.conn.SetReadDeadline(next); err != nil {
			return err
		}
		err := receive()
		if last || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		now := time.Now()
		thread, known := c.watch(c.threads, answeringThread, now, now, now.Sub(asked))
		switch {
		case known && thread.hangs:
			return errHangs
		case known && now.Sub(asked) > waitingMax:
			return errWaits
		}
	}
}
