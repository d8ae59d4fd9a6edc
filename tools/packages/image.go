package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Users and groups as packaging/sysusers.conf names them; in an image they have numbers.
const (
	passwd = `root:x:0:0:root:/root:/usr/sbin/nologin
guideway:x:901:901:Guideway controller:/var/lib/guideway:/usr/sbin/nologin
guideway-speaker:x:902:902:Guideway speaker:/var/lib/guideway-speaker:/usr/sbin/nologin
`
	group = `root:x:0:
guideway:x:901:
guideway-speaker:x:902:guideway
guideway-view:x:903:guideway,guideway-speaker
guideway-operate:x:904:guideway
`
)

// image makes a container's image of a tree. Below the tree are the libraries that its programs
// are linked to, as the system has them that built it, and nothing else: no shell, no package
// manager.
func (b build) image(p product, tree []file) error {
	libraries, err := b.libraries(tree)
	if err != nil {
		return err
	}
	below, err := b.layer(libraries)
	if err != nil {
		return err
	}
	return b.imageOn(below, p, tree)
}

// labImage has a whole system below the programs: the lab starts routers and web servers.
func (b build) labImage(tree []file) error {
	i := slices.IndexFunc(products, func(p product) bool { return p.name == "guideway-lab" })
	p := products[i]
	p.entrypoint = "/usr/bin/guideway-lab"
	below, err := tarball.LayerFromFile(b.labSystem, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return err
	}
	return b.imageOn(below, p, tree)
}

// imageOn a layer: a layout (OUT/oci/NAME) and a tar that `podman load` and `docker load` take.
func (b build) imageOn(below v1.Layer, p product, tree []file) error {
	programs, err := b.layer(slices.DeleteFunc(slices.Clone(tree), func(f file) bool {
		return !strings.HasPrefix(f.target, "/usr/bin/") && !strings.HasPrefix(f.target, "/usr/share/doc/")
	}))
	if err != nil {
		return err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.AppendLayers(image, below, programs); err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS, config.Created = b.arch, "linux", v1.Time{Time: b.made}
	config.Config = v1.Config{
		Entrypoint: []string{p.entrypoint},
		Env:        []string{"PATH=/usr/bin:/usr/sbin"},
		Labels: map[string]string{
			"org.opencontainers.image.title":       p.name,
			"org.opencontainers.image.description": p.description,
			"org.opencontainers.image.version":     b.version,
			"org.opencontainers.image.revision":    b.commit,
			"org.opencontainers.image.source":      homepage,
			"org.opencontainers.image.licenses":    "Apache-2.0",
		},
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}
	return b.write(p, image)
}

// libraries of a tree's programs, and the names of users.
func (b build) libraries(tree []file) ([]file, error) {
	var found []file
	for _, program := range programs(tree) {
		paths, err := linkedTo(program.source)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			real, err := filepath.EvalSymlinks(path)
			if err != nil {
				return nil, err
			}
			found = append(found, file{real, path, 0o755})
		}
	}
	for target, content := range map[string]string{"/etc/passwd": passwd, "/etc/group": group} {
		source := filepath.Join(b.stage, "image"+strings.ReplaceAll(target, "/", "-"))
		if err := os.WriteFile(source, []byte(content), 0o644); err != nil {
			return nil, err
		}
		found = append(found, file{source, target, 0o644})
	}
	slices.SortFunc(found, func(a, b file) int { return strings.Compare(a.target, b.target) })
	return slices.CompactFunc(found, func(a, b file) bool { return a.target == b.target }), nil
}

// layer of an image: the files, all root's and of one time.
func (b build) layer(files []file) (v1.Layer, error) {
	var packed bytes.Buffer
	writer := tar.NewWriter(&packed)
	for _, f := range files {
		content, err := os.ReadFile(f.source)
		if err != nil {
			return nil, err
		}
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: strings.TrimPrefix(f.target, "/"), Size: int64(len(content)),
			Mode: int64(f.mode), ModTime: b.made.Truncate(time.Second), Format: tar.FormatPAX,
		}
		if err := writer.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := writer.Write(content); err != nil {
			return nil, err
		}
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
}

// write an image as a layout and as a tar.
func (b build) write(p product, image v1.Image) error {
	reference, err := name.NewTag("localhost/" + p.name + ":" + b.version)
	if err != nil {
		return err
	}
	path, err := layout.Write(filepath.Join(b.out, "oci", p.name), empty.Index)
	if err != nil {
		return err
	}
	if err := path.AppendImage(image, layout.WithPlatform(v1.Platform{OS: "linux", Architecture: b.arch})); err != nil {
		return err
	}
	return tarball.WriteToFile(filepath.Join(b.out, p.name+"_"+b.version+"_"+b.arch+".image.tar"), reference, image)
}
