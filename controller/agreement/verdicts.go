package agreement

// Vote of a controller about a backend.
type Vote uint8

const (
	// Unknown: it was not probed there yet.
	Unknown Vote = iota
	// Down by its health checks.
	Down
	// Keeps its connections and gets no new ones.
	Keeps
	// TakesNew connections.
	TakesNew
)

// Verdicts of one controller, by set of pools and backend; what is missing is
// Unknown.
type Verdicts map[string]map[string]Vote

// Majority of the votes that know: down is what more than half find so. Of the
// others a backend takes new connections unless more find that it does not.
func Majority(votes []Vote) Vote {
	var counts [TakesNew + 1]int
	for _, vote := range votes {
		counts[vote]++
	}
	known := len(votes) - counts[Unknown]
	switch {
	case known == 0:
		return Unknown
	case 2*counts[Down] > known:
		return Down
	case counts[Keeps] > counts[TakesNew]:
		return Keeps
	}
	return TakesNew
}

// Votes of the other live controllers about a backend.
func (s *Seen) Votes(but, group, backend string) (votes []Vote) {
	if s == nil {
		return nil
	}
	for machine, verdicts := range s.Verdicts {
		if machine != but {
			votes = append(votes, verdicts[group][backend])
		}
	}
	return votes
}
