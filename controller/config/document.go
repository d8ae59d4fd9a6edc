package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Source is one file's content. JSON is YAML.
type Source struct {
	// Path, as errors show it.
	Name string
	Data []byte
	// In etcd, of what all machines share; 0: a file of this machine.
	Generation uint64
}

// document is the YAML of all sources as one tree of nodes that know where
// they stand. Top-level keys are gathered; duplicate keys, which the YAML
// library lets pass in nodes, are found where a mapping is read (see fields).
type document struct {
	files []string
	// Top-level keys in order of appearance.
	keys   []string
	values map[string]topLevel
	// The file that is etcd's; empty: none.
	shared string
	// Fields, and where they stand instead.
	aliases [][2]string
	// A file could not be read at all: what is missing may stand there.
	incomplete bool
}

type topLevel struct {
	file  string
	key   *yaml.Node
	value *yaml.Node
}

type position struct {
	file         string
	line, column int
}

// readDocument parses all sources. Errors of syntax go to the returned
// problems; what could be read is in the document nevertheless.
func readDocument(sources []Source) (*document, Problems) {
	d := &document{values: map[string]topLevel{}}
	if problem := tooLarge(sources); problem != nil {
		d.incomplete = true
		return d, Problems{*problem}
	}
	var problems Problems
	for _, source := range sources {
		d.files = append(d.files, source.Name)
		if source.Generation > 0 {
			d.shared = source.Name
		}
		problems = append(problems, d.add(source)...)
	}
	return d, problems
}

// tooLarge looks at sizes alone, before any of it is parsed.
func tooLarge(sources []Source) *Problem {
	bytes, separators := 0, 0
	for _, source := range sources {
		bytes += len(source.Data)
		if bytes > FilesBytesMax {
			return &Problem{File: source.Name, Message: fmt.Sprintf(
				"with this file the config has more than %d MiB, the limit: is it the right file? Spread services over shards, or over clusters", FilesBytesMax>>20)}
		}
		separators += countSeparators(source.Data)
		if separators > separatorsMax {
			return &Problem{File: source.Name, Message: fmt.Sprintf(
				"with this file the config has some %d values (line ends, commas, colons and brackets), more than the limit of %d: is it the right file? Spread services over shards, or over clusters", separators, separatorsMax)}
		}
	}
	return nil
}

// ParseYAML of a file with the members of a pool: its root, nil when there is none.
func ParseYAML(source Source) (*yaml.Node, error) {
	if n := countSeparators(source.Data); n > memberSeparatorsMax {
		return nil, fmt.Errorf("%s has some %d values (line ends, commas, colons and brackets), more than the limit of %d: is it the right file?", source.Name, n, memberSeparatorsMax)
	}
	root, problem := parseYAML(source)
	if problem != nil {
		return nil, Problems{*problem}
	}
	return root, nil
}

func countSeparators(data []byte) int {
	count := 0
	for i, c := range data {
		switch c {
		case '\n', ',', ':', '[', '{', '?':
			count++
		case '-': // begins an item, or is part of a name
			if i+1 < len(data) && (data[i+1] == ' ' || data[i+1] == '\t') {
				count++
			}
		}
	}
	return count
}

func (d *document) add(source Source) Problems {
	root, problem := parseYAML(source)
	if problem != nil {
		d.incomplete = true
		return Problems{*problem}
	}
	if root == nil {
		return nil // an empty file, or one of comments only
	}
	if root.Kind != yaml.MappingNode {
		d.incomplete = true
		return Problems{{File: source.Name, Line: root.Line, Column: root.Column, Message: fmt.Sprintf(
			"the file holds %s: it must hold fields like `services:` and `pools:`", describe(root))}}
	}
	return d.gather(source.Name, root)
}

// parseYAML returns the root node, nil when there is none.
func parseYAML(source Source) (*yaml.Node, *Problem) {
	decoder := yaml.NewDecoder(bytes.NewReader(source.Data))
	var first, second yaml.Node
	switch err := decoder.Decode(&first); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, syntaxProblem(source, err)
	}
	switch err := decoder.Decode(&second); {
	case err == nil:
		return nil, &Problem{File: source.Name, Line: second.Line, Column: second.Column,
			Message: "a second document begins here: put one document in each file"}
	case !errors.Is(err, io.EOF):
		return nil, syntaxProblem(source, err)
	}
	if first.Kind == yaml.DocumentNode {
		if len(first.Content) == 0 || isNull(first.Content[0]) {
			return nil, nil
		}
		return first.Content[0], nil
	}
	return &first, nil
}

// syntaxProblem stands where the library stumbled, and names what it was
// reading; where it ran into the end of the file, it stands at that instead.
func syntaxProblem(source Source, err error) *Problem {
	problem := &Problem{File: source.Name, Message: "this is not YAML: " + err.Error()}
	var load *yaml.LoadError
	if errors.As(err, &load) {
		began, stumbled := load.ContextMark, load.Mark
		problem.Line, problem.Column = stumbled.Line, stumbled.Column
		problem.Message = "this is not YAML: " + inPlainWords(load.Message, source.Data)
		if opened := openedBy(load.ContextMsg); opened != "" && began.Line > 0 {
			problem.Message += fmt.Sprintf("; %s begins at line %d, column %d", opened, began.Line, began.Column)
			if stumbled.Line > bytes.Count(bytes.TrimSpace(source.Data), []byte("\n"))+1 {
				problem.Line, problem.Column = began.Line, began.Column
			}
		}
	}
	return problem
}

// inPlainWords adds the usual mistake to what the library says of it.
func inPlainWords(message string, data []byte) string {
	if bytes.ContainsRune(data, '\t') {
		return message + "; YAML indents by spaces, never by tabs"
	}
	for said, cause := range map[string]string{
		"did not find expected key":                      "is this line indented like its neighbours, is no bracket closed twice, no `- ` missing?",
		"did not find expected ',' or ']'":               "a `,` or a `]` is missing before this place",
		"did not find expected ',' or '}'":               "a `,` or a `}` is missing before this place",
		"could not find expected ':'":                    "the line before has no `:` behind its name",
		"mapping values are not allowed in this context": "text with a `:` in it needs quotes; a name on this line or the one before needs `: ` behind it, with the space",
		"found character that cannot start any token":    "text that begins so needs quotes",
		"found unexpected end of stream":                 "a quote is not closed",
	} {
		if message == said {
			return message + ": " + cause
		}
	}
	return message
}

// openedBy names in operators' words what the library was reading.
func openedBy(context string) string {
	for contained, words := range map[string]string{
		"flow sequence": "the list in `[ ]`",
		"flow mapping":  "the group in `{ }`",
		"quoted scalar": "the text in quotes",
		"block mapping": "the group of fields",
	} {
		if strings.Contains(context, contained) {
			return words
		}
	}
	return ""
}

// gather enters the top-level keys of one file. A key that another file has
// is an error: which of them counts should not depend on the files' order.
func (d *document) gather(file string, root *yaml.Node) Problems {
	var problems Problems
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.Value == "" {
			problems = append(problems, Problem{File: file, Line: key.Line, Column: key.Column, Message: notAName(key)})
			continue
		}
		if earlier, ok := d.values[key.Value]; ok {
			where := fmt.Sprintf("line %d", earlier.key.Line)
			if earlier.file != file {
				where = earlier.file + ":" + strconv.Itoa(earlier.key.Line)
			}
			problems = append(problems, Problem{File: file, Line: key.Line, Column: key.Column, Field: key.Value,
				Message: fmt.Sprintf("is already given at %s: keep one of the two", where)})
			continue
		}
		d.keys = append(d.keys, key.Value)
		d.values[key.Value] = topLevel{file: file, key: key, value: value}
	}
	return problems
}

func notAName(key *yaml.Node) string {
	return fmt.Sprintf("there is %s where the name of a field should be: write `name: value`", describe(key))
}

// given is the number that stands at a field, empty if none does.
func (d *document) given(field string) string {
	steps := splitPath(d.real(field))
	if len(steps) == 0 {
		return ""
	}
	node := d.values[steps[0]].value
	for _, step := range steps[1:] {
		_, node = child(node, step)
	}
	if node = resolve(node); node == nil || node.Kind != yaml.ScalarNode || node.ShortTag() != "!!int" {
		return ""
	}
	return node.Value
}

// position finds where a field stands. For one that is absent it is where the
// innermost thing around it stands.
func (d *document) position(field string) position {
	if field == "" {
		return position{file: d.firstFile()}
	}
	field = d.real(field)
	steps := splitPath(field)
	if _, ok := d.values[field]; ok || len(steps) == 0 {
		steps = []string{field} // also a top-level key with a dot in it
	}
	top, ok := d.values[steps[0]]
	if !ok {
		return position{file: d.firstFile()}
	}
	at := position{top.file, top.key.Line, top.key.Column}
	node := top.value
	for _, step := range steps[1:] {
		key, value := child(node, step)
		if key == nil {
			break
		}
		at.line, at.column, node = key.Line, key.Column, value
	}
	return at
}

func (d *document) firstFile() string {
	if len(d.files) == 0 {
		return ""
	}
	return d.files[0]
}

func (d *document) fileOrder(file string) int {
	return slices.Index(d.files, file)
}

// child returns what names the step (the key, or the item itself) and the
// value; nil when it is not there.
func child(node *yaml.Node, step string) (at, value *yaml.Node) {
	node = resolve(node)
	if node == nil {
		return nil, nil
	}
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == step {
				return node.Content[i], node.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i], node.Content[i]
		}
	}
	return nil, nil
}

// resolve follows an alias to what it stands for.
func resolve(node *yaml.Node) *yaml.Node {
	if node != nil && node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

func isNull(node *yaml.Node) bool {
	return node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null"
}

// describe says what a node is, in an operator's words.
func describe(node *yaml.Node) string {
	switch {
	case node.Kind == yaml.MappingNode:
		return "a group of fields"
	case node.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(node):
		return "nothing"
	default:
		return fmt.Sprintf("%q", node.Value)
	}
}

// splitPath turns `services[0].vips[1].ports` into services, 0, vips, 1, ports.
func splitPath(field string) []string {
	return strings.FieldsFunc(field, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
}

// splitLast cuts the last step off: `a[0].b` gives `a[0]` and `b`.
func splitLast(field string) (parent, last string) {
	if i := strings.LastIndexByte(field, '.'); i >= 0 {
		return field[:i], field[i+1:]
	}
	return "", field
}
