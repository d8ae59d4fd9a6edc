package config

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestOfAFileOnADiskThatHangsOneReadIsBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Int32
		answers := make(chan string)
		r := reads{read: func(path string) ([]byte, fs.FileMode, error) {
			if path == "elsewhere" {
				return nil, 0, nil
			}
			begun.Add(1)
			return []byte(<-answers), 0, nil
		}}
		for range 3 {
			if _, _, err := r.readInTime(t.Context(), "file"); err == nil || !strings.Contains(err.Error(), "does its file system answer?") || begun.Load() != 1 {
				t.Fatalf("%d reads: %v", begun.Load(), err)
			}
		}
		if _, _, err := r.readInTime(t.Context(), "elsewhere"); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := r.readInTime(ctx, "file"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		go func() { answers <- "former"; answers <- "present" }()
		if data, _, err := r.readInTime(t.Context(), "file"); err != nil || string(data) != "present" || begun.Load() != 2 {
			t.Errorf("%d reads: %q, %v", begun.Load(), data, err)
		}
		go func() { answers <- "again" }()
		if data, _, err := r.readInTime(t.Context(), "file"); err != nil || string(data) != "again" {
			t.Errorf("%q, %v", data, err)
		}
	})
}
