// Package packaging has the files that are installed with the programs.
package packaging

import _ "embed"

// ExampleConfig is the config that is installed, for machines that nobody has set up yet.
//
//go:embed config/guideway.yaml
var ExampleConfig string
