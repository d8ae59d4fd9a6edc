package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func backendKey(b *controllerv1.Backend) string { return b.Group + "/" + b.Name }

func reasonOf(b *controllerv1.Backend) string {
	if b.Unresolved == "" {
		return b.Reason
	}
	return strings.TrimPrefix(b.Reason+"; next hop: "+b.Unresolved, "; ")
}

// troubleClass is bad, too, where no packet reaches it, whatever its state.
func troubleClass(b *controllerv1.Backend) string {
	if b.Unresolved != "" {
		return bad
	}
	return backendClass(b.State)
}

func byTrouble(x, y *controllerv1.Backend) int {
	return cmp.Compare(rank(troubleClass(x)), rank(troubleClass(y)))
}

func (b *builder) backends() (*content, error) {
	order := byRate(b.page.Sort(), b.view.rateOf)
	switch b.page.Sort() {
	case "trouble":
		order = byTrouble
	case "name":
		order = func(x, y *controllerv1.Backend) int { return strings.Compare(x.Name, y.Name) }
	case "since": // the latest change first
		order = func(x, y *controllerv1.Backend) int { return y.Since.AsTime().Compare(x.Since.AsTime()) }
	}
	texts := func(b *controllerv1.Backend) []string {
		return slices.Concat([]string{b.Name, b.Address, b.State, b.Reason, b.Unresolved, b.Service}, b.Pools)
	}
	chosen, note, to := pick(b, b.view.state.Backends, texts, order)
	t := b.backendsTable(chosen)
	t.Note = note
	return &content{Title: "Backends", Tables: []*table{t}, Pager: to}, nil
}

func (b *builder) backendsTable(chosen []*controllerv1.Backend) *table {
	t := &table{ID: "backends", Title: "Backends", Head: heads("Backend", "Address", "Services", "#Weight", "State", "Since", "Reason", "#Packets/s", "#Bytes", "#New connections/s", "#99 % within", "#Open requests", "#Load"), None: "none"}
	for _, backend := range chosen {
		of := plain(count(backend.Services) + " of pools " + strings.Join(backend.Pools, ", "))
		if backend.Service != "" {
			of = serviceLink(backend.Service)
		}
		weight := count(backend.Weight)
		if backend.WeightPercent != 0 && backend.WeightPercent < 100 {
			weight += fmt.Sprintf(" × %d %%", backend.WeightPercent)
		}
		reason := plain(reasonOf(backend))
		if backend.Unresolved != "" {
			reason.Class = bad
		}
		t.Rows = append(t.Rows, row{backendKey(backend), slices.Concat([]cell{
			plain(backend.Name), plain(backend.Address), of, styled(weight, number), styled(backend.State, backendClass(backend.State)), since(backend.Since), reason,
		}, rateCells(b.view.rateOf(backend)), answerCells(backend))})
	}
	return t
}

// answerCells of a backend; dashes: its agent measures nothing.
func answerCells(b *controllerv1.Backend) []cell {
	a := b.Answers
	if a == nil {
		return []cell{styled("–", number), styled("–", number), styled("–", number)}
	}
	within, load := "–", "–"
	if b.Load != nil {
		load = fmt.Sprintf("%.1f", *b.Load)
	}
	if a.Measured > 0 {
		within = time.Duration(a.GetP99Seconds() * float64(time.Second)).Round(10 * time.Microsecond).String()
	}
	return []cell{styled(within, number), styled(fmt.Sprintf("%.1f", a.Open), number), styled(load, number)}
}

func (b *builder) moves() (*content, error) {
	t := movesTable(b.view.state.Services)
	texts := func(r row) (texts []string) {
		for _, c := range r.Cells {
			texts = append(texts, c.Text)
		}
		return texts
	}
	var to pager
	t.Rows, t.Note, to = pick(b, t.Rows, texts, nil)
	return &content{Title: "Moves", Notes: []cell{styled("Buckets of stateless services on their way from one backend to another. A move closes when no connection of the former backend is left, or after its time.", dim)}, Tables: []*table{t}, Pager: to}, nil
}

func movesTable(services []*controllerv1.Service) *table {
	t := &table{ID: "moves", Title: "Moves", Head: heads("Service", "From", "To", "#Buckets", "State", "Since", "#Connections left"), None: "no bucket moves"}
	for _, s := range services {
		for i, move := range s.GetBuckets().GetMoves() {
			state, left := styled("prepared", mid), "not counted"
			if move.Moved {
				state = styled("moved", good)
			}
			if move.Connections != nil {
				left = count(*move.Connections)
			}
			t.Rows = append(t.Rows, row{fmt.Sprint(s.Name, " ", i), []cell{
				serviceLink(s.Name), plain(move.From), plain(move.To), styled(count(move.Buckets), number), state, since(move.Since), styled(left, number),
			}})
		}
	}
	return t
}
