package config

// Parse turns sources into a Config, or returns every mistake in them as a
// *Refusal. Files that the config names are read through readFile; but for
// that it is a function of its arguments.
func Parse(sources []Source, readFile ReadFile) (*Config, error) {
	return parse(sources, readFile, toServe)
}

// ParseToCompile is Parse for a config that no traffic will depend on: what only
// breaks connections is a warning.
func ParseToCompile(sources []Source, readFile ReadFile) (*Config, error) {
	return parse(sources, readFile, toCompile)
}

// purpose of reading a config.
type purpose int

const (
	toServe purpose = iota
	toCompile
)

func parse(sources []Source, readFile ReadFile, purpose purpose) (*Config, error) {
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
	checkRules(schema, report)

	builder := &builder{reporter: report, schema: schema, readFile: readFile, config: &Config{}}
	builder.build()
	if len(report.errors) > 0 {
		return nil, report.refusal()
	}
	builder.config.Warnings = report.sorted(report.warnings).gathered()
	return builder.config, nil
}
