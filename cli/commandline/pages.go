package commandline

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// AddPages has a program write its man pages and its completion by shells, for packages:
// into a folder, what belongs into /usr/share.
func AddPages(program *cobra.Command) {
	program.AddCommand(&cobra.Command{
		Use:    "pages FOLDER",
		Short:  "Write man pages, and completion for bash, fish and zsh",
		Hidden: true,
		Args:   Arguments("FOLDER"),
		RunE: func(_ *cobra.Command, arguments []string) error {
			return writePages(program, arguments[0])
		},
	})
}

func writePages(program *cobra.Command, folder string) error {
	program.DisableAutoGenTag = true
	name := program.Name()
	for _, page := range []struct {
		file  string
		write func(file string) error
	}{
		{"man/man1/" + name + ".1", func(file string) error {
			return doc.GenManTree(program, &doc.GenManHeader{Section: "1", Source: name + " " + program.Version}, filepath.Dir(file))
		}},
		{"bash-completion/completions/" + name + ".bash", func(file string) error { return program.GenBashCompletionFileV2(file, true) }},
		{"fish/vendor_completions.d/" + name + ".fish", func(file string) error { return program.GenFishCompletionFile(file, true) }},
		{"zsh/site-functions/_" + name, program.GenZshCompletionFile},
	} {
		file := filepath.Join(folder, page.file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := page.write(file); err != nil {
			return err
		}
	}
	return nil
}
