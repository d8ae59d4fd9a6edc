package configs

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/config"
)

func openedHistory(t *testing.T, dir string) *History {
	t.Helper()
	h, err := OpenHistory(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func recorded(text string, of Origin) Record {
	return NewRecord(of, []config.Source{{Name: "/etc/a.yaml", Data: []byte(text)}}, time.Unix(1_700_000_000, 0))
}

func numbers(h *History) (numbers []uint64) {
	for _, r := range h.List("").Records {
		numbers = append(numbers, r.Number)
	}
	return numbers
}

func TestAHistoryIsThereAfterARestartToTheByte(t *testing.T) {
	dir := t.TempDir()
	h := openedHistory(t, dir)
	text := "a: \xff\x00\n" // no UTF-8
	h.Add(recorded("first", Origin{How: "start"}))
	h.Add(recorded(text, Origin{How: "apply", User: "root", Message: "why", From: []string{"/root/new.yaml"}}))
	if err := h.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, err := h.Get(2)
		if err != nil || string(got.Files[0].Data) != text || got.Files[0].Name != "/etc/a.yaml" {
			t.Fatalf("%v %v", got, err)
		}
		r := got.Record
		if r.How != "apply" || r.User != "root" || r.Message != "why" || r.From[0] != "/root/new.yaml" || r.Time.AsTime().Unix() != 1_700_000_000 || r.Bytes != uint64(len(text)) {
			t.Errorf("record %v", r)
		}
		list := h.List(r.Digest).Records
		if len(list) != 2 || !list[0].InUse || list[1].InUse {
			t.Errorf("list %v", list)
		}
		h = openedHistory(t, dir)
	}
	if _, err := h.Get(3); !errors.Is(err, api.ErrUnknownConfig) {
		t.Errorf("an unknown number: %v", err)
	}
	if info, err := os.Stat(h.path(2)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

func TestWhatWasInUseIsNotRecordedAgain(t *testing.T) {
	dir := t.TempDir()
	h := openedHistory(t, dir)
	for _, text := range []string{"a", "a", "b", "a"} {
		h.Add(recorded(text, Origin{How: "reload"}))
	}
	if err := h.Flush(); err != nil {
		t.Fatal(err)
	}
	h = openedHistory(t, dir)
	h.Add(recorded("a", Origin{How: "start"}))
	if err := h.Flush(); err != nil || !slices.Equal(numbers(h), []uint64{3, 2, 1}) {
		t.Errorf("%v %v", numbers(h), err)
	}
}

func TestAHistoryIsBoundedInNumberAndNumbersGoOn(t *testing.T) {
	dir := t.TempDir()
	h := openedHistory(t, dir)
	for i := range recordsMax + 7 {
		h.Add(recorded(fmt.Sprint(i), Origin{}))
		if err := h.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if got := numbers(h); len(got) != recordsMax || got[0] != recordsMax+7 || got[recordsMax-1] != 8 {
			t.Errorf("numbers %v", got)
		}
		h = openedHistory(t, dir)
	}
	h.Add(recorded("next", Origin{}))
	if err := h.Flush(); err != nil || numbers(h)[0] != recordsMax+8 {
		t.Errorf("%v %v", numbers(h), err)
	}
}

func TestAHistoryIsBoundedInBytesAndLeavesOneToReturnTo(t *testing.T) {
	h := openedHistory(t, t.TempDir())
	for i := range 5 {
		h.Add(recorded(string(bytes.Repeat([]byte{'a' + byte(i)}, historyBytesMax/2)), Origin{}))
		if err := h.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if got := numbers(h); !slices.Equal(got, []uint64{5, 4}) {
		t.Errorf("numbers %v", got)
	}
}

// A folder in the way of the file stands for a full disk.
func TestAFullDiskIsToldAndLosesNothing(t *testing.T) {
	dir := t.TempDir()
	h := openedHistory(t, dir)
	h.Add(recorded("first", Origin{}))
	if err := h.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(h.path(2), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"second", "third"} {
		h.Add(recorded(text, Origin{How: text}))
		if err := h.Flush(); err == nil || h.isComplete() || h.List("").NotRecorded != err.Error() {
			t.Errorf("%v; told: %q", err, h.List("").NotRecorded)
		}
	}
	if got := numbers(h); !slices.Equal(got, []uint64{1}) {
		t.Errorf("numbers %v", got)
	}
	if err := os.Remove(h.path(2)); err != nil {
		t.Fatal(err)
	}
	if err := h.Flush(); err != nil || !h.isComplete() {
		t.Fatal(err)
	}
	var hows []string
	for _, r := range h.List("").Records {
		hows = append(hows, r.How)
	}
	if !slices.Equal(hows, []string{"third", "second", ""}) || h.List("").NotRecorded != "" {
		t.Errorf("%v", h.List(""))
	}
	if left, _ := filepath.Glob(filepath.Join(h.dir, Unfinished+"*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestWhatACrashLeavesIsNoRecord(t *testing.T) {
	dir := t.TempDir()
	h := openedHistory(t, dir)
	h.Add(recorded("a", Origin{}))
	if err := h.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Prepare(recorded("b", Origin{})); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.path(2), []byte(`{"digest":"no`), 0o600); err != nil {
		t.Fatal(err)
	}
	h = openedHistory(t, dir)
	h.Add(recorded("c", Origin{}))
	if err := h.Flush(); err != nil || !slices.Equal(numbers(h), []uint64{3, 1}) {
		t.Errorf("%v %v", numbers(h), err)
	}
	left, _ := filepath.Glob(filepath.Join(h.dir, "*"))
	hidden, _ := filepath.Glob(filepath.Join(h.dir, ".*"))
	if len(left) != 3 || len(hidden) != 0 {
		t.Errorf("there are %v %v", left, hidden)
	}
}
