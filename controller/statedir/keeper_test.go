package statedir

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// told are the results that somebody heard.
type told []string

func (t *told) hear(err error, isNew bool) {
	what := "kept"
	if err != nil {
		what = err.Error()
	}
	if isNew {
		what = "now: " + what
	}
	*t = append(*t, what)
}

func TestTheLatestValueIsKeptWhileTheDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(0)
		var order []string
		write := func(value string) func() error { return func() error { order = append(order, value); return nil } }
		answers := make(chan struct{})
		var heard told
		k.Keep("a", func() error { <-answers; return write("a1")() }, heard.hear)
		synctest.Wait() // it hangs
		for _, value := range []string{"a2", "a3"} {
			k.Keep("a", write(value), heard.hear)
		}
		k.Keep("b", write("b1"), heard.hear)
		if k.Problem("a") != "" {
			t.Error("told at once")
		}
		before := time.Now()
		if err := k.Await(t.Context(), "b"); err == nil || !strings.Contains(err.Error(), "would be lost by a restart") || time.Since(before) != keepTimeout {
			t.Errorf("%v after %v", err, time.Since(before))
		}
		for _, name := range []string{"a", "b"} {
			if why := k.Problem(name); !strings.Contains(why, "has not taken it for 10s") {
				t.Errorf("%s: %q", name, why)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := k.Await(ctx, "a"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		close(answers)
		if err := errors.Join(k.Await(t.Context(), "a"), k.Await(t.Context(), "b"), k.Await(t.Context(), "never")); err != nil {
			t.Error(err)
		}
		if why := k.Problem("a") + k.Problem("b"); why != "" {
			t.Error(why)
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
		if !slices.Equal(order, []string{"a1", "a3", "b1"}) || !slices.Equal(heard, []string{"kept", "kept", "kept"}) {
			t.Errorf("%q, told %q", order, heard)
		}
	})
}

func TestToSettleTakesAsLongAsTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(0)
		const most = time.Second
		settles := func(want time.Duration) {
			t.Helper()
			begun := time.Now()
			k.Settle(most)
			if took := time.Since(begun); took != want {
				t.Errorf("it took %v in place of %v", took, want)
			}
		}
		ignore := func(error, bool) {}
		after := func(d time.Duration, err error) func() error { return func() error { time.Sleep(d); return err } }
		settles(0)
		k.Keep("a", after(100*time.Millisecond, nil), ignore)
		synctest.Wait() // it is being written
		settles(100 * time.Millisecond)
		k.Keep("a", after(100*time.Millisecond, nil), ignore)
		k.Keep("b", after(100*time.Millisecond, errors.New("disk full")), ignore)
		settles(200 * time.Millisecond)
		settles(0) // b is tried again later
		k.Keep("a", after(3*time.Second, nil), ignore)
		settles(most)
		settles(0) // the disk hangs
		k.Keep("c", after(0, nil), ignore)
		settles(0)
		if err := errors.Join(k.Await(t.Context(), "c"), k.Close()); err == nil || !strings.Contains(err.Error(), "b is not on disk") {
			t.Error(err)
		}
	})
}

func TestWhatCannotBeKeptIsTriedAgainAndToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(0)
		var tries atomic.Int32
		problem := errors.New("disk full")
		var hasRoom atomic.Bool
		write := func() error {
			tries.Add(1)
			if hasRoom.Load() {
				return nil
			}
			return problem
		}
		var heard, next told
		k.Keep("a", write, heard.hear)
		for range 2 {
			if err := k.Await(t.Context(), "a"); !errors.Is(err, problem) || k.Problem("a") != "disk full" {
				t.Error(err)
			}
		}
		time.Sleep(2*keepRetry + time.Second)
		if tries.Load() != 3 || !slices.Equal(heard, []string{"now: disk full"}) {
			t.Errorf("%d tries, told %q", tries.Load(), heard)
		}
		// A newer value does not wait for the former one's time.
		k.Keep("a", write, next.hear)
		if err := k.Await(t.Context(), "a"); !errors.Is(err, problem) || tries.Load() != 4 {
			t.Errorf("%d tries: %v", tries.Load(), err)
		}
		hasRoom.Store(true)
		time.Sleep(keepRetry)
		synctest.Wait()
		if len(heard) != 1 || !slices.Equal(next, []string{"disk full", "now: kept"}) || k.Problem("a") != "" {
			t.Errorf("told %q and %q", heard, next)
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAnEndTriesOnceMoreAndNamesWhatIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(0)
		full := true
		k.Keep("a", func() error {
			if full {
				return errors.New("disk full")
			}
			return nil
		}, func(error, bool) {})
		synctest.Wait()
		full = false
		if err := k.Close(); err != nil {
			t.Error(err)
		}

		k = NewKeeper(0)
		answers := make(chan struct{})
		k.Keep("a", func() error { <-answers; return nil }, func(error, bool) {})
		k.Keep("b", func() error { return errors.New("disk full") }, func(error, bool) {})
		synctest.Wait()
		if err := k.Close(); err == nil || err.Error() != "a is not on disk for the next start: the disk does not answer\nb is not on disk for the next start: the disk does not answer" {
			t.Error(err)
		}
		close(answers)
	})
}

func TestAPauseKeepsOnlyWhatIsLatestAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pause = time.Second
		begun := time.Now()
		k := NewKeeper(pause)
		var order []string
		keep := func(value string) {
			k.Keep("a", func() error {
				order = append(order, fmt.Sprint(value, " after ", time.Since(begun)))
				return nil
			}, func(error, bool) {})
			synctest.Wait()
		}
		for _, value := range []string{"1", "2", "3"} {
			keep(value)
		}
		time.Sleep(pause)
		synctest.Wait()
		keep("4")
		if err := k.Close(); err != nil { // which waits for no pause
			t.Error(err)
		}
		if !slices.Equal(order, []string{"1 after 0s", "3 after 1s", "4 after 1s"}) {
			t.Errorf("%q", order)
		}
	})
}
