package brain

// Slow start: a backend that comes back has cold caches, so its weight increases in steps.
// Each step is a new plan; the shares of the others stay in proportion.

import (
	"fmt"
	"time"

	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
)

// stepSlowStart gives a backend its part of the weight, and at last all of it.
func (h *healthState) stepSlowStart(at *step, pool *config.Pool, b *poolBackend, again *earliest) {
	if b.slowSince.IsZero() {
		return
	}
	b.fifths = fifthsAfter(at.now.Sub(b.slowSince), pool.SlowStart)
	if b.fifths == compile.AllFifths {
		b.slowSince, b.fifths = time.Time{}, 0
		return
	}
	again.add(b.slowSince.Add(pool.SlowStart * time.Duration(b.fifths) / (compile.AllFifths - 1)))
	b.reason += fmt.Sprintf("; slow start with %d %% of its weight", percent(b.fifths))
}

// fifthsAfter a part of the time: one at once, all at its end.
func fifthsAfter(elapsed, whole time.Duration) uint32 {
	if elapsed >= whole {
		return compile.AllFifths
	}
	return 1 + uint32((compile.AllFifths-1)*elapsed/whole)
}

// fifthsOf its weight a backend has in a pool.
func (h *healthState) fifthsOf(pool, backend string) uint32 {
	b := h.backends[compile.PoolBackend{Pool: pool, Backend: backend}]
	if b == nil || b.fifths == 0 {
		return compile.AllFifths
	}
	return b.fifths
}

func percent(fifths uint32) uint32 { return fifths * 100 / compile.AllFifths }
