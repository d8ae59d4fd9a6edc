package config

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Load reads files and directories (of which every *.yaml, *.yml and *.json
// counts, in order of name) and parses them as one config. An error is either
// about reading or, as Problems, about what was read.
// With `machines` it is the config of the machine with this host name.
func Load(paths ...string) (*Config, error) {
	return load(Reader{Machine: HostName(), ReadFile: ReadFromDisk}, paths, toServe)
}

// LoadAny is Load where it does not matter for which of several machines.
func LoadAny(paths ...string) (*Config, error) {
	return load(Reader{Machine: HostName(), AnyMachine: true, ReadFile: ReadFromDisk}, paths, toServe)
}

// LoadToCompile is Load for a config that no traffic will depend on: what only
// breaks connections is a warning.
func LoadToCompile(paths ...string) (*Config, error) {
	return Reader{Machine: HostName(), ReadFile: ReadFromDisk}.LoadToCompile(paths...)
}

// LoadToCompile as [LoadToCompile] does.
func (r Reader) LoadToCompile(paths ...string) (*Config, error) { return load(r, paths, toCompile) }

func load(r Reader, paths []string, purpose purpose) (*Config, error) {
	sources, err := Read(paths...)
	if err != nil {
		return nil, err
	}
	return r.parse(sources, purpose)
}

// Read is the first half of Load, for those who keep the sources.
func Read(paths ...string) ([]Source, error) {
	files, err := expand(paths)
	if err != nil {
		return nil, err
	}
	sources := make([]Source, len(files))
	for i, file := range files {
		data, err := readSource(file)
		if err != nil {
			return nil, fmt.Errorf("read config: %w", err)
		}
		sources[i] = Source{Name: file, Data: data}
	}
	return sources, nil
}

// readSource may be a pipe: whoever runs the program gave it.
func readSource(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readAtMost(file, FilesBytesMax)
}

func expand(paths []string) ([]string, error) {
	var files []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("read config: %w", err)
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		inside, err := configsIn(path)
		if err != nil {
			return nil, err
		}
		files = append(files, inside...)
	}
	for i, file := range files {
		if slices.Contains(files[:i], file) {
			return nil, fmt.Errorf("read config: %s is given twice: name each file once", file)
		}
	}
	return files, nil
}

func configsIn(directory string) ([]string, error) {
	entries, err := os.ReadDir(directory) // sorted by name
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	var files []string
	for _, entry := range entries {
		extension := filepath.Ext(entry.Name())
		hidden := strings.HasPrefix(entry.Name(), ".")
		if !entry.IsDir() && !hidden && slices.Contains([]string{".yaml", ".yml", ".json"}, extension) {
			files = append(files, filepath.Join(directory, entry.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("read config: the directory %s holds no *.yaml, *.yml or *.json", directory)
	}
	return files, nil
}

// content of a file that was read, or why not.
type content struct {
	data []byte
	mode fs.FileMode
	err  error
}

// ReadFromDisk is the ReadFile of a program that runs on the machine which
// the config is for. It takes nothing but a regular file, so that it never waits for
// whoever writes to a FIFO, and gives a disk that does not answer up after a while.
func ReadFromDisk(path string) ([]byte, fs.FileMode, error) {
	return ReadInTime(context.Background(), path)
}

// ReadInTime is ReadFromDisk that ends with the context.
func ReadInTime(ctx context.Context, path string) ([]byte, fs.FileMode, error) {
	return disk.readInTime(ctx, path)
}

var disk = reads{read: readRegular}

// reads that may hang. Each that does takes a thread: while one of a file hangs, no other of
// that file is begun.
type reads struct {
	read func(path string) ([]byte, fs.FileMode, error)
	// By path, of those that were given up: a channel that is closed when it ends.
	hanging sync.Map
}

func (r *reads) readInTime(ctx context.Context, path string) ([]byte, fs.FileMode, error) {
	expired := time.NewTimer(readTimeout)
	defer expired.Stop()
	await := func(ended any) error {
		select {
		case <-ended.(chan struct{}):
			return nil
		case <-expired.C:
			return fmt.Errorf("%s cannot be read within %v: does its file system answer?", path, readTimeout)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if former, hangs := r.hanging.Load(path); hangs {
		if err := await(former); err != nil {
			return nil, 0, err
		}
	}
	var c content
	ended := make(chan struct{})
	go func() {
		c.data, c.mode, c.err = r.read(path)
		close(ended)
		r.hanging.CompareAndDelete(path, ended)
	}()
	if err := await(ended); err != nil {
		r.hanging.Store(path, ended)
		select {
		case <-ended: // meanwhile: perhaps before it was stored
			r.hanging.CompareAndDelete(path, ended)
		default:
		}
		return nil, 0, err
	}
	return c.data, c.mode, c.err
}

// Of one file that a config names.
const readTimeout = 5 * time.Second

var errNotRegular = errors.New("this is no regular file: give one")

// LoadKeyPair is [tls.LoadX509KeyPair] by [ReadFromDisk].
func LoadKeyPair(certFile, keyFile string) (tls.Certificate, error) {
	cert, _, err := ReadFromDisk(certFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, _, err := ReadFromDisk(keyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// readRegular file, for as long as the disk takes.
func readRegular(path string) ([]byte, fs.FileMode, error) {
	// To open a FIFO for reading waits for a writer otherwise.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, &fs.PathError{Op: "read", Path: path, Err: errNotRegular}
	}
	data, err := readAtMost(file, namedFileBytesMax)
	return data, info.Mode(), err
}

// readAtMost never holds more than it may, whatever the file is.
func readAtMost(file *os.File, bytesMax int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(file, bytesMax+1))
	if err == nil && int64(len(data)) > bytesMax {
		return nil, fmt.Errorf("%s has more than %d MiB, the limit: is it the right file?", file.Name(), bytesMax>>20)
	}
	return data, err
}
