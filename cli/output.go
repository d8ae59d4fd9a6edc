package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// listing is what a `show` verb prints: values for machines, a table for
// people.
type listing struct {
	// As JSON; YAML is made from it.
	value any
	// The columns from wideFrom on are shown by `-o wide` only; 0: all always.
	header   []string
	wideFrom int
	rows     [][]string
	// Said when there are no rows.
	none string
}

const outputUsage = "table, wide, json or yaml"

func (l listing) print(w io.Writer, format string) error {
	switch format {
	case "table", "wide":
		return l.printTable(w, format == "wide")
	case "json":
		return printJSON(w, l.value)
	case "yaml":
		return printYAML(w, l.value)
	}
	return fmt.Errorf("output format %q: use %s", format, outputUsage)
}

func (l listing) printTable(w io.Writer, wide bool) error {
	if len(l.rows) == 0 {
		_, err := fmt.Fprintln(w, l.none)
		return err
	}
	columns := len(l.header)
	if l.wideFrom > 0 && !wide {
		columns = l.wideFrom
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{l.header}, l.rows...) {
		fmt.Fprintln(table, strings.Join(row[:columns], "\t"))
	}
	return table.Flush()
}

func printJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// printYAML goes by way of JSON, so that both have the same names and order.
func printYAML(w io.Writer, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	var node yaml.Node
	if err := yaml.Unmarshal(text, &node); err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	plainStyle(&node)
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	if err := encoder.Encode(&node); err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	return encoder.Close()
}

// plainStyle undoes JSON's braces and quotes; the encoder quotes what needs it.
func plainStyle(node *yaml.Node) {
	node.Style = 0
	for _, child := range node.Content {
		plainStyle(child)
	}
}

// ago is how people read times.
func ago(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return time.Since(t.AsTime()).Round(time.Second).String()
}

// at is how machines read times; empty: none.
func at(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339Nano)
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
