package health

// Whether a forwarder that does not answer hangs, or the machine is only short
// of processor time: the kernel knows. A thread with a request to answer that
// neither runs nor waits to be run will not answer.

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// The forwarder's thread that answers, within a millisecond.
const answeringThread = "health"

var errHangs = fmt.Errorf("no answer within %v, and its thread does not wait for a processor: %w", lateAfter, os.ErrDeadlineExceeded)

// receiveSoon receives by the deadline, or finds out before that the forwarder
// hangs.
func (c *client) receiveSoon(receive func() error, asked, deadline time.Time) error {
	idle := 0
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
		if found, ok := c.sample(answeringThread); !ok || found.runnable {
			idle = 0
		} else if idle++; idle >= looksMax {
			return errHangs
		}
	}
}
