package speaker

// The keeper stores the desired state on disk, for a start without a controller. The disk may
// be slow or full; that delays no route.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/guideway/guideway/controller/statedir"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

const (
	desiredFile = "desired.json"
	// Plans follow one another up to twenty times a second; the disk gets every
	// state that stays for this long.
	keepPause = time.Second
	// A full disk may have room again after this time.
	keepRetry = 5 * time.Second
)

type keeper struct {
	dir  string
	log  *slog.Logger
	wake chan struct{}

	mu      sync.Mutex
	pending *speakerv1.Desired // nil: it is on disk
	failed  string
}

func newKeeper(dir string, log *slog.Logger) (*keeper, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory %s: %w: create it, or name another by --state-dir", dir, err)
	}
	return &keeper{dir: dir, log: log, wake: make(chan struct{}, 1)}, nil
}

// load returns nothing if nothing was ever kept.
func (k *keeper) load() (*speakerv1.Desired, error) {
	path := filepath.Join(k.dir, desiredFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what was desired last: %w", err)
	}
	desired := &speakerv1.Desired{}
	// A newer version may have written what this one does not know.
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, desired); err != nil {
		return nil, fmt.Errorf("read what was desired last from %s: %w", path, err)
	}
	return desired, nil
}

// save in a while.
func (k *keeper) save(desired *speakerv1.Desired) {
	k.mu.Lock()
	k.pending = desired
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *keeper) problem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failed
}

func (k *keeper) run(ctx context.Context) {
	for {
		select {
		case <-k.wake:
		case <-ctx.Done():
			return
		}
		pause := keepPause
		if k.flush() != nil {
			pause = keepRetry
			k.save(k.takePending())
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// takePending is what is still to be written.
func (k *keeper) takePending() *speakerv1.Desired {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pending
}

// flush what is pending.
func (k *keeper) flush() error {
	pending := k.takePending()
	if pending == nil {
		return nil
	}
	err := k.write(pending)
	k.mu.Lock()
	defer k.mu.Unlock()
	failed := ""
	if err != nil {
		failed = err.Error()
	} else if k.pending == pending {
		k.pending = nil
	}
	if failed != "" && failed != k.failed {
		k.log.Error("what is desired could not be kept for a restart, trying again", "error", err)
	}
	k.failed = failed
	return err
}

func (k *keeper) write(desired *speakerv1.Desired) error {
	data, err := protojson.Marshal(desired)
	if err != nil {
		return fmt.Errorf("keep %s: %w", desiredFile, err)
	}
	return statedir.Write(k.dir, desiredFile, append(data, '\n'))
}

// stop after a last write.
func (k *keeper) stop() error { return k.flush() }
