package main

import (
	"bufio"
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// listContents writes the list of what is in a package (an SBOM by CycloneDX 1.6): the
// libraries that its programs were built from, Go's by what the programs themselves say,
// Rust's by cargo.
func (b build) listContents(p product, tree []file) error {
	var components []cdx.Component
	for _, program := range programs(tree) {
		found, err := modules(program.source)
		if err != nil {
			found, err = crates(filepath.Base(program.target))
		}
		if err != nil {
			return err
		}
		components = append(components, found...)
	}
	slices.SortFunc(components, func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	components = slices.CompactFunc(components, func(a, b cdx.Component) bool { return a.BOMRef == b.BOMRef })

	list := cdx.NewBOM()
	list.Metadata = &cdx.Metadata{
		Timestamp: b.made.Format("2006-01-02T15:04:05Z"),
		Component: &cdx.Component{
			BOMRef: "pkg:generic/" + p.name + "@" + b.version, Type: cdx.ComponentTypeApplication,
			Name: p.name, Version: b.version, Description: p.description,
			Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		},
	}
	list.Components = &components
	out, err := os.Create(filepath.Join(b.out, p.name+"_"+b.version+".cdx.json"))
	if err != nil {
		return err
	}
	defer out.Close()
	if err := cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(list, cdx.SpecVersion1_6); err != nil {
		return err
	}
	return out.Close()
}

// modules of a program in Go.
func modules(program string) ([]cdx.Component, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	found := []cdx.Component{component("golang", "stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		found = append(found, component("golang", module.Path, module.Version))
	}
	return found, nil
}

// crates of a program in Rust that are not our own, with their licences.
func crates(program string) ([]cdx.Component, error) {
	said, err := exec.Command("cargo", "tree", "--locked", "-p", program, "-e", "normal", "--prefix", "none", "--format", "{p}\t{l}").Output()
	if err != nil {
		return nil, fmt.Errorf("cargo tree of %s: %w", program, err)
	}
	var found []cdx.Component
	lines := bufio.NewScanner(bytes.NewReader(said))
	for lines.Scan() {
		crate, license, _ := strings.Cut(strings.TrimSuffix(lines.Text(), " (*)"), "\t")
		name, rest, _ := strings.Cut(crate, " v")
		version, place, _ := strings.Cut(rest, " ")
		if strings.HasPrefix(place, "(/") {
			continue
		}
		c := component("cargo", name, version)
		if license != "" {
			c.Licenses = &cdx.Licenses{{Expression: license}}
		}
		found = append(found, c)
	}
	return found, lines.Err()
}

func component(kind, name, version string) cdx.Component {
	reference := "pkg:" + kind + "/" + name + "@" + version
	return cdx.Component{BOMRef: reference, Type: cdx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: reference}
}
