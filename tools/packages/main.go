// Command packages makes the installable packages from a staged tree for each of them
// (tools/packages.sh): deb and rpm, container images, a list of the contents of each (SBOM),
// and checksums. The same trees give the same bytes.
package main

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

const homepage = "https://github.com/guideway/guideway"

// product is a package: what is in its tree, and what it needs of others.
type product struct {
	name        string
	description string
	// needs of a deb and of an rpm.
	needs map[string][]string
	// recommends, of a deb: packages of the same names are with others, too.
	recommends []string
	// entrypoint of its image, where it has one.
	entrypoint string
}

// What programs in Rust are linked to.
var libraries = map[string][]string{
	"deb": {"libc6 (>= 2.34)", "libgcc-s1"},
	"rpm": {"glibc >= 2.34", "libgcc"},
}

var products = []product{
	{
		name:        "guideway",
		description: "Network load balancer: controller, BGP speaker, forwarder and command line",
		needs:       libraries,
		entrypoint:  "/usr/bin/guideway",
	},
	{
		name:        "guideway-agent",
		description: "Takes packets of Guideway's load balancers out of tunnels, on a backend",
		needs:       libraries,
		entrypoint:  "/usr/bin/guideway-agent",
		recommends:  []string{"iproute2", "nftables"}, // of `setup`
	},
	{
		name:        "guideway-lab",
		description: "Guideway's lab: a whole data centre in network namespaces, to try things in",
		needs: map[string][]string{
			"deb": {"guideway", "guideway-agent", "iproute2", "nftables", "ethtool"},
			"rpm": {"guideway", "guideway-agent", "iproute", "nftables", "ethtool"},
		},
		recommends: []string{"bird2", "nginx-light"},
	},
	{
		name:        "guideway-debug",
		description: "What debuggers and profilers need to name functions of Guideway's programs",
		needs:       map[string][]string{},
	},
}

// build is what was built.
type build struct {
	stage, out            string
	version, commit, arch string
	// made is the commit's time.
	made time.Time
	// A tar of the system that the lab's image is based on; empty: it has none.
	labSystem string
}

func main() {
	var b build
	var seconds int64
	flag.StringVar(&b.stage, "stage", "", "folder with a tree for each package")
	flag.StringVar(&b.out, "out", "", "folder for what is made")
	flag.StringVar(&b.version, "version", "", "version of the packages")
	flag.StringVar(&b.commit, "commit", "", "commit that was built")
	flag.StringVar(&b.arch, "arch", "amd64", "architecture, as Go names it")
	flag.StringVar(&b.labSystem, "lab-system", "", "tar of a system with all that the lab starts: makes an image of the lab, too")
	flag.Int64Var(&seconds, "time", 0, "time of all files, in seconds since 1970")
	flag.Parse()
	b.made = time.Unix(seconds, 0).UTC()
	if err := b.all(); err != nil {
		fmt.Fprintf(os.Stderr, "packages: %v\n", err)
		os.Exit(1)
	}
}

func (b build) all() error {
	trees := map[string][]file{}
	for _, p := range products {
		tree, err := walk(filepath.Join(b.stage, p.name))
		if err != nil {
			return err
		}
		if err := checkLibraries(tree); err != nil {
			return err
		}
		for _, format := range []string{"deb", "rpm"} {
			if err := b.pack(p, tree, format); err != nil {
				return fmt.Errorf("%s as %s: %w", p.name, format, err)
			}
		}
		// Libraries of an image are this machine's.
		if p.entrypoint != "" && b.arch == runtime.GOARCH {
			if err := b.image(p, tree); err != nil {
				return fmt.Errorf("image of %s: %w", p.name, err)
			}
		}
		trees[p.name] = tree
		if err := b.listContents(p, tree); err != nil {
			return fmt.Errorf("list of what is in %s: %w", p.name, err)
		}
	}
	if b.labSystem != "" {
		if err := b.labImage(slices.Concat(trees["guideway"], trees["guideway-agent"], trees["guideway-lab"])); err != nil {
			return fmt.Errorf("image of the lab: %w", err)
		}
	}
	return sum(b.out)
}

// file of a tree: where it is, and where it belongs.
type file struct {
	source, target string
	mode           os.FileMode
}

// walk gives a tree's files, sorted.
func walk(root string) ([]file, error) {
	var found []file
	err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		found = append(found, file{path, strings.TrimPrefix(path, root), info.Mode().Perm()})
		return nil
	})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("nothing is in %s", root)
	}
	return found, err
}

// programs of a tree.
func programs(tree []file) []file {
	return slices.DeleteFunc(slices.Clone(tree), func(f file) bool { return filepath.Dir(f.target) != "/usr/bin" })
}

// pack makes a deb or an rpm.
func (b build) pack(p product, tree []file, format string) error {
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: p.name, Version: b.version, Release: "1", Arch: b.arch, Platform: "linux",
		Section: "net", Priority: "optional", Maintainer: "Guideway's authors <" + homepage + ">", Vendor: "Guideway",
		Description: p.description, Homepage: homepage, License: "Apache-2.0", MTime: b.made,
		Overridables: nfpm.Overridables{
			Depends:    p.needs[format],
			Recommends: p.recommends,
			Contents:   b.contents(tree, format),
			Scripts: nfpm.Scripts{
				PostInstall: script(p.name, "postinstall"),
				PreRemove:   script(p.name, "preremove"),
				PostRemove:  script(p.name, "postremove"),
			},
			Deb: nfpm.Deb{Compression: "zstd"},
			RPM: nfpm.RPM{Compression: "zstd", BuildHost: "guideway", Summary: p.description},
		},
	})
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	out, err := os.Create(filepath.Join(b.out, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	defer out.Close()
	if err := packager.Package(info, out); err != nil {
		return err
	}
	return out.Close()
}

// contents of a package: a config that somebody changed stays at an upgrade.
func (b build) contents(tree []file, format string) files.Contents {
	var contents files.Contents
	for _, f := range tree {
		content := &files.Content{
			Source: f.source, Destination: f.target,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: f.mode, MTime: b.made},
		}
		if strings.HasPrefix(f.target, "/etc/") {
			content.Type = files.TypeConfigNoReplace
		}
		if format == "deb" {
			content.Destination = strings.Replace(f.target, "/zsh/site-functions/", "/zsh/vendor-completions/", 1)
		}
		contents = append(contents, content)
	}
	return contents
}

// script that the package runs then, if it has one.
func script(name, when string) string {
	path := filepath.Join("packaging/scripts", name+"."+when+".sh")
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// sum writes SHA256SUMS of all files in a folder, for `sha256sum --check`.
func sum(folder string) error {
	found, err := walk(folder)
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, f := range found {
		content, err := os.Open(f.source)
		if err != nil {
			return err
		}
		defer content.Close()
		hash := sha256.New()
		if _, err := io.Copy(hash, content); err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", hash.Sum(nil), strings.TrimPrefix(f.target, "/"))
	}
	return os.WriteFile(filepath.Join(folder, "SHA256SUMS"), []byte(lines.String()), 0o644)
}
