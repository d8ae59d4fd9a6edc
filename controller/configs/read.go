package configs

// Reads a config, and the files that it names: passwords, certificate authorities. If one
// of these changes, the config in use is parsed again; changed config files wait for a
// reload.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"maps"
	"strings"
	"time"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/fleet"
)

// How often they are read. A change counts when it is there twice.
const namedInterval = time.Second

// namedFiles are the digests of files by their paths; empty: not to be read.
type namedFiles map[string]string

// readOwn files of this machine, for a config with that from etcd; nil: of files alone.
func (c *Configs) readOwn(shared *fleet.Config) *Config {
	own, err := config.Read(c.settings.Files...)
	if err != nil {
		return &Config{problem: err}
	}
	return c.parseOwn(own, shared)
}

func (c *Configs) parseOwn(own []config.Source, shared *fleet.Config) *Config {
	from := strings.Join(c.settings.Files, ", ")
	if shared != nil {
		source := shared.Source(c.etcd.Settings.Cluster)
		own, from = append(own, source), from+", "+source.Name
	}
	parsed := c.parse(own, from, Origin{})
	parsed.Shared = shared
	return parsed
}

// parse notes the files that a config names, but for the API's, which follows
// its own.
func (c *Configs) parse(sources []config.Source, from string, origin Origin) *Config {
	offered := &Config{From: from, Shared: sharedOf(sources), sources: sources, digest: DigestOf(sources), named: namedFiles{}, origin: origin}
	reader := c.reader()
	reader.ReadFile = func(path string) ([]byte, fs.FileMode, error) {
		data, mode, err := config.ReadFromDisk(path)
		offered.named[path] = digestOfNamed(data, err)
		return data, mode, err
	}
	offered.Parsed, offered.problem = reader.Parse(sources)
	if offered.Parsed != nil && offered.Parsed.API != nil {
		for _, path := range []string{offered.Parsed.API.TLS.CertFile, offered.Parsed.API.TLS.KeyFile, offered.Parsed.API.TLS.CAFile} {
			delete(offered.named, path)
		}
	}
	return offered
}

// reader of configs for this machine.
func (c *Configs) reader() config.Reader {
	return config.Reader{Machine: c.settings.Machine, ReadFile: config.ReadFromDisk}
}

func digestOfNamed(data []byte, err error) string {
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// now are the same files as they are now.
func (n namedFiles) now() namedFiles {
	found := namedFiles{}
	for path := range n {
		data, _, err := config.ReadFromDisk(path)
		found[path] = digestOfNamed(data, err)
	}
	return found
}

func (c *Configs) watchNamed(ctx context.Context) {
	ticker := time.NewTicker(namedInterval)
	defer ticker.Stop()
	var before, tried namedFiles
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		loaded := c.Loaded().named
		now := loaded.now()
		unchanged := maps.Equal(now, before)
		before = now
		if maps.Equal(now, loaded) || maps.Equal(now, tried) || !unchanged {
			continue
		}
		tried = now
		c.rereadNamed(ctx)
	}
}

// rereadNamed files for the config in use. What is wrong with them is logged: the
// config goes on with what they held.
func (c *Configs) rereadNamed(ctx context.Context) {
	unlock, err := c.lock(ctx)
	if err != nil {
		return // the controller stops
	}
	defer unlock()
	stale := false
	if c.host.Ask(ctx, func() { stale = c.host.Brain().View(false).Config.Stale }) != nil || stale {
		return // a reload reads them
	}
	former := c.Loaded()
	anew := c.parse(former.sources, former.From, Origin{How: "reload"})
	anew.Shared = former.Shared
	err = anew.problem
	if err == nil {
		asked := c.host.Ask(ctx, func() {
			if err = c.CheckNext(anew.Parsed); err == nil {
				c.host.Reloaded(true)
				c.use(anew)
			}
		})
		if asked != nil {
			return // the controller stops
		}
	}
	if err != nil {
		c.log.Error("a file that the config names has changed and cannot be used, the config goes on with what it held", "error", err)
	} else {
		c.log.Info("a file that the config names has changed and is in use")
	}
	c.auditReload(ctx, "a file that the config names", err)
}
