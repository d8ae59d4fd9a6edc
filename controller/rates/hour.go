package rates

import (
	"maps"
	"slices"
	"time"
)

const (
	// Of the hour.
	points = int(time.Hour / pointTime)
	// Services whose hour is kept, some 4 KiB each.
	servicesMax = 1000
)

// Point is ten seconds, or what there was of it.
type Point struct {
	// Its end.
	At time.Time
	// Packets per second.
	Received, Sent, Dropped float64
	// Of all services, per second.
	Bytes, NewConnections float64
	// By reason.
	Drops map[string]float64
}

// ServicePoint is what one service had per second.
type ServicePoint struct{ Packets, Bytes, NewConnections float32 }

// hour is a ring.
type hour struct {
	// How many there were since the start; the latest are kept.
	count int
	ring  [points]Point
	// Of those that had traffic within the hour, as many as there may be.
	services map[string]*series
}

type series struct {
	ring [points]ServicePoint
	// Number of the point in which there was traffic last.
	busy int
}

func (h *hour) add(point Point, services map[string]ServicePoint) {
	if h.services == nil {
		h.services = map[string]*series{}
	}
	at := h.count % points
	h.ring[at] = point
	for name := range services {
		if h.services[name] == nil && len(h.services) < servicesMax {
			h.services[name] = &series{}
		}
	}
	for name, kept := range h.services {
		found, isBusy := services[name]
		kept.ring[at] = found
		if isBusy {
			kept.busy = h.count
		}
	}
	maps.DeleteFunc(h.services, func(_ string, kept *series) bool { return h.count-kept.busy >= points })
	h.count++
}

// places in the ring, the oldest first.
func (h *hour) places() []int {
	var places []int
	for number := max(0, h.count-points); number < h.count; number++ {
		places = append(places, number%points)
	}
	return places
}

// keep what happened since the last point, which may be longer ago.
func (r *Rates) keep(before, now *reading) {
	if before == nil {
		return
	}
	rates := between(before, now)
	point := Point{At: now.at, Received: rates.Received, Sent: rates.Sent, Dropped: Dropped(rates), Bytes: rates.Bytes, NewConnections: rates.NewConnections, Drops: map[string]float64{}}
	for _, drop := range rates.Dropped {
		point.Drops[drop.Reason] = drop.Packets
	}
	services := map[string]ServicePoint{}
	for _, s := range rates.Services {
		services[s.Service] = ServicePoint{float32(s.Packets), float32(s.Bytes), float32(s.NewConnections)}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hour.add(point, services)
	if r.watchers == 0 {
		r.latest = rates
	}
}

// Hour has the points of the last hour, the oldest first.
func (r *Rates) Hour() []Point {
	r.mu.Lock()
	defer r.mu.Unlock()
	var points []Point
	for _, at := range r.hour.places() {
		points = append(points, r.hour.ring[at])
	}
	return points
}

// HourOf a service has its points, as many as Hour at that moment has; nil: it had no traffic,
// or too many others had.
func (r *Rates) HourOf(service string) ([]time.Time, []ServicePoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := r.hour.services[service]
	if kept == nil {
		return nil, nil
	}
	var times []time.Time
	var points []ServicePoint
	for _, at := range r.hour.places() {
		times = append(times, r.hour.ring[at].At)
		points = append(points, kept.ring[at])
	}
	return times, slices.Clip(points)
}
