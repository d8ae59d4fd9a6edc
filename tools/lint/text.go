package main

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"
)

// pageWidth of comments; code is the formatters' business.
const pageWidth = 120

// commentWidths looked at files with comments.
func commentWidths(t *tree) (violations []violation, looked int) {
	for _, file := range t.paths {
		marker := commentMarker(file)
		if marker == "" || isGeneratedGo(file) || strings.Contains(file, "/testdata/") {
			continue
		}
		looked++
		for i, line := range strings.Split(t.read(file), "\n") {
			width := utf8.RuneCountInString(line)
			if width > pageWidth && strings.HasPrefix(strings.TrimSpace(line), marker) && !strings.Contains(line, "://") {
				violations = append(violations, violation{file, i + 1, fmt.Sprintf("a comment of %d columns, at most %d", width, pageWidth)})
			}
		}
	}
	return violations, looked
}

func commentMarker(file string) string {
	switch path.Ext(file) {
	case ".rs", ".go", ".c", ".h", ".proto":
		return "//"
	case ".sh", ".yaml", ".toml":
		return "#"
	}
	if path.Base(file) == "Makefile" {
		return "#"
	}
	return ""
}

// foreign are texts that tie the tree to one machine or to one registry.
// Written in pieces, so that this file does not find itself.
var foreign = regexp.MustCompile(strings.Join([]string{
	`/wo` + `rk/(?:main|shared)`,
	`/ro` + `ot/(?:\.|go/)`,
	`/ho` + `me/[a-z]`,
	`(?:static|index)\.cra` + `tes\.io`,
	`pro` + `xy\.golang\.org`,
	`deb\.deb` + `ian\.org`,
	`archive\.ubu` + `ntu\.com`,
	`py` + `pi\.org|pythonho` + `sted\.org`,
	`registry\.np` + `mjs`,
	`repo\.mav` + `en`,
}, "|"))

// foreignPlaces looked at text files.
func foreignPlaces(t *tree) (violations []violation, looked int) {
	for _, file := range t.paths {
		text := t.read(file)
		if text == "" || strings.HasSuffix(file, ".lock") {
			continue
		}
		looked++
		for _, at := range foreign.FindAllStringIndex(text, -1) {
			violations = append(violations, violation{file, lineOf(text, at[0]),
				text[at[0]:at[1]] + " belongs to one machine or registry"})
		}
	}
	return violations, looked
}

// products are files that compilers write: folders of theirs, and endings.
var products = regexp.MustCompile(`(?:^|/)(?:target|bin|__pycache__|node_modules)/|\.(?:o|a|so|rlib|rmeta|pyc|test|exe)$`)

// buildProducts looked at files.
func buildProducts(t *tree) (violations []violation, looked int) {
	for _, file := range t.paths {
		looked++
		if products.MatchString(file) {
			violations = append(violations, violation{file, 0,
				"a build product: git rm --cached it, and name its folder in .gitignore"})
		}
	}
	return violations, looked
}
