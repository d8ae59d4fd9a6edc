package report

import (
	"math"
	"slices"
)

// Share of one backend in new connections.
type Share struct {
	Backend string `json:"backend"`
	// Share and Ideal are fractions of all new connections.
	Share float64 `json:"share"`
	Ideal float64 `json:"ideal"`
	// Sigma is the standard deviation that chance alone gives, relative to
	// the ideal.
	Sigma float64 `json:"sigma"`
}

// NewShares of the backends, which all have the same weight. A backend that
// served no connection has its line too; one that should not have served has an
// ideal of zero.
func NewShares(counts map[string]int, backends []string) []Share {
	total := 0
	for _, n := range counts {
		total += n
	}
	all := slices.Clone(backends)
	for name := range counts {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	var list []Share
	for _, name := range all {
		share := Share{Backend: name}
		if slices.Contains(backends, name) {
			share.Ideal = 1 / float64(len(backends))
			share.Sigma = math.Sqrt((1 - share.Ideal) / (float64(max(total, 1)) * share.Ideal))
		}
		share.Share = float64(counts[name]) / float64(max(total, 1))
		list = append(list, share)
	}
	return list
}

// Deviation from the ideal, relative to it.
func (s Share) Deviation() float64 {
	if s.Ideal == 0 {
		return math.Inf(1)
	}
	return s.Share/s.Ideal - 1
}

// Tolerance: the larger of 5 % and what chance exceeds once in 16,000 times.
func (s Share) Tolerance() float64 { return max(0.05, 4*s.Sigma) }

// Good if chance explains the share.
func (s Share) Good() bool { return math.Abs(s.Deviation()) <= s.Tolerance() }
