package console

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/events"
	"github.com/guideway/guideway/controller/rates"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func (b *builder) overview() (*content, error) {
	events, _ := b.eventsTable(shortMax, func(events.Object) bool { return true })
	events.Title = "Latest events"
	return &content{
		Title: "Overview", Notes: b.notes(),
		Tables: []*table{b.totals(), b.troubles(), b.busiest(), events}, Graphs: b.graphs(),
	}, nil
}

// notes of what is wrong with the machine as a whole.
func (b *builder) notes() (notes []cell) {
	s := b.view.state
	say := func(class, what, text string) {
		if text != "" {
			notes = append(notes, styled(what+text, class))
		}
	}
	say(bad, "", s.GetMachine().GetReason())
	for _, missing := range s.NotReady {
		say(bad, "Not ready: ", missing)
	}
	if s.GetConfig().GetStale() {
		say(bad, "The config is stale, the former one serves: ", s.Config.Problem)
	}
	say(mid, "The config could not be kept: ", s.GetConfig().GetNotKept())
	say(mid, "etcd: ", s.GetConfig().GetEtcd().GetAway())
	if !s.GetForwarder().GetHealthy() {
		say(bad, "The forwarder is not healthy: ", cmp.Or(s.GetForwarder().GetReason(), "it has not answered yet"))
	}
	say(bad, "The forwarder refuses the plan: ", s.GetForwarder().GetRefusal())
	say(mid, "The forwarder must be restarted: ", s.GetForwarder().GetRestartRequired())
	for _, warning := range s.GetForwarder().GetWarnings() {
		say(mid, "Forwarder: ", warning)
	}
	say(mid, "Speaker: ", s.GetSpeaker().GetReason())
	say(bad, "The speaker announces nothing: ", s.GetSpeaker().GetWithheld())
	say(bad, "Not announced: ", s.GetSpeaker().GetProblem())
	say(mid, "Routes are announced as worse ones: ", s.GetSpeaker().GetSlow())
	say(mid, "Rates: ", b.view.rates.Problem)
	for _, source := range s.MemberSources {
		say(mid, "Pool "+source.Name+" gets no new backends: ", source.Problem)
	}
	return notes
}

func (b *builder) totals() *table {
	s, r := b.view.state, b.view.rates
	serving := countIf(s.Services, func(s *controllerv1.Service) bool { return s.State == brain.ServingAll })
	active := countIf(s.Backends, func(b *controllerv1.Backend) bool { return b.State == "active" || b.State == "standby" })
	announced := countIf(s.Routes, func(r *controllerv1.Route) bool { return r.Announced })
	part := func(n, of int) cell {
		class := good
		if n < of {
			class = mid
		}
		return styled(count(n)+" of "+count(of), class)
	}
	t := &table{ID: "totals", Title: "Now", Tiles: true}
	add := func(name string, value cell) {
		t.Rows = append(t.Rows, row{Key: name, Cells: []cell{plain(name), value}})
	}
	add("Services served", part(serving, len(s.Services)))
	add("Backends active", part(active, len(s.Backends)))
	add("Routes announced", part(announced, len(s.Routes)))
	if len(s.Neighbors) > 0 {
		add("BGP sessions", part(countIf(s.Neighbors, func(n *controllerv1.Neighbor) bool { return n.State == "established" }), len(s.Neighbors)))
	}
	add("Packets received/s", plain(perSecond(r.Received)))
	add("Sent to backends/s", plain(perSecond(r.Sent)))
	add("Dropped/s", plain(perSecond(rates.Dropped(r))))
	add("Bytes", plain(bytesPerSecond(r.Bytes)))
	add("New connections/s", plain(perSecond(r.NewConnections)))
	var busy float64
	for _, worker := range r.Workers {
		busy = max(busy, worker.BusyRatio)
	}
	if len(r.Workers) > 0 {
		add("Busiest worker", plain(strconv.Itoa(int(busy*100))+" %"))
	}
	return t
}

func countIf[T any](items []T, is func(T) bool) (n int) {
	for _, item := range items {
		if is(item) {
			n++
		}
	}
	return n
}

// troubles are services and backends that are not well, the worst first.
func (b *builder) troubles() *table {
	t := &table{ID: "troubles", Title: "Not well", Head: heads("", "Name", "State", "Since", "Reason"), None: "nothing: all services are served, and all backends are active"}
	type trouble struct {
		class string
		row   row
	}
	var all []trouble
	for _, s := range b.view.state.Services {
		if class := serviceClass(s.State); class != good || s.OnBackup {
			all = append(all, trouble{class, row{"service " + s.Name, []cell{plain("service"), serviceLink(s.Name), styled(s.State, class), {}, plain(s.Reason)}}})
		}
	}
	for _, backend := range b.view.state.Backends {
		class := troubleClass(backend)
		if rank(class) < rank(good) {
			all = append(all, trouble{class, row{"backend " + backendKey(backend), []cell{
				plain("backend"), {Text: backend.Name, Href: link("backends", "q", backend.Name)}, styled(backend.State, class), since(backend.Since), plain(reasonOf(backend)),
			}}})
		}
	}
	slices.SortStableFunc(all, func(x, y trouble) int { return cmp.Compare(rank(x.class), rank(y.class)) })
	if len(all) > 0 {
		t.Note = count(len(all))
	}
	for _, one := range all[:min(len(all), 2*shortMax)] {
		t.Rows = append(t.Rows, one.row)
	}
	return t
}

func (b *builder) busiest() *table {
	t := &table{ID: "busiest", Title: "Busiest services", Head: heads("Service", "#Packets/s", "#Bytes", "#New connections/s"), None: "no service has traffic"}
	busy := b.view.rates.Services
	if len(busy) > shortMax {
		t.Note = count(shortMax) + " of " + count(len(busy)) + " that have traffic"
	}
	for _, r := range busy[:min(len(busy), shortMax)] {
		t.Rows = append(t.Rows, row{r.Service, append([]cell{serviceLink(r.Service)}, rateCells(r)...)})
	}
	return t
}

func rateCells(r *controllerv1.Rate) []cell {
	return []cell{styled(perSecond(r.GetPackets()), number), styled(bytesPerSecond(r.GetBytes()), number), styled(perSecond(r.GetNewConnections()), number)}
}

func serviceLink(name string) cell { return cell{Text: name, Href: link("service", "name", name)} }
