package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// File in the state directory; the one before it has `.1` behind its name. Lines of JSON.
const File = "events.log"

const (
	// Then the file becomes the one before, which is removed: of both together at least
	// KeptMax lines are there.
	fileLinesMax = KeptMax
	fileBytesMax = 8 << 20
	// A full disk may have room again after so long.
	diskRetry = 5 * time.Second
)

// disk is what is kept of a log. Of the goroutine that keeps, but for load.
type disk struct {
	path string
	log  *slog.Logger
	open func(path string) (*os.File, error)

	file  *os.File // nil: not open
	lines int
	size  int64
	// A write failed: the file may end within a line.
	torn bool
	// Why events are not kept, as it was said last; and how many were overwritten meanwhile.
	problem string
	lost    uint64
}

func newDisk(stateDir string, log *slog.Logger) disk {
	return disk{path: filepath.Join(stateDir, File), log: log, open: openFile}
}

func openFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}

// load what a former controller kept; a damaged tail is cut off.
func (d *disk) load() (records []Record) {
	for _, path := range []string{d.path + ".1", d.path} {
		data, err := readFile(path)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				d.log.Error("events of before the start cannot be read", "error", err)
			}
			continue
		}
		former := len(records)
		var damaged, end int
		records, damaged, end = parse(records, data)
		if damaged > 0 {
			d.log.Warn("damaged events are left out", "file", path, "lines", damaged)
		}
		if path == d.path {
			d.lines, d.size = len(records)-former, int64(end)
			if err := os.Truncate(path, d.size); err != nil {
				d.log.Error("the damaged end of the events' file stays", "error", err)
				d.torn = true
			}
		}
	}
	return records
}

// readFile whole, unless it is none of ours: a pipe would never end.
func readFile(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file: remove it", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, 2*fileBytesMax))
}

// parse lines behind those of the file before. end is behind the last good one.
func parse(records []Record, data []byte) (all []Record, damaged, end int) {
	latest := uint64(0)
	if len(records) > 0 {
		latest = records[len(records)-1].Number
	}
	for at := 0; at < len(data); {
		length := bytes.IndexByte(data[at:], '\n')
		if length < 0 {
			return records, damaged + 1, end
		}
		line := data[at : at+length]
		at += length + 1
		var r Record
		switch {
		case len(line) == 0: // behind a write that failed
			continue
		case json.Unmarshal(line, &r) != nil || r.Number <= latest || r.ID == 0 || r.ID > r.Number || r.Count == 0:
			damaged++
			continue
		}
		r.Event = r.bounded()
		records, latest, end = append(records, r), r.Number, at
	}
	return records, damaged, end
}

// keep on disk what comes, from a position on.
func (l *Log) keep(at uint64) {
	d := &l.disk
	defer d.close()
	for {
		found, next, lost, changed := l.after(at)
		d.lost += lost
		at = next
		if err := d.write(found); err != nil {
			d.failed(err)
			at -= uint64(len(found))
			select {
			case <-time.After(diskRetry):
			case <-l.stop:
				return
			}
			continue
		}
		if changed != nil {
			select {
			case <-changed:
			case <-l.stop:
				if _, _, _, changed = l.after(at); changed != nil {
					return // nothing came meanwhile
				}
			}
		}
	}
}

func (d *disk) write(records []Record) error {
	if len(records) == 0 {
		return nil
	}
	if err := d.prepare(); err != nil {
		return err
	}
	var lines bytes.Buffer
	if d.torn {
		lines.WriteByte('\n')
	}
	encoder := json.NewEncoder(&lines)
	for i := range records {
		_ = encoder.Encode(&records[i]) // fails for no time that a clock shows
	}
	n, err := d.file.Write(lines.Bytes())
	d.size += int64(n)
	if err != nil {
		d.torn = d.torn || n > 0
		return err
	}
	d.torn = false
	d.lines += len(records)
	if d.problem != "" || d.lost > 0 {
		d.log.Info("events are kept on disk again", "file", d.path, "lost", d.lost)
		d.problem, d.lost = "", 0
	}
	return nil
}

// prepare a file with room.
func (d *disk) prepare() (err error) {
	if d.lines >= fileLinesMax || d.size >= fileBytesMax {
		d.close()
		if err := os.Rename(d.path, d.path+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		d.lines, d.size, d.torn = 0, 0, false
	}
	if d.file == nil {
		d.file, err = d.open(d.path)
	}
	return err
}

// failed: said once, as long as it is the same. The next try opens the file anew: it may be
// the file that is bad.
func (d *disk) failed(err error) {
	d.close()
	if text := err.Error(); text != d.problem {
		d.log.Error("events are not kept on disk, and those of now will be missing after a restart: make room in the state directory", "error", err)
		d.problem = text
	}
}

func (d *disk) close() {
	if d.file != nil {
		_ = d.file.Close() // what is written is with the kernel
		d.file = nil
	}
}
