package session

import "time"

// Datagrams that one sender may send: a largest state each second, with as much again
// in reserve for a clock that is not regular. Forging them for a sender shuts out
// that sender alone, and costs a digest for each that is let through.
const (
	datagramsPerSecond = PartsMax
	datagramsBurst     = 2 * PartsMax
)

// limit is a token bucket.
type limit struct {
	tokens float64
	at     time.Time
}

// take one, if there is one.
func (l *limit) take(now time.Time) bool {
	if l.at.IsZero() {
		l.tokens = datagramsBurst
	} else {
		l.tokens = min(datagramsBurst, l.tokens+datagramsPerSecond*now.Sub(l.at).Seconds())
	}
	l.at = now
	if l.tokens < 1 {
		return false
	}
	l.tokens--
	return true
}
