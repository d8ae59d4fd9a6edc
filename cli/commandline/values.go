package commandline

import (
	"encoding/json"
	"fmt"
	"io"

	"go.yaml.in/yaml/v4"
)

// PrintValue for machines: as YAML, or else as JSON.
func PrintValue(w io.Writer, format string, value any) error {
	if format == "yaml" {
		return printYAML(w, value)
	}
	return printJSON(w, value)
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
