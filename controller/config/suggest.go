package config

import (
	"fmt"
	"slices"
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

// begins returns the field for a file that holds what the word names: operators
// write `password` where `password_file` is.
func begins(word string, candidates []string) string {
	if slices.Contains(candidates, word+"_file") {
		return word + "_file"
	}
	return ""
}

// DidYouMean ends a sentence about an unknown name: the closest of those there
// are, or what they are.
func DidYouMean(word string, known []string) string {
	return didYouMean(word, known, listed(known))
}

// listed names what there is, as far as a line has room.
func listed(known []string) string {
	if len(known) == 0 {
		return "there is none"
	}
	known = slices.Clone(known)
	slices.Sort(known)
	known = slices.Compact(known)
	return "there is " + Enumerate(known, namesShown)
}

// Enumerate the first of some names for people, and how many there are beyond.
func Enumerate(names []string, shown int) string {
	if more := len(names) - shown; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), more)
	}
	return strings.Join(names, ", ")
}

const namesShown = 12

// didYouMean ends a sentence about an unknown name.
func didYouMean(word string, candidates []string, cure string) string {
	if guess := closest(word, candidates); guess != "" {
		return fmt.Sprintf("did you mean %q?", guess)
	}
	return cure
}

// distance counts the insertions, removals, replacements and swaps of
// neighbours between two words (Damerau and Levenshtein), keeping three rows of
// the table.
func distance(a, b string) int {
	before, above, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, above, row = above, row, before
		row[0] = i + 1
		for j := range len(b) {
			change := above[j]
			if a[i] != b[j] {
				change++
			}
			row[j+1] = min(change, above[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
