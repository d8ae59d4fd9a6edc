package rates

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// reading is what had been counted at a time.
type reading struct {
	at       time.Time
	counters *forwarderv1.GetCountersResponse
	// Of each service over its VIPs, and of each backend.
	services, backends map[name]counts
	dropped            map[string]uint64
	threads            []*forwarderv1.Thread
}

// name of a service (without a backend) or of a backend.
type name struct{ service, backend string }

type counts struct{ packets, bytes, newConnections uint64 }

func newReading(at time.Time, counters *forwarderv1.GetCountersResponse) *reading {
	r := &reading{
		at: at, counters: counters, dropped: map[string]uint64{},
		services: make(map[name]counts, len(counters.Services)), backends: make(map[name]counts, len(counters.Backends)),
	}
	for _, c := range counters.Services {
		sum := r.services[name{service: c.Service}]
		r.services[name{service: c.Service}] = counts{sum.packets + c.Packets, sum.bytes + c.Bytes, sum.newConnections + c.NewConnections}
	}
	for _, c := range counters.Backends {
		r.backends[name{c.Service, c.Backend}] = counts{c.Packets, c.Bytes, c.NewConnections}
	}
	for _, drop := range counters.Dropped {
		r.dropped[drop.Reason] = drop.Packets
	}
	return r
}

// between two readings: what happened per second. Counters that went back began anew.
func between(before, now *reading) *controllerv1.Rates {
	seconds := now.at.Sub(before.at).Seconds()
	per := func(before, now uint64) float64 { return grown(before, now) / seconds }
	rates := &controllerv1.Rates{
		Time: timestamppb.New(now.at), Seconds: seconds,
		Received:   per(before.counters.Received, now.counters.Received),
		Sent:       per(before.counters.Sent, now.counters.Sent),
		Passed:     per(before.counters.Passed, now.counters.Passed),
		Replied:    per(before.counters.Replied, now.counters.Replied),
		Redirected: per(before.counters.Redirected, now.counters.Redirected),
		Services:   busiest(before.services, now.services, seconds),
		Backends:   busiest(before.backends, now.backends, seconds),
	}
	for _, service := range rates.Services {
		rates.Bytes += service.Bytes
		rates.NewConnections += service.NewConnections
	}
	rates.ServicesBusy, rates.BackendsBusy = uint32(len(rates.Services)), uint32(len(rates.Backends))
	for _, drop := range now.counters.Dropped {
		if rate := per(before.dropped[drop.Reason], drop.Packets); rate > 0 {
			rates.Dropped = append(rates.Dropped, &controllerv1.DropRate{Reason: drop.Reason, Packets: rate, Meaning: drop.Meaning, UsualCause: drop.UsualCause})
		}
	}
	slices.SortFunc(rates.Dropped, CompareDrops)
	for _, thread := range now.threads {
		if thread.Role == "worker" {
			rates.Workers = append(rates.Workers, &controllerv1.WorkerLoad{Name: thread.Name, BusyRatio: thread.BusyRatio})
		}
	}
	return rates
}

// CompareDrops has the most frequent first.
func CompareDrops(a, b *controllerv1.DropRate) int {
	return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Reason, b.Reason))
}

// Dropped packets for all reasons.
func Dropped(r *controllerv1.Rates) (packets float64) {
	for _, drop := range r.GetDropped() {
		packets += drop.Packets
	}
	return packets
}

func grown(before, now uint64) float64 {
	if now < before {
		return 0
	}
	return float64(now - before)
}

// busiest first; those that have nothing are left out. What was not there before is not
// known to be of this time.
func busiest(before, now map[name]counts, seconds float64) []*controllerv1.Rate {
	var rates []*controllerv1.Rate
	for name, c := range now {
		former, known := before[name]
		packets, connections := grown(former.packets, c.packets), grown(former.newConnections, c.newConnections)
		if !known || packets == 0 && connections == 0 {
			continue
		}
		rates = append(rates, &controllerv1.Rate{
			Service: name.service, Backend: name.backend,
			Packets: packets / seconds, Bytes: grown(former.bytes, c.bytes) / seconds, NewConnections: connections / seconds,
		})
	}
	slices.SortFunc(rates, func(a, b *controllerv1.Rate) int { return byPackets.compare(a, b) })
	return rates
}

// Order of rates.
type Order func(*controllerv1.Rate) float64

var byPackets Order = (*controllerv1.Rate).GetPackets

// Rows of services, and of backends, that a client gets if it says no number, and at most.
const (
	RowsUsual = 100
	RowsMax   = 1000
)

// Orders by what WatchRatesRequest.sort says.
var Orders = map[string]Order{
	"": byPackets, "packets": byPackets, "bytes": (*controllerv1.Rate).GetBytes, "new_connections": (*controllerv1.Rate).GetNewConnections,
}

func (o Order) compare(a, b *controllerv1.Rate) int {
	return cmp.Or(cmp.Compare(o(b), o(a)), cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Backend, b.Backend))
}

// Choose of rates the first rows of services and of backends, of those that a filter is in the
// names of.
func Choose(all *controllerv1.Rates, order Order, filter string, limit int) *controllerv1.Rates {
	services, servicesBusy := choose(all.Services, order, filter, limit)
	backends, backendsBusy := choose(all.Backends, order, filter, limit)
	return &controllerv1.Rates{
		Machine: all.Machine, Time: all.Time, Seconds: all.Seconds, Problem: all.Problem,
		Received: all.Received, Sent: all.Sent, Passed: all.Passed, Replied: all.Replied, Redirected: all.Redirected,
		Bytes: all.Bytes, NewConnections: all.NewConnections, Dropped: all.Dropped, Workers: all.Workers,
		Services: services, ServicesBusy: servicesBusy, Backends: backends, BackendsBusy: backendsBusy,
	}
}

func choose(rates []*controllerv1.Rate, order Order, filter string, limit int) (first []*controllerv1.Rate, all uint32) {
	chosen := slices.Clone(rates)
	chosen = slices.DeleteFunc(chosen, func(r *controllerv1.Rate) bool {
		return !strings.Contains(r.Service, filter) && !strings.Contains(r.Backend, filter)
	})
	slices.SortFunc(chosen, order.compare)
	return chosen[:min(limit, len(chosen))], uint32(len(chosen))
}
