package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func (b *builder) routes() (*content, error) {
	texts := func(r *controllerv1.Route) []string {
		return slices.Concat([]string{r.Prefix, r.NextHop, r.Reason, announcedOf(r).Text}, r.Services)
	}
	order := func(x, y *controllerv1.Route) int {
		return cmp.Compare(rank(announcedOf(x).Class), rank(announcedOf(y).Class))
	}
	chosen, note, to := pick(b, b.view.state.Routes, texts, order)
	routes := &table{ID: "routes", Title: "Routes", Note: note, Head: heads("Prefix", "Next hop", "State", "Since", "Reason", "Services"), None: "nothing may be announced"}
	for _, r := range chosen {
		services := cell{Text: count(len(r.Services)) + " services"}
		if len(r.Services) == 1 {
			services = serviceLink(r.Services[0])
		}
		routes.Rows = append(routes.Rows, row{r.Prefix, []cell{plain(r.Prefix), plain(r.NextHop), announcedOf(r), since(r.Since), plain(r.Reason), services}})
	}
	tables := []*table{routes}
	if s := b.view.state; len(s.Vrrp) > 0 {
		tables = []*table{b.ownersTable(), routes}
	}
	return &content{Title: "Routes", Tables: append(tables, b.neighborsTable()), Pager: to}, nil
}

func announcedOf(r *controllerv1.Route) cell {
	switch {
	case r.GracefulShutdown:
		return styled("leaving", mid)
	case r.Announced:
		return styled("announced", good)
	}
	return styled("withdrawn", bad)
}

// ownersTable has VIPs with the machines that own them by VRRP.
func (b *builder) ownersTable() *table {
	t := &table{ID: "owners", Title: "Owners by VRRP", Head: heads("Virtual router", "VIPs", "State", "#Priority", "Owner", "Since", "Reason")}
	for _, r := range b.view.state.Vrrp[:min(len(b.view.state.Vrrp), rowsMax)] {
		class := map[string]string{"active": good, "backup": dim}[r.State]
		t.Rows = append(t.Rows, row{fmt.Sprint(r.Vrid, " ", r.Family), []cell{
			plain(fmt.Sprint(r.Vrid, " ", r.Family)), plain(strings.Join(r.Vips, ", ")), styled(r.State, cmp.Or(class, bad)), styled(count(r.Priority), number), plain(r.Owner), since(r.Since), plain(r.Reason),
		}})
	}
	return t
}

func (b *builder) neighborsTable() *table {
	t := &table{ID: "neighbors", Title: "BGP neighbors", Head: heads("Neighbor", "#AS", "State", "BFD", "Since", "#Prefixes", "Reason"), None: "BGP is not configured"}
	for _, n := range b.view.state.Neighbors {
		class := bad
		if n.State == "established" {
			class = good
		}
		t.Rows = append(t.Rows, row{n.Address, []cell{
			plain(n.Address), styled(fmt.Sprint(n.Asn), number), styled(n.State, class), plain(n.Bfd), since(n.Since), styled(count(n.AnnouncedPrefixes), number), plain(n.Reason),
		}})
	}
	return t
}
