package config

// Parse turns sources into a Config, or returns every mistake in them as a
// *Refusal. Files that the config names are read through readFile; but for
// that it is a function of its arguments.
func Parse(sources []Source, readFile ReadFile) (*Config, error) {
	document, problems := readDocument(sources)
	if document.incomplete {
		return nil, &Refusal{Errors: problems}
	}
	report := newReporter(document)
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
