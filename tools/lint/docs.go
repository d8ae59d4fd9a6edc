package main

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

const architecture = "ARCHITECTURE.md"

// notMapped: folders that explain themselves.
var notMapped = []string{"LICENSES"}

var (
	mapLine = regexp.MustCompile(`(?m)^([a-z]+)/ {2,}\S`)
	mdLink  = regexp.MustCompile(`\]\(([^)#\s]+)[^)]*\)`)
)

// codeMap: the map in ARCHITECTURE.md has a line for each folder at the top,
// and no line for one that is not there. It looked at lines of the map.
func codeMap(t *tree) (violations []violation, looked int) {
	text := t.read(architecture)
	var mapped, folders []string
	for _, found := range mapLine.FindAllStringSubmatchIndex(text, -1) {
		looked++
		folder := text[found[2]:found[3]]
		mapped = append(mapped, folder)
		if len(t.under(folder, "")) == 0 {
			violations = append(violations, violation{architecture, lineOf(text, found[0]), folder + "/ is in the code map but not in the tree"})
		}
	}
	for _, file := range t.paths {
		folder, _, nested := strings.Cut(file, "/")
		if !nested || strings.HasPrefix(folder, ".") || slices.Contains(notMapped, folder) || slices.Contains(folders, folder) {
			continue
		}
		folders = append(folders, folder)
		if !slices.Contains(mapped, folder) {
			violations = append(violations, violation{architecture, 0, folder + "/ is missing from the code map"})
		}
	}
	return violations, looked
}

// documentLinks: links between documents lead somewhere. It looked at links.
func documentLinks(t *tree) (violations []violation, looked int) {
	for _, file := range t.under("", ".md") {
		text := t.read(file)
		for _, found := range mdLink.FindAllStringSubmatchIndex(text, -1) {
			target := text[found[2]:found[3]]
			if strings.Contains(target, ":") {
				continue // https:, mailto:
			}
			looked++
			target = path.Join(path.Dir(file), target)
			if !slices.Contains(t.paths, target) && len(t.under(target, "")) == 0 {
				violations = append(violations, violation{file, lineOf(text, found[0]), "a link to " + target + ", which is not there"})
			}
		}
	}
	return violations, looked
}
