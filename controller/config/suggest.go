package config

import (
	"fmt"
	"strings"
)

// closest returns the candidate that the word was probably meant to be, or
// nothing: one that takes at most a third of its letters to change.
func closest(word string, candidates []string) string {
	best, bestDistance := "", len(word)
	for _, candidate := range candidates {
		// Long names are not compared: the cost is their product.
		if len(word) > 64 || len(candidate) > 64 {
			continue
		}
		most := max(len(word), len(candidate)) / 3
		if d := distance(strings.ToLower(word), strings.ToLower(candidate)); d <= max(most, 1) && d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// didYouMean ends a sentence about an unknown name.
func didYouMean(word string, candidates []string, cure string) string {
	if guess := closest(word, candidates); guess != "" {
		return fmt.Sprintf("did you mean %q?", guess)
	}
	return cure
}

// distance counts the insertions, removals and replacements between two words
// (Levenshtein), keeping one row of the table.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
