package buckets

// Generations count steps. One that lies far ahead was not reached by steps: somebody wrote
// it by hand, or wants all others to count from there to where the number overflows. Such a
// generation is refused, so numbers never wrap.

const (
	// GenerationMax of a map or config that is read.
	GenerationMax = 1 << 62
	// Ahead of what a machine has: ten steps a second for 13 years.
	generationStepsMax = 1 << 32
	// For one that has none and knows of none.
	generationFirstMax = 1 << 48
)

// IsJump from a generation that is known to be right, 0 where none is.
func IsJump(from, to uint64) bool {
	if from == 0 {
		return to > generationFirstMax
	}
	return to > from && to-from > generationStepsMax
}
