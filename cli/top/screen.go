package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/rates"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// line of a screen; a title is in reverse.
type line struct {
	text    string
	isTitle bool
}

func plain(texts ...string) (lines []line) {
	for _, text := range texts {
		lines = append(lines, line{text: text})
	}
	return lines
}

// Most reasons of drops above the table.
const dropsShown = 3

// screen of a model: at most as many lines as it has, of at most its width, without
// anything that a terminal obeys.
func (m *model) screen() []line {
	shown := m.shown()
	sum, current := shown.sum()
	lines := m.scrolled(append(m.head(shown, sum, current), m.body(shown, sum, current)...), max(0, m.height-1))
	for len(lines) < m.height-1 {
		lines = append(lines, line{})
	}
	if m.height > 0 {
		lines = append(lines, line{text: m.foot()})
	}
	for i := range lines {
		lines[i].text = cut(output.Printable(lines[i].text), m.width)
	}
	return lines
}

// scrolled to the offset: of the lines below the table's title, or of a text without one, as many
// as there is room for.
func (m *model) scrolled(lines []line, room int) []line {
	from := 1 + slices.IndexFunc(lines, func(l line) bool { return l.isTitle })
	m.page = max(0, room-from)
	m.offset = max(0, min(m.offset, len(lines)-from-m.page))
	lines = slices.Delete(lines, from, from+m.offset)
	m.more = max(0, len(lines)-room)
	return lines[:min(len(lines), room)]
}

func cut(text string, width int) string {
	if runes := []rune(text); len(runes) > width {
		return string(runes[:width])
	}
	return text
}

// head says whose rates these are and of when, and the sums.
func (m *model) head(shown observation, sum *controllerv1.Rates, current int) []line {
	whose := cmp.Or(shown.machines[""].rates.GetMachine(), "guideway top")
	if m.isFleet {
		whose = fmt.Sprintf("%d of %s", current, output.Counted(len(shown.machines), "machine"))
	}
	at := shown.at
	if !m.isFleet && sum.Time != nil {
		at = sum.Time.AsTime().In(at.Location())
	}
	when := at.Format(time.TimeOnly)
	if m.paused != nil {
		when = "PAUSED, of " + when
	}
	lines := plain(whose + strings.Repeat(" ", max(1, m.width-len(whose)-len(when))) + when)
	if current == 0 {
		return lines
	}
	lines = append(lines, m.wrapped(sums(sum), "")...)
	return append(lines, plain(busy(sum.Workers, m.width))...)
}

func sums(r *controllerv1.Rates) string {
	return fmt.Sprintf("received %s/s, sent %s/s, dropped %s/s, %s bit/s, %s connections/s",
		compact(r.Received), compact(r.Sent), compact(rates.Dropped(r)), compact(8*r.Bytes), compact(r.NewConnections))
}

// busy workers: each, or if they do not fit, the least and the most busy.
func busy(workers []*controllerv1.WorkerLoad, width int) string {
	if len(workers) == 0 {
		return "workers: unknown"
	}
	var all []string
	for _, w := range workers {
		all = append(all, w.Name+" "+percent(w.BusyRatio))
	}
	if text := "busy: " + strings.Join(all, ", "); len(text) <= width {
		return text
	}
	byLoad := func(a, b *controllerv1.WorkerLoad) int { return cmp.Compare(a.BusyRatio, b.BusyRatio) }
	least, most := slices.MinFunc(workers, byLoad), slices.MaxFunc(workers, byLoad)
	return fmt.Sprintf("%s: most busy %s %s, least %s %s", output.Counted(len(workers), "worker"), most.Name, percent(most.BusyRatio), least.Name, percent(least.BusyRatio))
}

// body is the view, or what is wrong.
func (m *model) body(shown observation, sum *controllerv1.Rates, current int) []line {
	if m.showsHelp {
		return m.help()
	}
	var lines []line
	if shown.incomplete != "" {
		lines = m.wrapped(shown.incomplete, "")
	}
	switch {
	case m.view == machines:
		return append(lines, m.machineTable(shown)...)
	case current == 0:
		return append(lines, m.nothing(shown)...)
	case m.isFleet && current < len(shown.machines):
		lines = append(lines, m.wrapped(fmt.Sprintf("%d missing in the sums: m shows why", len(shown.machines)-current), "")...)
	}
	if m.view == drops {
		return append(lines, m.dropTable(sum)...)
	}
	if m.height > 14 { // else the table has more of use
		lines = append(lines, dropLines(sum, dropsShown)...)
	}
	sum = m.chosen(sum)
	if m.view == backends {
		return append(lines, m.table("backend", sum.Backends, sum.BackendsBusy)...)
	}
	return append(lines, m.table("service", sum.Services, sum.ServicesBusy)...)
}

// nothing is known: why.
func (m *model) nothing(shown observation) []line {
	lines := plain("")
	for _, w := range shown.inOrder() {
		lines = append(lines, m.wrapped(w.why(shown.at), "")...)
	}
	if len(shown.machines) == 0 {
		lines = append(lines, plain("waiting for the machines' names")...)
	}
	return lines
}

func (m *model) wrapped(text, indent string) []line {
	var lines []line
	for _, part := range output.Wrap(text, max(1, m.width-len(indent))) {
		lines = append(lines, line{text: indent + part})
	}
	return lines
}

// columns of numbers, and a text.
func columns(text string, numbers ...string) string {
	var b strings.Builder
	for _, n := range numbers {
		fmt.Fprintf(&b, "%7s ", n)
	}
	return b.String() + text
}

// titles of the columns, the one that rows are sorted by between marks.
func (m *model) titles(names []string, text string) line {
	marked := slices.Clone(names)
	if at := slices.Index(sorts, m.sort); at >= 0 {
		marked[at] = ">" + marked[at]
	}
	return line{columns(text, marked...), true}
}

var titles = []string{"PKTS/S", "BITS/S", "NEW/S"}

// table of services or backends, of which so many have packets.
func (m *model) table(what string, rows []*controllerv1.Rate, all uint32) []line {
	title := fmt.Sprintf("%s (%d busy)", strings.ToUpper(what), all)
	if m.filter != "" {
		title += fmt.Sprintf(" with %q", m.filter)
	}
	names, numbers := titles, rateNumbers
	if slices.ContainsFunc(rows, func(r *controllerv1.Rate) bool { return r.Answers != nil }) {
		names, numbers = append(slices.Clone(titles), "99%", "OPEN"), func(r *controllerv1.Rate) []string { return append(rateNumbers(r), answerNumbers(r.Answers)...) }
	}
	lines := []line{m.titles(names, title)}
	for _, r := range rows {
		lines = append(lines, line{text: columns(nameOf(r), numbers(r)...)})
	}
	switch {
	case len(rows) > 0:
	case m.filter != "":
		lines = append(lines, m.wrapped(fmt.Sprintf("no %s with %q in its name has packets: Esc clears the filter", what, m.filter), "")...)
	default:
		lines = append(lines, plain(fmt.Sprintf("no %s has packets", what))...)
	}
	return lines
}

func rateNumbers(r *controllerv1.Rate) []string {
	return []string{compact(r.Packets), compact(8 * r.Bytes), compact(r.NewConnections)}
}

// answerNumbers are the time within which 99 of 100 requests were answered, and how many are
// open.
func answerNumbers(a *controllerv1.Answers) []string {
	if a == nil {
		return []string{"-", "-"}
	}
	within := "-"
	if a.P99Seconds != nil {
		within = compact(1e3*a.GetP99Seconds()) + "ms"
	}
	return []string{within, compact(a.Open)}
}

// dropLines of the most frequent reasons, in short.
func dropLines(sum *controllerv1.Rates, most int) (lines []line) {
	for _, d := range sum.Dropped[:min(len(sum.Dropped), most)] {
		lines = append(lines, line{text: columns("dropped, "+d.Reason+": "+d.Meaning, compact(d.Packets))})
	}
	return lines
}

func (m *model) dropTable(sum *controllerv1.Rates) []line {
	lines := []line{{columns("REASON, MEANING, USUAL CAUSE", "DROPS/S"), true}}
	if len(sum.Dropped) == 0 {
		lines = append(lines, plain("nothing is dropped")...)
	}
	indent := columns("", "")
	for _, d := range sum.Dropped {
		lines = append(lines, line{text: columns(d.Reason, compact(d.Packets))})
		for _, text := range []string{d.Meaning, "usually: " + d.UsualCause} {
			lines = append(lines, m.wrapped(text, indent)...)
		}
	}
	return lines
}

// machineTable has those first that are missing in the sums.
func (m *model) machineTable(shown observation) []line {
	lines := []line{m.titles(append(slices.Clone(titles), "DROPS/S"), "MACHINE")}
	all := shown.inOrder()
	by := map[string]func(*controllerv1.Rates) float64{
		"packets": (*controllerv1.Rates).GetReceived, "bytes": (*controllerv1.Rates).GetBytes, "new_connections": (*controllerv1.Rates).GetNewConnections,
	}[m.sort]
	slices.SortStableFunc(all, func(a, b watched) int {
		switch x, y := a.isCurrent(shown.at), b.isCurrent(shown.at); {
		case x && y:
			return cmp.Compare(by(b.rates), by(a.rates))
		case x != y && y:
			return -1
		case x != y:
			return 1
		}
		return 0
	})
	for _, w := range all {
		lines = append(lines, m.machineLines(w, shown.at)...)
	}
	return lines
}

func (m *model) machineLines(w watched, at time.Time) []line {
	if !w.isCurrent(at) {
		return m.wrapped(w.why(at), "")
	}
	r := w.rates
	return plain(columns(w.name, compact(r.Received), compact(8*r.Bytes), compact(r.NewConnections), compact(rates.Dropped(r))))
}

func (m *model) foot() string {
	if m.isTyping {
		return "filter: " + m.typed + "_   Enter: apply, Esc: clear"
	}
	var keys string
	if m.more > 0 {
		keys = fmt.Sprintf("Down: %d more  ", m.more)
	}
	keys += "? help  q quit  s services  b backends  d drops  "
	if m.isFleet {
		keys += "m machines  "
	}
	return keys + "p/i/n sort  / filter"
}

func (m *model) help() []line {
	return plain("",
		"s, b, d    services, backends, drops with their usual causes",
		"m          machines, with --fleet",
		"Tab        the next of these",
		"p, i, n    sort by packets, bits, new connections; or with Left and Right",
		"Up, Down   scroll; Page Up and Page Down a screen",
		"/          show names with a text in them; Enter applies it",
		"Esc        clear the filter",
		"space      pause, and go on",
		"q, Ctrl-C  quit",
		"",
		"99%, OPEN: agents measured that 99 of 100 requests of the latest minute were",
		"answered within that time, and that so many were open at once.",
		"k, M, G, T: a thousand, a million, ... per second. Services and backends",
		"without packets are left out. `guideway show drops` has dropped packets.")
}
