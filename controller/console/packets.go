package console

import (
	"cmp"
	"slices"

	"github.com/guideway/guideway/controller/rates"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

func (b *builder) drops() (*content, error) {
	t := &table{ID: "drops", Title: "Drops", Head: heads("Reason", "#Packets", "#Packets/s", "Meaning", "Usual cause"), None: "no packet was dropped"}
	now := map[string]float64{}
	for _, d := range b.view.rates.Dropped {
		now[d.Reason] = d.Packets
	}
	all := slices.Clone(b.view.counters.GetDropped())
	slices.SortStableFunc(all, func(x, y *forwarderv1.Drop) int {
		return cmp.Or(cmp.Compare(now[y.Reason], now[x.Reason]), cmp.Compare(y.Packets, x.Packets))
	})
	for _, d := range all {
		if d.Packets > 0 {
			t.Rows = append(t.Rows, row{d.Reason, []cell{
				plain(d.Reason), styled(count(d.Packets), number), styled(perSecond(now[d.Reason]), number), plain(d.Meaning), plain(d.UsualCause),
			}})
		}
	}
	c := &content{Title: "Drops", Tables: []*table{t}}
	if b.view.counters == nil {
		c.Notes = []cell{styled("No counters: "+b.view.rates.Problem, bad)}
	}
	return c, nil
}

// graphs of the machine.
func (b *builder) graphs() *graphs {
	g := &graphs{plots: []plot{
		{Title: "Packets per second", Names: []string{"received", "sent to backends", "dropped"}, From: 1},
		{Title: "Bytes per second", Names: []string{"bytes"}, From: 4},
		{Title: "New connections per second", Names: []string{"new connections"}, From: 5},
	}}
	for _, p := range b.hours.Hour() {
		g.points = append(g.points, pointAt(p.At, p.Received, p.Sent, p.Dropped, p.Bytes, p.NewConnections))
	}
	if r := b.view.rates; r.Time != nil {
		g.now = pointAt(r.Time.AsTime(), r.Received, r.Sent, rates.Dropped(r), r.Bytes, r.NewConnections)
	}
	return g
}

// graphsOf a service.
func (b *builder) graphsOf(name string) *graphs {
	g := &graphs{plots: []plot{
		{Title: "Packets per second", Names: []string{"packets"}, From: 1},
		{Title: "Bytes per second", Names: []string{"bytes"}, From: 2},
		{Title: "New connections per second", Names: []string{"new connections"}, From: 3},
	}}
	times, points := b.hours.HourOf(name)
	for i, p := range points {
		g.points = append(g.points, pointAt(times[i], float64(p.Packets), float64(p.Bytes), float64(p.NewConnections)))
	}
	if r := b.view.rates; r.Time != nil {
		now := b.view.ofService[name]
		g.now = pointAt(r.Time.AsTime(), now.GetPackets(), now.GetBytes(), now.GetNewConnections())
	}
	return g
}
