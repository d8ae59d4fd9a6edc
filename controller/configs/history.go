package configs

// The history: the configs that were in use, each in a file of its own in the state directory,
// with who applied it, when and why, and its files byte for byte.
//
// A record is written and synced under a temporary name and then renamed, and older ones are
// removed only after that, so a crash or a full disk leaves the previous state. A record that
// cannot be written stays in memory and is tried again. While the disk has a call, nobody
// waits for the lock.

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/statedir"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

const (
	HistoryDir = "history"
	// Records on disk, and as many more in memory while the disk is full.
	recordsMax = 50
	// Bytes on disk, where configs are large: in base64 three of the largest. The
	// latest two records stay whatever they take, so that there is one to return to.
	historyBytesMax = 64 << 20
	recordsMin      = 2
	// What is written but not yet a record; left behind by a crash.
	Unfinished = ".record-"
)

// Origin of a config: how, by whom and why it came.
type Origin struct {
	// start, reload, apply, rollback, etcd
	How string `json:"how"`
	// Empty: a signal, or a file that changed.
	User    string `json:"user,omitempty"`
	Message string `json:"message,omitempty"`
	// Files as the user named them; empty: those of the config.
	From       []string `json:"from,omitempty"`
	RollbackTo uint64   `json:"rollback_to,omitempty"`
}

// Record of a config, as it is on disk.
type Record struct {
	Time time.Time `json:"time"`
	Origin
	Digest string         `json:"digest"`
	Files  []recordedFile `json:"files"`

	number uint64
	bytes  int // of the files
	onDisk int64
	// The file that it was written to already; empty: none.
	written string
}

// recordedFile: base64 keeps every byte, also of what is no UTF-8.
type recordedFile struct {
	Name string `json:"name"`
	Data []byte `json:"data"`
}

type History struct {
	dir string
	log *slog.Logger

	mu sync.Mutex
	// Without their files, in order of number.
	records []Record
	// The highest number given, also of a record that waits or cannot be read.
	last uint64
	// Not yet on disk, the oldest first; the first is being written during a Flush.
	waiting []Record
	// What was prepared in vain.
	needless []Record
	problem  error
}

// DigestOf files: of one, what sha256sum prints.
func DigestOf(files []config.Source) string {
	sum := sha256.New()
	for i, file := range files {
		if i > 0 {
			fmt.Fprintf(sum, "\x00%d\x00", len(file.Data))
		}
		sum.Write(file.Data)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func NewRecord(of Origin, files []config.Source, now time.Time) Record {
	r := Record{Time: now, Origin: of, Digest: DigestOf(files)}
	for _, file := range files {
		r.Files = append(r.Files, recordedFile{file.Name, file.Data})
		r.bytes += len(file.Data)
	}
	return r
}

// OpenHistory reads what there is. A record that cannot be read stays where it
// is and is not listed.
func OpenHistory(stateDir string, log *slog.Logger) (*History, error) {
	h := &History{dir: filepath.Join(stateDir, HistoryDir), log: log}
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the history: %w", err)
	}
	entries, err := os.ReadDir(h.dir) // in order of name, and so of number
	if err != nil {
		return nil, fmt.Errorf("read the history: %w", err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), Unfinished) {
			_ = os.Remove(filepath.Join(h.dir, entry.Name())) // never became a record
			continue
		}
		number, err := strconv.ParseUint(strings.TrimSuffix(entry.Name(), ".json"), 10, 64)
		if err != nil {
			continue // not ours
		}
		h.last = max(h.last, number)
		r, err := h.read(number)
		if err != nil {
			log.Warn("a config of the history cannot be read and is not listed", "error", err)
			continue
		}
		r.Files = nil
		h.records = append(h.records, r)
	}
	return h, nil
}

func (h *History) path(number uint64) string {
	return filepath.Join(h.dir, fmt.Sprintf("%08d.json", number))
}

func (h *History) read(number uint64) (Record, error) {
	path := h.path(number)
	data, err := os.ReadFile(path)
	if err != nil {
		return Record{}, fmt.Errorf("read the history: %w", err)
	}
	r := Record{number: number, onDisk: int64(len(data))}
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("read the history: %s: %w", path, err)
	}
	var files []config.Source
	for _, file := range r.Files {
		files = append(files, config.Source{Name: file.Name, Data: file.Data})
		r.bytes += len(file.Data)
	}
	if digest := DigestOf(files); digest != r.Digest {
		return Record{}, fmt.Errorf("read the history: %s holds files with the digest %s, and says %s", path, digest, r.Digest)
	}
	return r, nil
}

// Prepare writes a record that does not count yet, so that a full disk is
// known before anything is changed.
func (h *History) Prepare(r Record) (Record, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return r, fmt.Errorf("record the config: %w", err)
	}
	file, err := os.CreateTemp(h.dir, Unfinished+"*") // made with 0600
	if err != nil {
		return r, fmt.Errorf("record the config in %s: %w", h.dir, statedir.Cause(err))
	}
	_, err = file.Write(append(data, '\n'))
	err = errors.Join(err, file.Sync(), file.Close())
	if err != nil {
		_ = os.Remove(file.Name()) // what it holds is no use
		return r, fmt.Errorf("record the config in %s: %w", h.dir, statedir.Cause(err))
	}
	r.written, r.onDisk = file.Name(), int64(len(data)+1)
	return r, nil
}

// Discard what was prepared in vain.
func (h *History) Discard(r Record) { _ = os.Remove(r.written) }

// Add a config that came into use. The one that was in use before is not
// recorded again.
func (h *History) Add(r Record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	latest := ""
	if n := len(h.waiting); n > 0 {
		latest = h.waiting[n-1].Digest
	} else if n := len(h.records); n > 0 {
		latest = h.records[n-1].Digest
	}
	if r.Digest == latest {
		h.needless = append(h.needless, r)
		return
	}
	h.last++
	r.number = h.last
	h.waiting = append(h.waiting, r)
	for len(h.waiting) > recordsMax || bytesOf(h.waiting) > historyBytesMax && len(h.waiting) > recordsMin {
		const oldest = 1 // behind the one that may be being written
		h.log.Error("a config of the history is lost: the disk has no room, and neither has memory", "time", h.waiting[oldest].Time, "digest", h.waiting[oldest].Digest)
		h.waiting = slices.Delete(h.waiting, oldest, oldest+1)
	}
}

func bytesOf(records []Record) (bytes int) {
	for _, r := range records {
		bytes += r.bytes
	}
	return bytes
}

// Flush writes what waits; an error: some of it waits on. One call at a time.
func (h *History) Flush() error {
	h.discardNeedless()
	for {
		oldest := h.oldestWaiting()
		if oldest == nil {
			return nil
		}
		err := h.commit(oldest)
		h.committed(*oldest, err)
		if err != nil {
			return err
		}
		h.forgetOldest()
	}
}

func (h *History) discardNeedless() {
	h.mu.Lock()
	needless := h.needless
	h.needless = nil
	h.mu.Unlock()
	for _, r := range needless {
		h.Discard(r)
	}
}

// oldestWaiting; nil: nothing waits.
func (h *History) oldestWaiting() *Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.waiting) == 0 {
		h.problem = nil
		return nil
	}
	oldest := h.waiting[0]
	return &oldest
}

// commit a record to disk.
func (h *History) commit(r *Record) error {
	if r.written == "" {
		prepared, err := h.Prepare(*r)
		if err != nil {
			return err
		}
		*r = prepared
	}
	if err := errors.Join(os.Rename(r.written, h.path(r.number)), syncDir(h.dir)); err != nil {
		h.Discard(*r)
		r.written = ""
		return fmt.Errorf("record the config: %w", err)
	}
	r.written, r.Files = "", nil
	return nil
}

// committed the first that waits, or not.
func (h *History) committed(r Record, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.problem = err
	if err != nil {
		h.waiting[0] = r
		return
	}
	h.records = append(h.records, r)
	h.waiting = h.waiting[1:]
}

// forgetOldest of what there is on disk.
func (h *History) forgetOldest() {
	for {
		oldest := h.oldestInExcess()
		if oldest == 0 {
			return
		}
		if err := os.Remove(h.path(oldest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			h.log.Warn("an old config of the history stays", "error", err)
			return
		}
		h.mu.Lock()
		h.records = h.records[1:]
		h.mu.Unlock()
	}
}

// oldestInExcess is the number of a record that the disk is not to hold; 0: there is none.
func (h *History) oldestInExcess() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	bytes := int64(0)
	for _, r := range h.records {
		bytes += r.onDisk
	}
	if len(h.records) > recordsMax || bytes > historyBytesMax && len(h.records) > recordsMin {
		return h.records[0].number
	}
	return 0
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// isComplete: nothing waits.
func (h *History) isComplete() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting) == 0
}

// List the records, the latest first.
func (h *History) List(inUse string) *controllerv1.GetConfigHistoryResponse {
	h.mu.Lock()
	defer h.mu.Unlock()
	response := &controllerv1.GetConfigHistoryResponse{}
	for _, r := range slices.Backward(h.records) {
		described := r.describe()
		described.InUse = r.Digest == inUse
		if described.InUse {
			inUse = "" // once: an older one may have been the same
		}
		response.Records = append(response.Records, described)
	}
	if h.problem != nil {
		response.NotRecorded = h.problem.Error()
	}
	return response
}

func (r *Record) describe() *controllerv1.ConfigRecord {
	return &controllerv1.ConfigRecord{
		Number: r.number, Time: api.Timestamp(r.Time), How: r.How, User: r.User, Message: r.Message, From: r.From,
		Digest: r.Digest, Bytes: uint64(r.bytes), RollbackTo: r.RollbackTo,
	}
}

// Get a record with its files.
func (h *History) Get(number uint64) (*controllerv1.GetConfigResponse, error) {
	h.mu.Lock()
	known := slices.ContainsFunc(h.records, func(r Record) bool { return r.number == number })
	h.mu.Unlock()
	if !known {
		return nil, fmt.Errorf("%d: %w", number, api.ErrUnknownConfig)
	}
	r, err := h.read(number)
	if err != nil {
		return nil, err
	}
	response := &controllerv1.GetConfigResponse{Record: r.describe()}
	for _, file := range r.Files {
		response.Files = append(response.Files, &controllerv1.ConfigFile{Name: file.Name, Data: file.Data})
	}
	return response, nil
}

// NumberOf the latest record of a digest, on disk or on its way; 0: there is none.
func (h *History) NumberOf(digest string) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range slices.Backward(slices.Concat(h.records, h.waiting)) {
		if r.Digest == digest {
			return r.number
		}
	}
	return 0
}
