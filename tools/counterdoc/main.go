// Counterdoc writes the tables of docs/counters.md anew, from the definitions
// in the sources. Run it at the root of the tree; `make generate` does.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/guideway/guideway/tools/counters"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "counterdoc:", err)
		os.Exit(1)
	}
}

func run() error {
	tree, err := sources(os.DirFS("."))
	if err != nil {
		return err
	}
	definitions, problems := counters.Read(tree)
	if len(problems) > 0 {
		p := problems[0]
		return fmt.Errorf("%s:%d: %s", p.Path, p.Line, p.What)
	}
	document := tree.Read(counters.Document)
	updated, err := definitions.Update(document)
	if err != nil || updated == document {
		return err
	}
	return os.WriteFile(counters.Document, []byte(updated), 0o644)
}

// sources below the folders that define metrics and drop reasons.
func sources(root fs.FS) (counters.Tree, error) {
	tree := counters.Tree{Read: func(path string) string {
		content, _ := fs.ReadFile(root, path) // one that is not there is empty
		return string(content)
	}}
	for _, folder := range []string{"agent", "blackbox", "controller", "datapath", "forwarder", "speaker"} {
		err := fs.WalkDir(root, folder, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && (strings.HasSuffix(path, ".rs") || strings.HasSuffix(path, ".go")) {
				tree.Paths = append(tree.Paths, path)
			}
			return err
		})
		if err != nil {
			return tree, fmt.Errorf("read sources: %w", err)
		}
	}
	return tree, nil
}
