package api

import "time"

const (
	// Refusals in a row that are written, and then one in this time.
	refusalsMax     = 20
	refusalInterval = 10 * time.Second
)

// budget limits what refused callers write: they could push other lines out.
type budget struct {
	left    int
	since   time.Time
	counted int
}

func newBudget() budget { return budget{left: refusalsMax} }

// take a place for a line; false: it is only counted.
func (b *budget) take(now time.Time) bool {
	if earned := int(now.Sub(b.since) / refusalInterval); earned > 0 {
		b.left, b.since = min(refusalsMax, b.left+earned), now
	}
	if b.left == 0 {
		b.counted++
		return false
	}
	b.left--
	return true
}

// unwritten returns how many lines were only counted since it was last called.
func (b *budget) unwritten() int {
	counted := b.counted
	b.counted = 0
	return counted
}
