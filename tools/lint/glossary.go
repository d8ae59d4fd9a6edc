package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
)

// What the field calls it: names and phrases of our own making that a
// networking engineer would have to guess stand nowhere.

// bannedName of something that is declared: a type, function, variable, field,
// module, file or drop reason. Names are compared word by word, however they
// are joined: `ways_back` is in WaysBack and in ways_back_of. One that begins with a
// capital is a type's or variant's, all of it.
type bannedName struct {
	name string
	cure string
	// whole: only the whole name; as a part it is a word of the field.
	whole bool
	// folder in which it is banned; empty: everywhere.
	folder string
}

var bannedNames = []bannedName{
	{name: "traveller", cure: "PacketState"},
	{name: "travellers", cure: "BatchState"},
	{name: "To", cure: "Stage", folder: "datapath"},
	{name: "whereabouts", cure: "LookupKey"},
	{name: "facts", cure: "PacketMeta"},
	{name: "sight", cure: "MaskRule"},
	{name: "Under", cure: "SuffixKey"},
	{name: "first_look", cure: "prefetch_…, lookup"},
	{name: "look", cure: "prefetch_…, lookup", whole: true},
	{name: "find_further", cure: "lookup_rest"},
	{name: "find_behind", cure: "lookup_overflow"},
	{name: "Kept", cure: "ChosenMember"},
	{name: "Standing", cure: "Admission"},
	{name: "Style", cure: "EncapProfile"},
	{name: "Outer", cure: "HeaderTemplate", folder: "datapath"},
	{name: "misfit", cure: "ExceedsMtu"},
	{name: "ways_back", cure: "return path"},
	{name: "way", cure: "next hop", whole: true},
	{name: "toward", cure: "next_hop_for"},
	{name: "Resolved", cure: "MatchCache"},
	{name: "Latest", cure: "MatchCache's entry", folder: "datapath"},
	{name: "budget", cure: "RecursionLimit", folder: "datapath"},
	{name: "budget", cure: "RecursionLimit", folder: "forwarder"},
	{name: "stranger", cure: "untrusted_tunnel_source"},
	{name: "astray", cure: "misdirected"},
	{name: "congestion", cure: "ce_on_not_ect", whole: true},
	{name: "copy_not_needed", cure: "icmp_copy_redundant"},
	{name: "passer", cure: "punt, reinject"},
	{name: "passing", cure: "punt, reinject"},
	{name: "asker", cure: "SlowPathClient"},
	{name: "answerer", cure: "SlowPathServer"},
	{name: "question", cure: "Request"},
	{name: "questions", cure: "Requests"},
	{name: "board", cure: "ViewPublisher"},
	{name: "desk", cure: "ThreadStatus"},
	{name: "books", cure: "Accounting"},
	{name: "fate", cure: "Verdict"},
	{name: "heir", cure: "takeover::Successor"},
	{name: "heritage", cure: "takeover::State"},
	{name: "estate", cure: "takeover::State"},
	{name: "lending", cure: "takeover::Predecessor"},
	{name: "rested", cure: "quiesced"},
	{name: "patience", cure: "timeout"},
	{name: "patient", cure: "snapshot"},
	{name: "mode_wish", cure: "ModePreference"},
	{name: "quiet", cure: "cold", whole: true},
	{name: "ebb", cure: "drain delay"},
	{name: "ailment_of", cure: "unhealthyReason"},
	{name: "touch", cure: "markDirty", whole: true},
	{name: "settled", cure: "nextHopsResolved"},
	{name: "picture", cure: "snapshot", folder: "controller"},
	{name: "keep.go", cure: "statestore.go"},
	{name: "words.go", cure: "enums.go"},
}

// bannedPhrases in comments, documents and texts that programs print.
var bannedPhrases = []struct {
	phrase  string
	pattern *regexp.Regexp
	cure    string
}{
	{"nobody", phrase(`nobody`), "name who, or say what does not happen"},
	{"somebody", phrase(`somebody`), "name who"},
	{"whoever", phrase(`whoever`), "name who"},
	{"so many", phrase(`so many`), "give the number, with its unit, or its name"},
	{"whatever there is", phrase(`whatever there is`), "name it"},
	{"what it is asked for", phrase(`what it is asked for`), "name it"},
	{"asks for", phrase(`ask(?:s|ed|ing)? for`), "requests, needs, prefetches"},
	{"wants", phrase(`wants`), "needs, requires; for a person: say what for"},
	{"tells", phrase(`tells?`), "returns, reports, says"},
	{"believes", phrase(`believe[sd]?`), "accepts, assumes"},
	{"patience", phrase(`patience`), "timeout"},
}

func phrase(words string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b` + strings.ReplaceAll(words, " ", `\s+(?://[/!]?\s+|#\s+)?`) + `\b`)
}

// glossary looked at files.
func glossary(t *tree) (violations []violation, looked int) {
	for _, file := range t.paths {
		if !speaks(file) {
			continue
		}
		looked++
		folder, _, _ := strings.Cut(file, "/")
		for _, d := range declaredNames(t, file) {
			for _, banned := range bannedNames {
				if banned.is(d.name) && (banned.folder == "" || banned.folder == folder) {
					violations = append(violations, violation{file, d.line,
						fmt.Sprintf("%q: the field's name is %s", banned.name, banned.cure)})
				}
			}
		}
		prose := proseOf(t, file)
		for _, banned := range bannedPhrases {
			for _, at := range banned.pattern.FindAllStringIndex(prose, -1) {
				violations = append(violations, violation{file, lineOf(prose, at[0]),
					fmt.Sprintf("%q: %s", banned.phrase, banned.cure)})
			}
		}
	}
	return violations, looked
}

// speaks: a text of ours, and not this list itself.
func speaks(file string) bool {
	if strings.HasPrefix(file, "tools/lint/") || strings.HasPrefix(file, "LICENSE") || isGeneratedGo(file) {
		return false
	}
	switch path.Ext(file) {
	case ".rs", ".go", ".c", ".h", ".proto", ".md", ".sh", ".py", ".html":
		return !strings.Contains(file, "/testdata/")
	}
	return path.Base(file) == "Makefile"
}

var wordBounds = regexp.MustCompile(`[A-Z]+[a-z0-9]*|[a-z0-9]+|\.`)

// wordsOf a name, in lower case.
func wordsOf(name string) []string {
	words := wordBounds.FindAllString(name, -1)
	for i := range words {
		words[i] = strings.ToLower(words[i])
	}
	return words
}

func (b bannedName) is(name string) bool {
	if strings.Contains(b.name, ".") || b.name[0] < 'a' {
		return name == b.name
	}
	words, banned := wordsOf(name), wordsOf(b.name)
	if b.whole {
		return slices.Equal(words, banned)
	}
	for i := 0; i+len(banned) <= len(words); i++ {
		if slices.Equal(words[i:i+len(banned)], banned) {
			return true
		}
	}
	return false
}

type declared struct {
	name string
	line int
}

// declaredNames of a file, its own among them.
func declaredNames(t *tree, file string) []declared {
	names := []declared{{path.Base(file), 0}}
	switch path.Ext(file) {
	case ".rs":
		return append(append(names, rustNames(t, file)...), declared{strings.TrimSuffix(path.Base(file), ".rs"), 0})
	case ".go":
		return append(names, goNames(t.read(file))...)
	}
	return names
}

var (
	rustItem  = regexp.MustCompile(`\b(?:struct|enum|trait|union|type|fn|mod|const|static|let(?:\s+mut)?)\s+(\w+)`)
	rustField = regexp.MustCompile(`(?m)(?:^\s*(?:pub(?:\([a-z]+\))?\s+)?|[(,|]\s*)([a-z_]\w*):[^:]`)
	// A variant, alone on its line.
	rustVariant = regexp.MustCompile(`(?m)^\s+([A-Z][a-zA-Z0-9]*)(?:,|\s*[({].*)?$`)
	// A line of the drop reasons' list.
	rustReason = regexp.MustCompile(`(?m)^\s+[A-Z]\w*\s+"(\w+)"$`)
)

func rustNames(t *tree, file string) (names []declared) {
	code := t.rustCode(file)
	for _, pattern := range []*regexp.Regexp{rustItem, rustField, rustVariant} {
		for _, at := range pattern.FindAllStringSubmatchIndex(code, -1) {
			names = append(names, declared{code[at[2]:at[3]], lineOf(code, at[2])})
		}
	}
	text := t.read(file)
	for _, at := range rustReason.FindAllStringSubmatchIndex(text, -1) {
		names = append(names, declared{text[at[2]:at[3]], lineOf(text, at[2])})
	}
	return names
}

func goNames(text string) (names []declared) {
	positions := token.NewFileSet()
	file, err := parser.ParseFile(positions, "", text, parser.SkipObjectResolution)
	if err != nil {
		return nil // gofmt and vet say it better
	}
	add := func(identifiers ...*ast.Ident) {
		for _, identifier := range identifiers {
			names = append(names, declared{identifier.Name, positions.Position(identifier.Pos()).Line})
		}
	}
	add(file.Name)
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.FuncDecl:
			add(node.Name)
		case *ast.TypeSpec:
			add(node.Name)
		case *ast.ValueSpec:
			add(node.Names...)
		case *ast.Field:
			add(node.Names...)
		case *ast.AssignStmt:
			if node.Tok == token.DEFINE {
				for _, left := range node.Lhs {
					if identifier, is := left.(*ast.Ident); is {
						add(identifier)
					}
				}
			}
		}
		return true
	})
	return names
}

// proseOf a file: comments, and texts that are more than one word. Lines stay.
func proseOf(t *tree, file string) string {
	text := t.read(file)
	switch path.Ext(file) {
	case ".md", ".html":
		return text
	case ".go":
		return goProse(text)
	case ".rs", ".c", ".h", ".proto":
		return blankedBy(text, blankRust(text))
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") && path.Ext(file) != ".py" {
			lines[i] = ""
		}
	}
	return strings.Join(lines, "\n")
}

// blankedBy is what blanking took out of a text.
func blankedBy(text, code string) string {
	prose := []byte(text)
	for i := range prose {
		if code[i] == text[i] && text[i] != '\n' {
			prose[i] = ' '
		}
	}
	return string(prose)
}

func goProse(text string) string {
	prose := []byte(strings.Repeat(" ", len(text)))
	for i := range text {
		if text[i] == '\n' {
			prose[i] = '\n'
		}
	}
	var s scanner.Scanner
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	s.Init(file, []byte(text), nil, scanner.ScanComments)
	for {
		position, kind, literal := s.Scan()
		if kind == token.EOF {
			return string(prose)
		}
		if kind == token.COMMENT || kind == token.STRING && strings.Contains(literal, " ") {
			offset := file.Offset(position)
			copy(prose[offset:], literal)
		}
	}
}
