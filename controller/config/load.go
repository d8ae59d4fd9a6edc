package config

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Load reads files and directories (of which every *.yaml, *.yml and *.json
// counts, in order of name) and parses them as one config. An error is either
// about reading or, as Problems, about what was read.
func Load(paths ...string) (*Config, error) {
	sources, err := Read(paths...)
	if err != nil {
		return nil, err
	}
	return Parse(sources, ReadFromDisk)
}

// Read is the first half of Load, for those who keep the sources.
func Read(paths ...string) ([]Source, error) {
	files, err := expand(paths)
	if err != nil {
		return nil, err
	}
	sources := make([]Source, len(files))
	for i, file := range files {
		data, err := readAtMost(file, FilesBytesMax)
		if err != nil {
			return nil, fmt.Errorf("read config: %w", err)
		}
		sources[i] = Source{Name: file, Data: data}
	}
	return sources, nil
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

// ReadFromDisk is the ReadFile of a program that runs on the machine which
// the config is for.
func ReadFromDisk(path string) ([]byte, fs.FileMode, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	data, err := readAtMost(path, namedFileBytesMax)
	return data, info.Mode(), err
}

// readAtMost never holds more than it may, whatever the file is.
func readAtMost(path string, bytesMax int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, bytesMax+1))
	if err == nil && int64(len(data)) > bytesMax {
		return nil, fmt.Errorf("%s has more than %d MiB, the limit: is it the right file?", path, bytesMax>>20)
	}
	return data, err
}
