package console

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/guideway/guideway/controller/outside"
	"github.com/guideway/guideway/controller/rates"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// byRate is the order of what a page can be sorted by; nil: it is not a rate.
func byRate[T any](sort string, rateOf func(T) *controllerv1.Rate) func(x, y T) int {
	order := rates.Orders[map[string]string{"packets": "packets", "bytes": "bytes", "connections": "new_connections"}[sort]]
	return func(x, y T) int { return cmp.Compare(order(rateOf(y)), order(rateOf(x))) }
}

func (b *builder) services() (*content, error) {
	order := byRate(b.page.Sort(), func(s *controllerv1.Service) *controllerv1.Rate { return b.view.ofService[s.Name] })
	switch b.page.Sort() {
	case "trouble":
		order = func(x, y *controllerv1.Service) int {
			return cmp.Compare(rank(serviceClass(x.State)), rank(serviceClass(y.State)))
		}
	case "name":
		order = func(x, y *controllerv1.Service) int { return strings.Compare(x.Name, y.Name) }
	}
	texts := func(s *controllerv1.Service) []string {
		return slices.Concat([]string{s.Name, s.State, s.Reason}, s.Vips, s.Pools, s.BackupPools)
	}
	chosen, note, to := pick(b, b.view.state.Services, texts, order)
	t := &table{ID: "services", Title: "Services", Note: note, Head: heads("Service", "VIPs", "State", "#Backends", "#Packets/s", "#Bytes", "#New connections/s"), None: "none"}
	for _, s := range chosen {
		t.Rows = append(t.Rows, row{s.Name, slices.Concat([]cell{
			serviceLink(s.Name), plain(strings.Join(s.Vips, ", ")), styled(stateOf(s), serviceClass(s.State)), styled(activeOf(s), number),
		}, rateCells(b.view.ofService[s.Name]))})
	}
	return &content{Title: "Services", Tables: []*table{t}, Pager: to}, nil
}

func stateOf(s *controllerv1.Service) string {
	if s.Reason == "" {
		return s.State
	}
	return s.State + ": " + s.Reason
}

func activeOf(s *controllerv1.Service) string {
	text := count(s.BackendsActive) + " of " + count(s.Backends)
	if s.OnBackup {
		text += " (backup)"
	}
	return text
}

func (b *builder) service() (*content, error) {
	all := b.view.state.Services
	at := slices.IndexFunc(all, func(s *controllerv1.Service) bool { return s.Name == b.page.name })
	if at < 0 {
		return nil, refused{http.StatusNotFound, "there is no service " + strconv.Quote(outside.Text(b.page.name))}
	}
	s := all[at]
	facts := &table{ID: "facts", Tiles: true}
	add := func(name string, value cell) {
		if value.Text != "" {
			facts.Rows = append(facts.Rows, row{name, []cell{plain(name), value}})
		}
	}
	rate := rateCells(b.view.ofService[s.Name])
	add("State", styled(stateOf(s), serviceClass(s.State)))
	add("Backends active", plain(activeOf(s)))
	add("Packets/s", plain(rate[0].Text))
	add("Bytes", plain(rate[1].Text))
	add("New connections/s", plain(rate[2].Text))
	add("VIPs", plain(strings.Join(s.Vips, ", ")))
	add("Pools", plain(strings.Join(s.Pools, ", ")))
	add("Backup pools", plain(strings.Join(s.BackupPools, ", ")))
	var own []*controllerv1.Backend
	for _, backend := range b.view.state.Backends {
		if backend.Group == s.Group {
			own = append(own, backend)
		}
	}
	slices.SortStableFunc(own, byTrouble)
	backends := b.backendsTable(own[:min(len(own), rowsMax)])
	if len(own) > rowsMax {
		backends.Note = fmt.Sprintf("%d of %s, those that are not well first", rowsMax, count(len(own)))
	}
	c := &content{Title: s.Name, Tables: []*table{facts, backends}, Graphs: b.graphsOf(s.Name)}
	if s.Buckets != nil {
		c.Tables = append(c.Tables, movesTable([]*controllerv1.Service{s}))
		for _, unknown := range s.Buckets.Unknown {
			c.Notes = append(c.Notes, styled(unknown, mid))
		}
	}
	if b.objects != nil {
		events, _ := b.eventsTable(2*shortMax, b.objects)
		c.Tables = append(c.Tables, events)
	}
	return c, nil
}
