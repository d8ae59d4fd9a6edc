package config

import "slices"

// Parse turns sources into a Config, or returns every mistake in them as a
// *Refusal. Files that the config names are read through readFile; but for
// that it is a function of its arguments.
func Parse(sources []Source, readFile ReadFile) (*Config, error) {
	return Reader{ReadFile: readFile}.Parse(sources)
}

// Reader makes configs of sources, for one machine.
type Reader struct {
	// Machine has the entry of this name, where the sources have `machines`; else its name
	// stands in them.
	Machine string
	// AnyMachine: where Machine has no entry, it does not matter whose is taken.
	AnyMachine bool
	ReadFile   ReadFile
}

// Parse as [Parse] does.
func (r Reader) Parse(sources []Source) (*Config, error) { return r.parse(sources, toServe) }

// ParseToCompile is Parse for a config that no traffic will depend on: what only
// breaks connections is a warning.
func ParseToCompile(sources []Source, readFile ReadFile) (*Config, error) {
	return Reader{ReadFile: readFile, AnyMachine: true}.parse(sources, toCompile)
}

// purpose of reading a config.
type purpose int

const (
	toServe purpose = iota
	toCompile
)

func (r Reader) parse(sources []Source, purpose purpose) (*Config, error) {
	document, problems := readDocument(sources)
	if document.incomplete {
		return nil, &Refusal{Errors: problems.gathered()}
	}
	report := newReporter(document, purpose)
	report.errors = problems
	schema := decode(document, report)
	if schema == nil {
		return nil, report.refusal()
	}
	if len(document.keys) == 0 && len(problems) == 0 {
		report.errorf("", "the config is empty: it needs at least `machine:` with addresses, `services:` and `pools:`")
		return nil, report.refusal()
	}
	checkHomes(document, report)
	r.chooseMachine(schema, report)
	checkRules(schema, report)

	again := &decoded{schema: schema, digest: sharedDigest(schema), document: document, purpose: purpose, warnings: slices.Clone(report.warnings), files: map[string]content{}}
	c, err := build(again.builder(report, again.remembering(r.ReadFile)))
	if err == nil && len(c.MemberPools()) > 0 {
		c.decoded = again
	}
	return c, err
}
