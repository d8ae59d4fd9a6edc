package speaker

// What is desired is kept on disk, for a start without a controller.

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/guideway/guideway/controller/statedir"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

const (
	desiredFile = "desired.json"
	// Plans follow one another up to twenty times a second; the disk gets one of them a second.
	keepPause = time.Second
)

type keeper struct {
	dir string
	log *slog.Logger
	*statedir.Keeper
}

func newKeeper(dir string, log *slog.Logger) (*keeper, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory %s: %w: create it, or name another by --state-dir", dir, err)
	}
	return &keeper{dir: dir, log: log, Keeper: statedir.NewKeeper(keepPause)}, nil
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

// save what no one edits from here on.
func (k *keeper) save(desired *speakerv1.Desired) {
	k.Keep(desiredFile, func() error {
		data, err := protojson.Marshal(desired)
		if err != nil {
			return fmt.Errorf("keep %s: %w", desiredFile, err)
		}
		return statedir.Write(k.dir, desiredFile, append(data, '\n'))
	}, statedir.TellLog(k.log, "what is desired could not be kept for a restart, trying again"))
}

func (k *keeper) problem() string { return k.Problem(desiredFile) }
