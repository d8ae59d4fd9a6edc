package events

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type safeBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func logTo(w *safeBuffer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

func change(name, from, to string) Event {
	return Event{Time: time.Now(), Machine: "lb-1", Object: Object{"backend", name}, From: from, To: to, Cause: "no answer"}
}

// session of a controller: what is told in it is kept when it ends.
func session(t *testing.T, dir string, tell func(*Log)) (said string) {
	t.Helper()
	var log safeBuffer
	l := Open(dir, logTo(&log))
	l.Start()
	tell(l)
	l.Close()
	return log.String()
}

func kept(l *Log) (names []string) {
	found, _ := l.history()
	for _, r := range found {
		names = append(names, r.Object.Name)
	}
	return names
}

func Test_events_survive_a_restart(t *testing.T) {
	dir := t.TempDir()
	first := change("web/web-1", "active", "down")
	first.Who = "alice"
	session(t, dir, func(l *Log) { l.Tell(first); l.Tell(change("web/web-2", "active", "down")) })
	session(t, dir, func(l *Log) {
		l.Tell(change("web/web-3", "active", "down"))
		found, _ := l.history()
		if names := fmt.Sprint(kept(l)); names != "[web/web-1 web/web-2 web/web-3]" {
			t.Error(names)
		}
		got := found[0]
		if !got.Time.Equal(first.Time) || got.Object != first.Object || got.From != "active" || got.To != "down" || got.Cause != "no answer" || got.Who != "alice" || got.Machine != "lb-1" || got.Number != 1 || got.Count != 1 {
			t.Errorf("%+v", got)
		}
		if latest, known := l.Latest(Object{"backend", "web/web-2"}); !known || latest.Number != 2 || found[2].Number != 3 {
			t.Errorf("%+v %+v", latest, found[2])
		}
	})
	info, err := os.Stat(filepath.Join(dir, File))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

func Test_a_damaged_tail_is_cut_and_what_is_before_stays(t *testing.T) {
	for name, tail := range map[string]string{
		"torn":           `{"number":3,"id":3,"time":"2026-`,
		"no JSON":        "rubbish\n",
		"zeros":          strings.Repeat("\x00", 4096),
		"a number again": `{"number":2,"id":2,"time":"2026-11-29T03:16:27Z","object":"backend x","count":1,"last":"2026-11-29T03:16:27Z"}` + "\n",
		"endless":        strings.Repeat("x", 3*fileBytesMax),
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, File)
		session(t, dir, func(l *Log) { l.Tell(change("one", "a", "b")); l.Tell(change("two", "a", "b")) })
		good, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, append(good, tail...), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		said := session(t, dir, func(l *Log) { l.Tell(change("three", "a", "b")) })
		if strings.Count(said, "damaged events are left out") != 1 {
			t.Errorf("%s: said %q", name, said)
		}
		said = session(t, dir, func(l *Log) {
			if names := fmt.Sprint(kept(l)); names != "[one two three]" {
				t.Errorf("%s: %s", name, names)
			}
		})
		if now, _ := os.ReadFile(path); said != "" || !bytes.HasPrefix(now, good) || bytes.Count(now, []byte("\n")) != 3 {
			t.Errorf("%s: said %q, file %.300q", name, said, now)
		}
	}
}

func Test_a_damaged_line_in_the_middle_is_left_out(t *testing.T) {
	dir := t.TempDir()
	session(t, dir, func(l *Log) {
		for _, name := range []string{"one", "two", "three"} {
			l.Tell(change(name, "a", "b"))
		}
	})
	path := filepath.Join(dir, File)
	data, _ := os.ReadFile(path)
	if err := os.WriteFile(path, bytes.Replace(data, []byte(`"object":"backend two"`), []byte(`"object":"backend tw`+"\x00\x00"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	session(t, dir, func(l *Log) {
		if names := fmt.Sprint(kept(l)); names != "[one three]" {
			t.Error(names)
		}
	})
}

func Test_the_log_is_bounded_in_memory_and_on_disk(t *testing.T) {
	dir := t.TempDir()
	const told = 3*KeptMax + 17
	session(t, dir, func(l *Log) {
		for i := range told {
			l.Tell(change(fmt.Sprint(i), "a", "b"))
			if i%1000 == 0 {
				time.Sleep(time.Millisecond) // the disk keeps up
			}
		}
		if n := len(kept(l)); n != KeptMax || len(l.opened) > KeptMax {
			t.Errorf("%d are kept, %d open", n, len(l.opened))
		}
	})
	lines := 0
	for _, name := range []string{File, File + ".1"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if n := bytes.Count(data, []byte("\n")); err != nil || n > fileLinesMax+batchMax {
			t.Errorf("%s: %v, %d lines", name, err, n)
		} else {
			lines += n
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 || lines < KeptMax {
		t.Errorf("%d files, %d lines", len(entries), lines)
	}
	session(t, dir, func(l *Log) {
		names := kept(l)
		if len(names) != KeptMax || names[len(names)-1] != fmt.Sprint(told-1) {
			t.Errorf("%d are kept, the last is %s", len(names), names[len(names)-1])
		}
	})
}

func Test_flaps_are_one_record_a_direction_with_a_count(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		session(t, dir, func(l *Log) {
			for range 1000 {
				l.Tell(change("web/web-1", "active", "down"))
				time.Sleep(4 * time.Millisecond)
				l.Tell(change("web/web-1", "down", "active"))
				time.Sleep(4 * time.Millisecond)
			}
			found, _ := l.history() // before their time is over
			if len(found) != 2 || found[0].Count != 1000 || found[1].Count != 1000 || found[0].Last.Sub(found[0].Time) < 7*time.Second {
				t.Errorf("%+v", found)
			}
			time.Sleep(foldWindow + foldInterval)
			synctest.Wait()
			if l.next != 4 || len(l.opened) != 0 || len(l.causes) != 0 {
				t.Errorf("%d records, %d open", l.next, len(l.opened))
			}
			l.Tell(change("web/web-1", "active", "down")) // another time
		})
		session(t, dir, func(l *Log) {
			found, _ := l.history()
			if len(found) != 3 || found[0].Count != 1000 || found[1].Count != 1000 || found[2].Count != 1 || found[0].ID != 1 || found[0].Number != 3 {
				t.Errorf("after a restart: %+v", found)
			}
		})
	})
}

func Test_a_cause_that_is_another_one_each_time_does_not_fill_the_log(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		session(t, t.TempDir(), func(l *Log) {
			for i := range 2000 {
				e := change("web/web-1", "active", "down")
				e.Cause = fmt.Sprintf("no answer within %d ms", i)
				l.Tell(e)
			}
			if found, _ := l.history(); len(found) != causesMax+1 || found[causesMax].Count != 2000-causesMax {
				t.Errorf("%d records", len(found))
			}
		})
	})
}

// broken opens files that fail until it is mended.
type broken struct {
	mu     sync.Mutex
	mended bool
	open   func() (*os.File, error)
}

func (b *broken) file(path string) (*os.File, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mended {
		return openFile(path)
	}
	return b.open()
}

func Test_a_full_disk_is_said_once_and_what_was_told_is_kept_later(t *testing.T) {
	for name, disk := range map[string]func() (*os.File, error){
		"full":    func() (*os.File, error) { return os.OpenFile("/dev/full", os.O_WRONLY, 0) },
		"no file": func() (*os.File, error) { return nil, errors.New("read-only file system") },
	} {
		synctest.Test(t, func(t *testing.T) {
			dir := t.TempDir()
			var log safeBuffer
			l := Open(dir, logTo(&log))
			b := &broken{open: disk}
			l.disk.open = b.file
			l.Start()
			for i := range KeptMax + 500 {
				l.Tell(change(fmt.Sprint(i), "a", "b"))
			}
			time.Sleep(10 * diskRetry)
			if said := log.String(); strings.Count(said, "events are not kept on disk") != 1 {
				t.Errorf("%s: %s", name, said)
			}
			b.mu.Lock()
			b.mended = true
			b.mu.Unlock()
			time.Sleep(diskRetry)
			l.Close()
			if said := log.String(); strings.Count(said, "events are kept on disk again") != 1 || !strings.Contains(said, "lost=") {
				t.Errorf("%s: %s", name, said)
			}
			session(t, dir, func(l *Log) {
				if names := kept(l); len(names) != KeptMax || names[0] != "500" {
					t.Errorf("%s: %d are kept, the first is %s", name, len(names), names[0])
				}
			})
		})
	}
}

func Test_nobody_waits_for_a_disk_that_hangs(t *testing.T) {
	var log safeBuffer
	l := Open(t.TempDir(), logTo(&log))
	reader, writer, err := os.Pipe() // takes 64 KiB
	if err != nil {
		t.Fatal(err)
	}
	l.disk.open = func(string) (*os.File, error) { return writer, nil }
	l.Start()
	began := time.Now()
	const told = 4 * KeptMax
	for i := range told {
		l.Tell(change(fmt.Sprint(i), "a", "b"))
	}
	t.Logf("%v for each of %d events", time.Since(began)/told, told)
	if names := kept(l); names[len(names)-1] != fmt.Sprint(told-1) {
		t.Errorf("the latest is %s", names[len(names)-1])
	}
	l.Close()
	if !strings.Contains(log.String(), "the latest events are not kept on disk: it does not answer") {
		t.Error(log.String())
	}
	reader.Close() // what hangs ends
	l.tasks.Wait()
}

func watched(t *testing.T, l *Log, f Filter) (found []Record) {
	t.Helper()
	err := l.Watch(t.Context(), f, func(r *Record, _ uint64) error { found = append(found, *r); return nil })
	if err != nil {
		t.Error(err)
	}
	return found
}

func Test_a_reader_gets_what_its_filter_lets_through(t *testing.T) {
	l := Open(t.TempDir(), slog.New(slog.DiscardHandler))
	at := time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)
	for i, object := range []Object{{"backend", "web/web-1"}, {"service", "web"}, {"virtual router", "51 ipv4"}, {"service", "mail"}} {
		l.Tell(Event{Time: at.Add(time.Duration(i) * time.Minute), Object: object, To: "x"})
	}
	is := func(text string) func(Object) bool { return func(o Object) bool { return o.Is(text) } }
	for name, c := range map[string]struct {
		filter Filter
		want   string
	}{
		"all":                   {Filter{}, "[1 2 3 4]"},
		"since":                 {Filter{Since: at.Add(time.Minute)}, "[2 3 4]"},
		"until":                 {Filter{Until: at.Add(time.Minute)}, "[1 2]"},
		"between":               {Filter{Since: at.Add(time.Second), Until: at.Add(2 * time.Minute)}, "[2 3]"},
		"a kind":                {Filter{Objects: is("service")}, "[2 4]"},
		"kind and name":         {Filter{Objects: is("service mail")}, "[4]"},
		"a backend, no pools":   {Filter{Objects: is("backend web-1")}, "[1]"},
		"a kind with a space":   {Filter{Objects: is("virtual router")}, "[3]"},
		"half a kind":           {Filter{Objects: is("virtual")}, "[]"},
		"after":                 {Filter{After: 3}, "[4]"},
		"after the latest":      {Filter{After: 4}, "[]"},
		"after one not yet had": {Filter{After: 5}, "[1 2 3 4]"},
	} {
		numbers := []uint64{}
		for _, r := range watched(t, l, c.filter) {
			numbers = append(numbers, r.Number)
		}
		if got := fmt.Sprint(numbers); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func Test_events_are_read_backwards_each_once_with_its_repeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Open(t.TempDir(), logTo(&safeBuffer{}))
		for i := range 3 * batchMax {
			l.Tell(change(fmt.Sprint("web/", i), "active", "down"))
		}
		time.Sleep(foldWindow)
		for range 3 {
			l.Tell(change("flaps", "active", "down")) // one record, and two repeats without one
		}
		l.Tell(change("last", "active", "down"))
		back := func(before uint64, limit int) (names []string, first Record) {
			l.Back(before, func(r *Record) bool {
				names = append(names, r.Object.Name)
				if len(names) == 1 {
					first = *r
				}
				return len(names) < limit
			})
			return names, first
		}
		if names, _ := back(0, 3); fmt.Sprint(names) != "[last flaps web/767]" {
			t.Error(names)
		}
		if _, first := back(770, 1); first.Object.Name != "flaps" || first.Count != 3 {
			t.Errorf("%+v", first)
		}
		if names, first := back(0, KeptMax); len(names) != 3*batchMax+2 || first.Number != 770 {
			t.Errorf("%d, %+v", len(names), first)
		}
		time.Sleep(foldWindow)
		l.Tell(change("later", "active", "down")) // closes what was open: the repeats are a record
		if names, _ := back(0, KeptMax); len(names) != 3*batchMax+3 || fmt.Sprint(names[:3]) != "[later flaps last]" {
			t.Errorf("%d, %v", len(names), names[:3])
		}
		if names, _ := back(769, KeptMax); len(names) != 3*batchMax || names[0] != "web/767" {
			t.Errorf("before a record that was repeated since: %d, %v", len(names), names[0])
		}
		if names, _ := back(1, KeptMax); names != nil {
			t.Error(names)
		}
		close(l.stop)
	})
}

func Test_order_is_that_of_telling_also_when_the_clock_goes_back(t *testing.T) {
	dir := t.TempDir()
	session(t, dir, func(l *Log) {
		for i, name := range []string{"one", "two", "three"} {
			e := change(name, "a", "b")
			e.Time = time.Date(2026, 1, 1, 12-i, 0, 0, 0, time.UTC)
			l.Tell(e)
		}
	})
	session(t, dir, func(l *Log) {
		if names := fmt.Sprint(kept(l)); names != "[one two three]" {
			t.Error(names)
		}
	})
}

func Test_a_reader_follows_and_a_slow_one_is_told_what_it_missed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Open(t.TempDir(), slog.New(slog.DiscardHandler))
		l.Start()
		defer l.Close()
		l.Tell(change("before", "a", "b"))
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		var missed uint64
		goOn, ended := make(chan struct{}), make(chan error)
		go func() {
			ended <- l.Watch(ctx, Filter{Follow: true}, func(r *Record, lost uint64) error {
				if r == nil {
					missed += lost
					return nil
				}
				got = append(got, fmt.Sprint(r.Object.Name, r.Count))
				if r.Object.Name == "slow" && r.Count == 1 {
					<-goOn
				}
				return nil
			})
		}()
		synctest.Wait()
		l.Tell(change("slow", "a", "b"))
		synctest.Wait()
		for i := range KeptMax + 5 {
			l.Tell(change(fmt.Sprint(i), "a", "b"))
		}
		close(goOn)
		synctest.Wait()
		if len(got) != 2+KeptMax || missed != 5 || got[0] != "before1" || got[2] != "51" {
			t.Errorf("%d events, %d missed, %v", len(got), missed, got[:3])
		}
		got = nil
		for range 7 {
			l.Tell(change("again", "a", "b"))
		}
		synctest.Wait()
		time.Sleep(foldWindow + foldInterval)
		synctest.Wait()
		if fmt.Sprint(got) != "[again1 again7]" {
			t.Error(got)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func Test_texts_are_cut_and_quoted_whoever_wrote_them(t *testing.T) {
	l := Open(t.TempDir(), slog.New(slog.DiscardHandler))
	l.Tell(Event{Object: Object{"backend", "a\x1b[2J"}, From: "x\ny", Cause: "a\nb " + strings.Repeat("long ", 1000), Who: "\u202eroot"})
	r := watched(t, l, Filter{})[0]
	if r.Object.Name != `a\x1b[2J` || r.From != `x\ny` || len(r.Cause) > causeBytesMax || !strings.HasPrefix(r.Cause, "a; b long") || r.Who != `\u202eroot` {
		t.Errorf("%+v", r)
	}
}

// Programs of hooks read this.
func Test_an_event_as_JSON(t *testing.T) {
	e := Event{Time: time.Date(2026, 11, 29, 3, 16, 27, 8e8, time.UTC), Machine: "lb-1", Object: Object{"virtual router", "51 ipv4"}, From: "backup", To: "active", Cause: "why"}
	text, err := json.Marshal(e)
	if want := `{"time":"2026-11-29T03:16:27.8Z","machine":"lb-1","object":"virtual router 51 ipv4","from":"backup","to":"active","cause":"why","who":""}`; err != nil || string(text) != want {
		t.Errorf("%s %v", text, err)
	}
	var back Event
	if err := json.Unmarshal(text, &back); err != nil || back != e {
		t.Errorf("%+v %v", back, err)
	}
	for text, want := range map[string]Object{"later kind": {"later", "kind"}, "drain backend web-1": {"drain", "backend web-1"}} {
		var o Object
		if err := o.UnmarshalText([]byte(text)); err != nil || o != want {
			t.Errorf("%s: %+v %v", text, o, err)
		}
	}
}

func Test_the_docs_have_every_kind(t *testing.T) {
	page, err := os.ReadFile("../../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range Kinds {
		if !strings.Contains(string(page), "\n| `"+kind+" ") {
			t.Errorf("docs/events.md does not say when there are events of %q", kind)
		}
	}
}

func BenchmarkTell(b *testing.B) {
	l := Open(b.TempDir(), slog.New(slog.DiscardHandler))
	for i := range b.N {
		l.Tell(change("web/web-1", "active", [...]string{"down", "up"}[i%2]))
	}
}
