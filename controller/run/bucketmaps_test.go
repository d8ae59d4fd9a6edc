package run

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/statedir"
	"github.com/guideway/guideway/controller/store"
)

func newKeeper(t *testing.T) *statedir.Keeper {
	k := statedir.NewKeeper(0)
	t.Cleanup(func() { _ = k.Close() }) // else its goroutine stays
	return k
}

// A controller that starts knows that the others do not wait for it; where that cannot be
// read it takes it that they do not.
func TestItIsKeptThatNoMoveWaitsForThisMachine(t *testing.T) {
	dir := store.Store{Dir: t.TempDir()}
	start := func() *Controller {
		c := &Controller{store: dir, keeper: newKeeper(t), log: slog.New(slog.DiscardHandler)}
		c.restoreWithdrawn()
		return c
	}
	for _, want := range []bool{false, true, false} {
		c := start()
		c.keepWithdrawn(brain.Desired{Withdrawn: want})
		if err := c.keeper.Close(); err != nil {
			t.Error(err)
		}
		if got := start().withdrawn; got != want {
			t.Errorf("%v in place of %v", got, want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir.Dir, "withdrawn.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !start().withdrawn {
		t.Error("what cannot be read: moves are taken to wait for it")
	}
}
