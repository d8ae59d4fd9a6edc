package health

// Whether a forwarder that does not answer hangs, or the machine is only short
// of processor time: the kernel knows. A thread with a request to answer that
// neither runs nor waits to be run will not answer.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// A request is answered within a millisecond.
	lateAfter = 100 * time.Millisecond
	// Between two looks at a thread that is late.
	latePause = 25 * time.Millisecond
	// Looks, one after the other, in which a thread that hangs was not runnable.
	looksMax = 2
	// The forwarder's thread that answers.
	answeringThread = "health"
)

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
		if c.runnable() {
			idle = 0
		} else if idle++; idle >= looksMax {
			return errHangs
		}
	}
}

// runnable: the forwarder's thread that answers runs, or waits for a processor;
// or it is not known.
func (c *client) runnable() bool {
	if c.pid == 0 {
		return true
	}
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", c.pid)) // the pattern is good
	for _, name := range names {
		if text, err := os.ReadFile(name); err != nil || strings.TrimSpace(string(text)) != answeringThread {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(name), "stat"))
		if err != nil {
			return true
		}
		// The name is in parentheses; the state comes behind it.
		text := string(stat)
		state := strings.TrimSpace(text[strings.LastIndexByte(text, ')')+1:])
		return strings.HasPrefix(state, "R")
	}
	return true
}
