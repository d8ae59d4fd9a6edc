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

// mapEntry is a folder's line in the map with those that continue it.
var mapEntry = regexp.MustCompile(`(?m)^([a-z]+)/ {2,}\S.*\n(?: {4,}\S.*\n)*`)

var mappedFolder = regexp.MustCompile(`\b([a-z0-9_]+)/(?:[^a-zA-Z0-9_]|$)`)

// codeFolders: in the map, each folder's entry names the folders of code in it,
// and none that is not there. It looked at entries.
func codeFolders(t *tree) (violations []violation, looked int) {
	text := t.read(architecture)
	for _, at := range mapEntry.FindAllStringSubmatchIndex(text, -1) {
		looked++
		folder, entry := text[at[2]:at[3]], text[at[0]:at[1]]
		within := foldersOf(t, folder)
		named := map[string]bool{}
		for _, found := range mappedFolder.FindAllStringSubmatch(entry, -1) {
			named[found[1]] = true
			if found[1] != folder && len(t.under(folder, "")) > 0 && !slices.ContainsFunc(t.under(folder, ""), func(file string) bool { return strings.Contains(file, "/"+found[1]+"/") }) {
				violations = append(violations, violation{architecture, lineOf(text, at[0]), folder + "/ has no folder " + found[1] + "/, which its line in the code map names"})
			}
		}
		for _, inside := range within {
			if !named[inside] {
				violations = append(violations, violation{architecture, lineOf(text, at[0]), "the code map does not name " + inside + "/ in " + folder + "/: say what it is for"})
			}
		}
	}
	return violations, looked
}

// foldersOf a folder that have product code in them, without `src`.
func foldersOf(t *tree, folder string) (names []string) {
	for _, file := range t.under(folder, "") {
		if !strings.HasSuffix(file, ".rs") && !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, ".pb.go") {
			continue
		}
		parts := strings.Split(strings.TrimPrefix(file, folder+"/"), "/")
		if parts[0] == "src" {
			parts = parts[1:]
		}
		if len(parts) > 1 && !slices.Contains([]string{"tests", "testdata", "examples", "guideway"}, parts[0]) && !slices.Contains(names, parts[0]) {
			names = append(names, parts[0])
		}
	}
	return names
}

// threadName that a thread is started with.
var threadName = regexp.MustCompile(`\bname\(\s*"([a-z-]+)"\.(?:into|to_owned|to_string)\(\)`)

// threads: each thread of the forwarder that has a name of its own is in
// ARCHITECTURE.md's table. It looked at names.
func threads(t *tree) (violations []violation, looked int) {
	text := t.read(architecture)
	for _, file := range t.under("forwarder/src", ".rs") {
		product, source := t.rustProduct(file), t.read(file)
		for _, at := range threadName.FindAllStringSubmatchIndex(source, -1) {
			if product == "" || product[at[0]] == ' ' {
				continue // a test's
			}
			looked++
			if name := source[at[2]:at[3]]; !strings.Contains(text, "\n| `"+name+"` |") {
				violations = append(violations, violation{file, lineOf(source, at[0]), "the thread " + name + " is not in " + architecture + ": say what it does"})
			}
		}
	}
	return violations, looked
}

// documentPath in backticks: of this tree, if it begins with one of its folders.
var documentPath = regexp.MustCompile("`([a-z_]+)/([a-zA-Z0-9_./-]*)`")

// documentPaths: files and folders that documents name are there. It looked at
// paths.
func documentPaths(t *tree) (violations []violation, looked int) {
	for _, file := range t.under("", ".md") {
		if file == "CHANGELOG.md" { // what was
			continue
		}
		text := t.read(file)
		for _, at := range documentPath.FindAllStringSubmatchIndex(text, -1) {
			if len(t.under(text[at[2]:at[3]], "")) == 0 {
				continue
			}
			looked++
			target := strings.TrimRight(text[at[2]:at[5]], "/")
			if !slices.Contains(t.paths, target) && len(t.under(target, "")) == 0 {
				violations = append(violations, violation{file, lineOf(text, at[0]), target + " is not there"})
			}
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
