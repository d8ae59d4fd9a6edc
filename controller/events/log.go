package events

import (
	"log/slog"
	"sync"
	"time"
)

const (
	// KeptMax records, in memory and over a restart. Each takes some 400 bytes.
	KeptMax = 10_000
	// An event that happens again within this time of its first is one record with a count.
	foldWindow = 10 * time.Second
	// How often it is looked whether that time is over.
	foldInterval = time.Second
	// Changes of an object within foldWindow whose causes are told apart: a cause that has
	// a number in it would be another one each time.
	causesMax = 20
	// Records that a reader takes at a time.
	batchMax = 256
)

// Log of a machine's events.
type Log struct {
	log  *slog.Logger
	disk disk

	mu sync.Mutex
	// The record at position p is ring[p % KeptMax].
	ring []Record
	next uint64 // position
	// Of the latest record.
	number uint64
	// Events that may still be repeated: by what they are, and in their order.
	open   map[fold]*repeated
	opened []*repeated
	// Of those, how many each object has.
	causes map[Object]int
	// Closed when a record comes; nil: nobody waits for one.
	changed chan struct{}

	stop  chan struct{}
	tasks sync.WaitGroup
}

// fold is what repeats of an event have in common.
type fold struct {
	object               Object
	from, to, cause, who string
}

type repeated struct {
	Record
	fold
	began time.Time
}

// Open the log in a state directory. What cannot be read there is lost, which is said:
// events are no reason not to start.
func Open(stateDir string, log *slog.Logger) *Log {
	l := &Log{
		log: log, disk: newDisk(stateDir, log), ring: make([]Record, KeptMax),
		open: map[fold]*repeated{}, causes: map[Object]int{}, stop: make(chan struct{}),
	}
	for _, r := range l.disk.load() {
		l.append(r)
	}
	return l
}

// Start what runs beside whoever tells: until Close.
func (l *Log) Start() {
	from := l.next
	l.tasks.Go(func() { l.keep(from) })
	l.tasks.Go(func() {
		ticker := time.NewTicker(foldInterval)
		defer ticker.Stop()
		for {
			select {
			case now := <-ticker.C:
				l.mu.Lock()
				l.closeDue(now)
				l.mu.Unlock()
			case <-l.stop:
				return
			}
		}
	})
}

// A disk that hangs does not keep the controller from ending.
const closeTimeout = time.Second

// Close keeps what is not kept yet.
func (l *Log) Close() {
	l.mu.Lock()
	for len(l.opened) > 0 {
		l.closeFirst()
	}
	l.mu.Unlock()
	close(l.stop)
	ended := make(chan struct{})
	go func() { l.tasks.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(closeTimeout):
		l.log.Warn("the latest events are not kept on disk: it does not answer", "file", l.disk.path)
	}
}

// Tell that something changed. It waits for nothing.
func (l *Log) Tell(e Event) {
	e = e.bounded()
	key := fold{e.Object, e.From, e.To, e.Cause, e.Who}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.closeDue(now)
	if l.open[key] == nil && l.causes[e.Object] >= causesMax {
		key.cause, key.who = "", ""
	}
	if one := l.open[key]; one != nil {
		one.Count++
		one.Last = e.Time
		return
	}
	if len(l.opened) == KeptMax {
		l.closeFirst()
	}
	number := l.number + 1
	one := &repeated{Record{Number: number, ID: number, Event: e, Count: 1, Last: e.Time}, key, now}
	l.open[key] = one
	l.opened = append(l.opened, one)
	l.causes[e.Object]++
	l.append(one.Record)
}

// closeDue events: what happens from now on is another one.
func (l *Log) closeDue(now time.Time) {
	for len(l.opened) > 0 && now.Sub(l.opened[0].began) >= foldWindow {
		l.closeFirst()
	}
}

func (l *Log) closeFirst() {
	one := l.opened[0]
	l.opened[0] = nil
	l.opened = l.opened[1:]
	delete(l.open, one.fold)
	if l.causes[one.object]--; l.causes[one.object] == 0 {
		delete(l.causes, one.object)
	}
	if one.Count > 1 {
		one.Number = l.number + 1
		l.append(one.Record)
	}
}

func (l *Log) append(r Record) {
	l.ring[l.next%KeptMax] = r
	l.next++
	l.number = r.Number
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

func (l *Log) oldest() uint64 { return l.next - min(l.next, KeptMax) }

// after a position: the records from there on, and the position behind them; how many
// before them were overwritten. Without any, what is closed when there are some.
func (l *Log) after(at uint64) (found []Record, next, lost uint64, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if oldest := l.oldest(); at < oldest {
		at, lost = oldest, oldest-at
	}
	for ; at < l.next && len(found) < batchMax; at++ {
		found = append(found, l.ring[at%KeptMax])
	}
	if len(found) == 0 {
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed = l.changed
	}
	return found, at, lost, changed
}

// history is each event once, with its repeats so far, in order; and the position behind.
func (l *Log) history() (found []Record, next uint64) {
	l.mu.Lock()
	records := make([]Record, 0, l.next-l.oldest())
	for at := l.oldest(); at < l.next; at++ {
		records = append(records, l.ring[at%KeptMax])
	}
	for _, one := range l.opened {
		if one.Count > 1 {
			records = append(records, one.Record)
		}
	}
	next = l.next
	l.mu.Unlock()
	at := make(map[uint64]int, len(records)) // by id
	for _, r := range records {
		if i, known := at[r.ID]; known {
			found[i] = r
			continue
		}
		at[r.ID] = len(found)
		found = append(found, r)
	}
	return found, next
}

// Latest record of an object; false: none is kept.
func (l *Log) Latest(object Object) (latest Record, known bool) {
	l.Back(0, func(r *Record) bool {
		if r.Object == object {
			latest, known = *r, true
		}
		return !known
	})
	return latest, known
}
