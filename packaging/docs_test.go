package packaging

import (
	"crypto/x509"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/looptest"
)

// Pages whose YAML is for other programs; tests of theirs check it.
var notOurYAML = []string{"../docs/agent.md", "../docs/containers.md", "../docs/monitoring.md"}

var (
	yamlBlock   = regexp.MustCompile("(?s)```yaml\n(.*?)```")
	topLevelKey = regexp.MustCompile(`(?m)^[a-z_]+:`)
)

// An example shows some of the top-level keys; the others are README's. Agents are
// the example's own: what needs them has to say so.
func TestTheDocumentsExamplesAreGoodConfigs(t *testing.T) {
	base := byTopLevelKey(yamlBlock.FindStringSubmatch(read(t, "../README.md"))[1])
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil || len(pages) < 10 {
		t.Fatalf("pages: %v, %v", pages, err)
	}
	readFile := readExamplesFile(t)
	checked := 0
	for _, page := range append(pages, "../README.md") {
		for i, example := range yamlBlock.FindAllStringSubmatch(read(t, page), -1) {
			if slices.Contains(notOurYAML, page) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", filepath.Base(page), i+1), func(t *testing.T) {
				reader := config.Reader{AnyMachine: true, ReadFile: readFile}
				if _, err := reader.Parse(completed(page, example[1], base)); err != nil {
					t.Error(err)
				}
			})
			checked++
		}
	}
	if checked < 10 {
		t.Fatalf("%d examples checked", checked)
	}
}

// completed by the base's keys that it lacks; with `etcd` these are what etcd has.
func completed(page, example string, base map[string]string) []config.Source {
	own := byTopLevelKey(example)
	var missing strings.Builder
	for key, text := range base {
		_, given := own[key]
		if _, several := own["machines:"]; !given && (key != "machine:" || !several) {
			missing.WriteString(text)
		}
	}
	if _, shared := own["etcd:"]; shared {
		return []config.Source{{Name: page, Data: []byte(example)}, {Name: "etcd", Data: []byte(missing.String()), Generation: 1}}
	}
	return []config.Source{{Name: page, Data: []byte(example + missing.String())}}
}

func byTopLevelKey(text string) map[string]string {
	parts := map[string]string{}
	begins := topLevelKey.FindAllStringIndex(text, -1)
	for i, begin := range begins {
		end := len(text)
		if i+1 < len(begins) {
			end = begins[i+1][0]
		}
		parts[text[begin[0]:begin[1]]] = text[begin[0]:end]
	}
	return parts
}

// readExamplesFile gives a file of the kind that its name says.
func readExamplesFile(t *testing.T) config.ReadFile {
	authority := looptest.NewAuthority(t)
	certificate, key := authority.Issue(x509.Certificate{})
	return func(path string) ([]byte, fs.FileMode, error) {
		switch name := filepath.Base(path); {
		case strings.Contains(name, "ca."):
			return authority.Certificate, 0o644, nil
		case strings.HasSuffix(name, ".crt"):
			return certificate, 0o644, nil
		case strings.HasSuffix(name, ".key") && path != config.DefaultSecretFile:
			return key, 0o600, nil
		default:
			return installedSecret(path)
		}
	}
}
