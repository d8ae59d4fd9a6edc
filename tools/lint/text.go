package main

import (
	"regexp"
	"strings"
)

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
