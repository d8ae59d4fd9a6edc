package blackbox

import (
	"fmt"
	"math"
)

const (
	// Shares are named as fractions with denominators up to this.
	denominatorMax = 8
	// Up to one failure in this many is called single ones.
	singleOf = 32
)

// Hint says what the share of failed source ports points at; empty: none
// failed. ECMP gives each of n load balancers 1/n of the source ports, and
// Maglev hashing each of n equal backends likewise.
func (r Round) Hint() string {
	failed := r.Failed()
	switch {
	case failed == 0:
		return ""
	case failed == r.Tried:
		return "no source port is answered: does its service serve (guideway show services), is the VIP announced (guideway show bgp)?"
	case failed*singleOf <= r.Tried:
		return "single attempts: lost packets, or a server that is overloaded"
	}
	a, b := fractionOf(failed, r.Tried)
	return fmt.Sprintf("about %d/%d of the source ports: %d of %d load balancers, or %d of %d backends? Follow one: guideway trace --vip %s --port %d --protocol %s --sport %d",
		a, b, a, b, a, b, r.Target.Address, r.Target.Port, r.Target.Protocol, r.Failures[0].SourcePorts[0])
}

// fractionOf a share: the closest to it of those by which one of a few fails, or
// all but one.
func fractionOf(failed, tried int) (a, b int) {
	share := float64(failed) / float64(tried)
	closest := math.Inf(1)
	for denominator := 2; denominator <= denominatorMax; denominator++ {
		for _, numerator := range []int{1, denominator - 1} {
			distance := math.Abs(share - float64(numerator)/float64(denominator))
			if distance < closest {
				a, b, closest = numerator, denominator, distance
			}
		}
	}
	return a, b
}

// reach of a VIP, as the log distinguishes it.
type reach int

const (
	reachUnknown reach = iota
	reachFull
	reachPart
	reachNone
)

func (r Round) reach() reach {
	switch {
	case r.Tried == 0:
		return reachUnknown
	case r.Failed() == 0:
		return reachFull
	case r.Failed() == r.Tried:
		return reachNone
	}
	return reachPart
}

// differs: by more than what chance makes of an equal share (4 standard
// deviations of a difference).
func (r Round) differs(from Round) bool {
	if r.reach() != from.reach() {
		return true
	}
	now, then := float64(r.Failed())/float64(r.Tried), float64(from.Failed())/float64(from.Tried)
	mean := (now + then) / 2
	return math.Abs(now-then) > 4*math.Sqrt(2*mean*(1-mean)/float64(r.Tried))
}
