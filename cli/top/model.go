package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/guideway/guideway/controller/rates"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// Rates come each second. Those that are older than this are not shown: they are no longer
// what happens now. A stream that is opened again is faster.
const staleAfter = 5 * time.Second

// watched is a machine and what was heard of it last.
type watched struct {
	name  string
	rates *controllerv1.Rates
	heard time.Time
	// Why nothing is heard; empty: it is, or soon.
	trouble string
}

// wrong with a machine at a time, and the cure; empty: its rates are those of now, or it
// was asked a moment ago.
func (w watched) wrong(now time.Time) string {
	switch {
	case w.trouble != "":
		return w.trouble
	case w.rates.GetProblem() != "":
		return w.rates.Problem + ": see `systemctl status guideway-forwarder` on its machine"
	case now.Sub(w.heard) > staleAfter:
		return fmt.Sprintf("the controller has sent no rates for %v: it hangs, or the network to it is down: see `systemctl status guideway-controller` on its machine",
			now.Sub(w.heard).Truncate(time.Second))
	}
	return ""
}

// isCurrent: there are rates, and nothing is wrong.
func (w watched) isCurrent(now time.Time) bool { return w.rates != nil && w.wrong(now) == "" }

// why there are no current rates, with the machine's name.
func (w watched) why(now time.Time) string {
	why := cmp.Or(w.wrong(now), "waiting for the first rates")
	if w.name == "" {
		return why
	}
	return w.name + ": " + strings.TrimPrefix(why, w.name+": ")
}

// observation is everything that was heard until a time.
type observation struct {
	at       time.Time
	machines map[string]watched
	// Why some machines of the fleet may be missing.
	incomplete string
}

// inOrder of name.
func (o observation) inOrder() []watched {
	return slices.SortedFunc(maps.Values(o.machines), func(a, b watched) int { return cmp.Compare(a.name, b.name) })
}

// update is news of one machine, or of the fleet if it has no name there.
type update struct {
	name    string
	rates   *controllerv1.Rates
	trouble string
	// Of the fleet: all its machines; nil: as before.
	names []string
}

func (o *observation) take(u update, isFleet bool) {
	if isFleet && u.name == "" {
		o.incomplete = u.trouble
		maps.DeleteFunc(o.machines, func(name string, _ watched) bool { return u.names != nil && !slices.Contains(u.names, name) })
		return
	}
	w := o.machines[u.name]
	w.name, w.trouble = u.name, u.trouble
	if u.rates != nil {
		w.rates, w.heard = u.rates, o.at
	} else if w.rates == nil {
		w.heard = o.at // it is asked
	}
	o.machines[u.name] = w
}

// sum of the machines whose rates are current, and how many these are.
func (o observation) sum() (sum *controllerv1.Rates, current int) {
	sum = &controllerv1.Rates{}
	services, backends := map[string]*controllerv1.Rate{}, map[string]*controllerv1.Rate{}
	drops := map[string]*controllerv1.DropRate{}
	for _, w := range o.inOrder() {
		if !w.isCurrent(o.at) {
			continue
		}
		current++
		r := w.rates
		sum.Machine, sum.Time, sum.Seconds = r.Machine, r.Time, r.Seconds
		sum.Received += r.Received
		sum.Sent += r.Sent
		sum.Passed += r.Passed
		sum.Replied += r.Replied
		sum.Redirected += r.Redirected
		sum.Bytes += r.Bytes
		sum.NewConnections += r.NewConnections
		addRates(services, r.Services)
		addRates(backends, r.Backends)
		// Machines have most services in common.
		sum.ServicesBusy, sum.BackendsBusy = max(sum.ServicesBusy, r.ServicesBusy), max(sum.BackendsBusy, r.BackendsBusy)
		for _, d := range r.Dropped {
			of := drops[d.Reason]
			if of == nil {
				of = &controllerv1.DropRate{Reason: d.Reason, Meaning: d.Meaning, UsualCause: d.UsualCause}
				drops[d.Reason] = of
			}
			of.Packets += d.Packets
		}
		for _, worker := range r.Workers {
			name := worker.Name
			if w.name != "" {
				name = w.name + "/" + name
			}
			sum.Workers = append(sum.Workers, &controllerv1.WorkerLoad{Name: name, BusyRatio: worker.BusyRatio})
		}
	}
	sum.Services, sum.Backends = slices.Collect(maps.Values(services)), slices.Collect(maps.Values(backends))
	sum.Dropped = slices.SortedFunc(maps.Values(drops), rates.CompareDrops)
	return sum, current
}

func addRates(sums map[string]*controllerv1.Rate, rates []*controllerv1.Rate) {
	for _, r := range rates {
		of := sums[nameOf(r)]
		if of == nil {
			of = &controllerv1.Rate{Service: r.Service, Backend: r.Backend}
			sums[nameOf(r)] = of
		}
		of.Packets += r.Packets
		of.Bytes += r.Bytes
		of.NewConnections += r.NewConnections
		of.Answers = r.Answers // each machine hears the same agent
	}
}

// nameOf a service, or of a backend with its service's.
func nameOf(r *controllerv1.Rate) string {
	if r.Service == "" || r.Backend == "" {
		return r.Service + r.Backend
	}
	return r.Service + "/" + r.Backend
}

type view int

const (
	services view = iota
	backends
	drops
	machines // of a fleet
)

// model is what the screen is made from.
type model struct {
	isFleet bool
	// What the API is asked for.
	sort, filter string
	limit        int

	width, height int
	view          view
	showsHelp     bool
	// A filter is being typed.
	isTyping bool
	typed    string

	// Lines of the table that are scrolled away. The latest screen shows so many, and so many are below.
	offset, page, more int

	now observation
	// As it was when space was pressed; nil: it goes on.
	paused *observation
}

// sorts in the order of their columns.
var sorts = []string{"packets", "bytes", "new_connections"}

// Longer than any name.
const filterMax = 128

// press a key; true: that ends it.
func (m *model) press(key string) (isEnd bool) {
	if key == ctrlC {
		return true
	}
	if m.isTyping {
		m.typeKey(key)
		return false
	}
	if by := slices.Index([]string{"p", "i", "n"}, key); by >= 0 {
		m.sort = sorts[by]
		return false
	}
	if by, scrolls := map[string]int{up: -1, down: 1, pageUp: -m.page, pageDown: m.page}[key]; scrolls {
		m.offset = max(0, m.offset+by)
		return false
	}
	m.offset = 0
	switch key {
	case "q":
		return true
	case "s":
		m.view = services
	case "b":
		m.view = backends
	case "d":
		m.view = drops
	case "m":
		if m.isFleet {
			m.view = machines
		}
	case tab:
		m.view = (m.view + 1) % m.views()
	case left, right:
		step := 1
		if key == left {
			step = len(sorts) - 1
		}
		m.sort = sorts[(slices.Index(sorts, m.sort)+step)%len(sorts)]
	case "/":
		m.isTyping, m.typed = true, m.filter
	case escape:
		m.filter, m.showsHelp = "", false
	case "?":
		m.showsHelp = !m.showsHelp
	case " ":
		m.pause()
	}
	return false
}

func (m *model) views() view {
	if m.isFleet {
		return machines + 1
	}
	return machines
}

// typeKey into the filter.
func (m *model) typeKey(key string) {
	switch {
	case key == enter:
		m.filter, m.isTyping = m.typed, false
	case key == escape:
		m.filter, m.isTyping = "", false
	case key == backspace:
		m.typed = m.typed[:max(0, len(m.typed)-1)]
	case len(key) == 1 && key >= " " && key <= "~" && len(m.typed) < filterMax: // as in names
		m.typed += key
	}
}

func (m *model) pause() {
	if m.paused != nil {
		m.paused = nil
		return
	}
	m.paused = &observation{at: m.now.at, machines: maps.Clone(m.now.machines), incomplete: m.now.incomplete}
}

// shown is what was observed.
func (m *model) shown() observation {
	if m.paused != nil {
		return *m.paused
	}
	return m.now
}

// chosen rows of a sum, in order. Those that the API left out count as busy, too.
func (m *model) chosen(sum *controllerv1.Rates) *controllerv1.Rates {
	chosen := rates.Choose(sum, rates.Orders[m.sort], m.filter, m.limit)
	chosen.ServicesBusy, chosen.BackendsBusy = max(chosen.ServicesBusy, sum.ServicesBusy), max(chosen.BackendsBusy, sum.BackendsBusy)
	return chosen
}

// compact number of at most five columns: 7, 1.5, 34k, 1.2M.
func compact(n float64) string {
	if n < 0.05 {
		return "0"
	}
	for _, unit := range []string{"", "k", "M", "G", "T", "P"} {
		switch {
		case n < 9.95:
			return fmt.Sprintf("%.1f%s", n, unit)
		case n < 999.5:
			return fmt.Sprintf("%.0f%s", n, unit)
		}
		n /= 1000
	}
	return "much"
}

func percent(ratio float64) string { return fmt.Sprintf("%.0f%%", 100*ratio) }
