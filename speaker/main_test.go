package speaker

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// A test has a speaker in a network namespace by executing this program there, with the
// run directory in this variable.
const runDirVariable = "GUIDEWAY_TEST_SPEAKER_RUN_DIR"

func TestMain(m *testing.M) {
	runDir := os.Getenv(runDirVariable)
	if runDir == "" {
		goleak.VerifyTestMain(m)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := Run(ctx, Options{RunDir: runDir, StateDir: runDir + "/state", Version: "test", Log: log}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
