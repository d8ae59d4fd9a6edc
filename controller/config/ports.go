package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// parsePorts takes `443` or `8000-8100`.
func parsePorts(text string) (PortRange, string) {
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	first, firstOK := parsePort(low)
	last, lastOK := parsePort(high)
	switch {
	case !firstOK || !lastOK:
		return PortRange{}, fmt.Sprintf("is %q: give a port from 1 to 65535, or a range like \"8000-8100\"", text)
	case first > last:
		return PortRange{}, fmt.Sprintf("is %q, which ends before it begins: write \"%d-%d\"", text, last, first)
	}
	return PortRange{first, last}, ""
}

func parsePort(text string) (uint16, bool) {
	text = strings.TrimSpace(text)
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil && n > 0 && text[0] != '+'
}

// mergePorts sorts ranges and joins those that overlap or touch.
func mergePorts(ranges []PortRange) []PortRange {
	slices.SortFunc(ranges, func(a, b PortRange) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	var merged []PortRange
	for _, next := range ranges {
		if n := len(merged); n > 0 && int(next.First) <= int(merged[n-1].Last)+1 {
			merged[n-1].Last = max(merged[n-1].Last, next.Last)
			continue
		}
		merged = append(merged, next)
	}
	return merged
}

func (p PortRange) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}
