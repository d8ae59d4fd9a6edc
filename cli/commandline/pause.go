package commandline

import (
	"context"
	"time"
)

// Pause for so long; an error if it is interrupted.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
