package console

import (
	"context"
	"time"
)

// gate lets one page be made at a time, and rests after each as long as it took: readers,
// however many there are and whatever they search for, cost half of one processor at most.
type gate chan struct{}

func newGate() gate { return make(gate, 1) }

// Pages that take less are made without a rest.
const restMin = time.Millisecond

func (g gate) enter(ctx context.Context) (leave func(), err error) {
	select {
	case g <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	begun := time.Now()
	return func() {
		if took := time.Since(begun); took >= restMin {
			time.AfterFunc(took, func() { <-g })
		} else {
			<-g
		}
	}, nil
}
