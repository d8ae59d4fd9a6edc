package brain

// Compares how loaded the backends of a group are.

// setLoads of those that are active and whose agents measure. The load is the number of open
// requests per unit of the weight in effect, relative to that of all of them together. While
// they have less than one request open, it would be noise.
func setLoads(group []BackendView) {
	var open, weight float64
	for _, b := range group {
		if b.isMeasured() {
			open += b.Answers.Open
			weight += b.weightInEffect()
		}
	}
	if open < 1 {
		return
	}
	for i := range group {
		if b := &group[i]; b.isMeasured() {
			b.Load = new(b.Answers.Open / b.weightInEffect() * weight / open)
		}
	}
}

func (b *BackendView) isMeasured() bool {
	return b.State == stateName(stateActive) && b.Answers != nil && b.weightInEffect() > 0
}

func (b *BackendView) weightInEffect() float64 {
	return float64(b.Weight) * float64(b.WeightPercent) / 100
}
