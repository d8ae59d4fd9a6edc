package run

// Files that the config names: passwords, authorities. When one changes, the
// config in use is parsed with it; files of the config itself wait for a reload.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"maps"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/configs"
)

// How often they are read. A change counts when it is there twice.
const namedInterval = time.Second

// namedFiles are the digests of files by their paths; empty: not to be read.
type namedFiles map[string]string

func digestOfNamed(data []byte, err error) string {
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// parse notes the files that a config names, but for the API's, which follows
// its own.
func parse(sources []config.Source) (*config.Config, namedFiles, error) {
	named := namedFiles{}
	parsed, err := config.Parse(sources, func(path string) ([]byte, fs.FileMode, error) {
		data, mode, err := config.ReadFromDisk(path)
		named[path] = digestOfNamed(data, err)
		return data, mode, err
	})
	if parsed != nil && parsed.API != nil {
		for _, path := range []string{parsed.API.TLS.CertFile, parsed.API.TLS.KeyFile, parsed.API.TLS.CAFile} {
			delete(named, path)
		}
	}
	return parsed, named, err
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

func watchNamedFiles(ctx context.Context, c *Controller) {
	ticker := time.NewTicker(namedInterval)
	defer ticker.Stop()
	var before, tried namedFiles
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		loaded := *c.named.Load()
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
func (c *Controller) rereadNamed(ctx context.Context) {
	unlock, err := c.lockReloads(ctx)
	if err != nil {
		return // the controller stops
	}
	defer unlock()
	var read candidate
	stale := false
	if c.ask(ctx, func() { read, stale = c.loaded.read[c.loaded.inUse], c.brain.View(false).Config.Stale }) != nil || read.parsed == nil || stale {
		return // a reload reads them
	}
	read.origin, read.record = configs.Origin{How: "reload"}, nil
	read.parsed, read.named, err = parse(read.sources)
	asked := c.ask(ctx, func() {
		if err == nil {
			err = c.checkNext(read.parsed)
		}
		if err == nil {
			c.metrics.Reloaded(true, time.Now())
			c.use(read, c.loaded.source)
		}
	})
	if err = errors.Join(asked, err); err != nil {
		c.log.Error("a file that the config names has changed and cannot be used, the config goes on with what it held", "error", err)
	} else {
		c.log.Info("a file that the config names has changed and is in use")
	}
	c.audit.Write(ctx, api.Entry{Caller: api.Caller{From: "a file that the config names"}, Call: "Reload", Err: err, Generation: c.Generation(ctx)})
}
