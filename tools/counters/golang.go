package counters

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
)

// goMetrics finds what is handed to the Prometheus library: Opts with a name
// and a help, or a call whose first two texts are that.
func goMetrics(path, text string) (metrics []Metric, problems []Problem) {
	positions := token.NewFileSet()
	file, err := parser.ParseFile(positions, path, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, nil // gofmt and vet say it better
	}
	defined := map[token.Pos]bool{}
	add := func(name *ast.BasicLit, kind string, labels []string, help string) {
		defined[name.Pos()] = true
		metrics = append(metrics, Metric{
			Name: textOf(name), Kind: kind, Labels: labels, Help: help, path: path, line: positions.Position(name.Pos()).Line,
		})
	}
	ast.Inspect(file, func(node ast.Node) bool {
		if call, is := node.(*ast.CallExpr); is {
			fromCall(call, add)
		}
		return true
	})
	ast.Inspect(file, func(node ast.Node) bool {
		literal, is := node.(*ast.BasicLit)
		if is && literal.Kind == token.STRING && metricName.MatchString(textOf(literal)) && !defined[literal.Pos()] {
			problems = append(problems, Problem{path, positions.Position(literal.Pos()).Line,
				textOf(literal) + " is no definition that tools/counters understands: write Opts{Name: , Help: } or describe(name, help, labels...)"})
		}
		return true
	})
	return metrics, problems
}

// fromCall takes NewX(prometheus.XOpts{…}, labels) and describe(name, help, labels…).
func fromCall(call *ast.CallExpr, add func(*ast.BasicLit, string, []string, string)) {
	if len(call.Args) == 0 {
		return
	}
	if options, is := call.Args[0].(*ast.CompositeLit); is {
		name, help, labels := optionsOf(options)
		if name == nil {
			return
		}
		for _, argument := range call.Args[1:] {
			if list, is := argument.(*ast.CompositeLit); is {
				labels = append(labels, textsOf(list.Elts)...)
			}
		}
		add(name, kindOf(options.Type), labels, help)
		return
	}
	name, is := call.Args[0].(*ast.BasicLit)
	if !is || !metricName.MatchString(textOf(name)) || len(call.Args) < 2 {
		return
	}
	texts := textsOf(call.Args[1:])
	if len(texts) == len(call.Args)-1 {
		add(name, "gauge", texts[1:], texts[0])
	}
}

func optionsOf(options *ast.CompositeLit) (name *ast.BasicLit, help string, labels []string) {
	for _, element := range options.Elts {
		field, is := element.(*ast.KeyValueExpr)
		if !is {
			continue
		}
		key, _ := field.Key.(*ast.Ident)
		value, isText := field.Value.(*ast.BasicLit)
		switch {
		case key == nil:
		case key.Name == "Name" && isText:
			name = value
		case key.Name == "Help" && isText:
			help = textOf(value)
		case key.Name == "ConstLabels":
			constant, _ := field.Value.(*ast.CompositeLit)
			for _, element := range constant.Elts {
				if label, is := element.(*ast.KeyValueExpr); is {
					labels = append(labels, textsOf([]ast.Expr{label.Key})...)
				}
			}
		}
	}
	return name, help, labels
}

// kindOf prometheus.CounterOpts and its like.
func kindOf(options ast.Expr) string {
	if selector, is := options.(*ast.SelectorExpr); is {
		return strings.ToLower(strings.TrimSuffix(selector.Sel.Name, "Opts"))
	}
	return "gauge"
}

func textsOf(expressions []ast.Expr) (texts []string) {
	for _, expression := range expressions {
		if literal, is := expression.(*ast.BasicLit); is && literal.Kind == token.STRING {
			texts = append(texts, textOf(literal))
		}
	}
	return texts
}

func textOf(literal *ast.BasicLit) string {
	text, _ := strconv.Unquote(literal.Value)
	return text
}
