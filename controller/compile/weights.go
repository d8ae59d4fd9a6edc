package compile

import "github.com/guideway/guideway/controller/config"

// AllFifths is the whole weight of a backend.
const AllFifths = 5

// The forwarder takes no weights above this (WEIGHT_MAX of plan/src/limits.rs).
const weightMax = 1000

// memberWeights are the config's, but for those of backends in slow start. Where
// there is one, all are five times as large if they fit, so that a fifth of
// weight 1 is a whole number. Only their proportion counts: the forwarder's table
// is the same by both.
func memberWeights(members []config.Member, states States) []uint32 {
	weights, fifths := make([]uint32, len(members)), make([]uint32, len(members))
	isWhole, most := true, uint32(0)
	for i, member := range members {
		weights[i], fifths[i] = member.Weight, Fifths(member, states)
		isWhole = isWhole && (fifths[i] == AllFifths || member.Weight == 0)
		most = max(most, member.Weight)
	}
	if isWhole {
		return weights
	}
	for i, weight := range weights {
		switch {
		case weight == 0: // drains
		case most*AllFifths <= weightMax:
			weights[i] = weight * fifths[i]
		default:
			weights[i] = max(1, weight*fifths[i]/AllFifths)
		}
	}
	return weights
}

// Fifths of a member's weight: the fewest of what its pools say.
func Fifths(member config.Member, states States) uint32 {
	least := uint32(AllFifths)
	if states.Fifths == nil {
		return least
	}
	for _, pool := range member.Pools {
		least = min(least, states.Fifths(pool, member.Backend.Name))
	}
	return least
}
