package rates

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// forwarder that forwards 1,000 packets of 100 bytes each second.
type forwarder struct {
	begun time.Time
	asked atomic.Int32
	down  atomic.Bool
}

func (f *forwarder) Counters(context.Context) (*forwarderv1.GetCountersResponse, error) {
	f.asked.Add(1)
	if f.down.Load() {
		return nil, errors.New("the forwarder at its socket: it is down")
	}
	packets := uint64(time.Since(f.begun) / time.Millisecond)
	return &forwarderv1.GetCountersResponse{
		Received: packets, Sent: packets,
		Services: []*forwarderv1.ServiceCounters{{Service: "web", Packets: packets, Bytes: 100 * packets}},
		Backends: []*forwarderv1.BackendCounters{{Service: "web", Backend: "web-1", Packets: packets}},
	}, nil
}

func (f *forwarder) Status(context.Context) (*forwarderv1.GetStatusResponse, error) {
	threads := []*forwarderv1.Thread{{Role: "worker", Name: "worker-0", BusyRatio: 0.25}, {Role: "steering", Name: "steering"}}
	return &forwarderv1.GetStatusResponse{Threads: threads}, nil
}

func run(t *testing.T, f *forwarder) *Rates {
	f.begun = time.Now()
	r := New(Source{Counters: f.Counters, Status: f.Status, Machine: func() string { return "lb-1" }, Answers: func(context.Context) map[string]*controllerv1.Answers {
		return map[string]*controllerv1.Answers{"web-1": {Measured: 7}}
	}})
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { r.Run(ctx) })
	t.Cleanup(func() { stop(); done.Wait() })
	return r
}

func TestOneReadingEachSecondServesAllWhoWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &forwarder{}
		r := run(t, f)
		time.Sleep(61*second + secondMin)
		if n := f.asked.Load(); n != 7 {
			t.Errorf("asked %d times in a minute in which nobody watched", n)
		}
		var watchers sync.WaitGroup
		var taken atomic.Int32
		for range 50 {
			ctx, stop := context.WithTimeout(t.Context(), 30*time.Second+second/2)
			defer stop()
			watchers.Go(func() {
				_ = r.Watch(ctx, func(rates *controllerv1.Rates) error {
					taken.Add(1)
					if rates.Machine != "lb-1" || rates.Sent != 1000 || rates.Bytes != 100_000 || len(rates.Workers) != 1 || rates.Workers[0].BusyRatio != 0.25 || len(rates.Backends) != 1 || rates.Backends[0].Answers.GetMeasured() != 7 {
						t.Errorf("%v", rates)
					}
					return nil
				})
			})
		}
		watchers.Wait()
		if n := f.asked.Load() - 7; n < 30 || n > 32 {
			t.Errorf("asked %d times in 30 s", n)
		}
		if n := taken.Load(); n < 50*30 || n > 50*31 {
			t.Errorf("%d answers in 30 s, the first of each within a second", n)
		}
		time.Sleep(time.Minute)
		if n := f.asked.Load(); n > 45 {
			t.Errorf("asked %d times: it goes on when nobody watches", n)
		}
	})
}

func TestAForwarderThatDoesNotAnswerIsToldAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &forwarder{}
		r := run(t, f)
		var told []string
		time.AfterFunc(2*second+second/2, func() { f.down.Store(true) })
		time.AfterFunc(4*second+second/2, func() { f.down.Store(false) })
		ctx, stop := context.WithTimeout(t.Context(), 7*second)
		defer stop()
		_ = r.Watch(ctx, func(rates *controllerv1.Rates) error {
			told = append(told, fmt.Sprint(rates.Problem != "", rates.Sent))
			return nil
		})
		want := []string{"false 1000", "false 1000", "true 0", "true 0", "false 1000"}
		if told = slices.Compact(told); !slices.Equal(told, slices.Compact(want)) {
			t.Errorf("%v, want %v", told, want)
		}
	})
}

func TestTheLatestIsKnownWithoutWatching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &forwarder{}
		r := run(t, f)
		latest := func(what string, after time.Duration, seconds float64, packets uint64) {
			t.Helper()
			time.Sleep(after)
			rates, counters := r.Latest()
			if rates.GetSeconds() != seconds || seconds > 0 && rates.Sent != 1000 || counters.GetSent() != packets {
				t.Errorf("%s: %v, %v", what, rates, counters)
			}
		}
		latest("at the start", secondMin, 0, 0)
		latest("nobody watches", pointTime, 10, 10_000)
		leave := r.Attend()
		latest("somebody attends", 2*second+secondMin/5, 1, 12_500)
		leave()
		latest("nobody any more", 2*pointTime, 10, 30_500)
		f.down.Store(true)
		time.Sleep(pointTime)
		if rates, counters := r.Latest(); rates.Problem == "" || counters != nil {
			t.Errorf("%v, %v", rates, counters)
		}
	})
}

func TestCountersThatGoBackOrComeAreNoRate(t *testing.T) {
	at := time.Now()
	counters := func(packets uint64, services ...*forwarderv1.ServiceCounters) *forwarderv1.GetCountersResponse {
		return &forwarderv1.GetCountersResponse{
			Received: packets, Services: services,
			Dropped: []*forwarderv1.Drop{{Reason: "no_service", Packets: packets / 2}, {Reason: "no_backend", Packets: packets}, {Reason: "quiet", Packets: 7}},
		}
	}
	of := func(service, vip string, packets uint64) *forwarderv1.ServiceCounters {
		return &forwarderv1.ServiceCounters{Service: service, Vip: vip, Packets: packets, NewConnections: packets / 10}
	}
	before := newReading(at, counters(100, of("web", "a", 10), of("web", "b", 20), of("anew", "c", 500), of("idle", "d", 5)))
	now := newReading(at.Add(2*second), counters(300, of("web", "a", 30), of("web", "b", 40), of("anew", "c", 100), of("idle", "d", 5), of("new", "e", 1000)))
	rates := between(before, now)
	if rates.Received != 100 || rates.Seconds != 2 || rates.ServicesBusy != 1 || rates.Services[0].Service != "web" || rates.Services[0].Packets != 20 {
		t.Errorf("%v", rates)
	}
	if rates.NewConnections != 2 {
		t.Errorf("%v new connections per second", rates.NewConnections)
	}
	if len(rates.Dropped) != 2 || rates.Dropped[0].Reason != "no_backend" || rates.Dropped[1].Packets != 50 {
		t.Errorf("%v", rates.Dropped)
	}
	if rates := between(now, before); rates.Received != 0 || len(rates.Services) != 1 || rates.Services[0].Service != "anew" {
		t.Errorf("after a restart: %v", rates)
	}
}

func TestChooseTheFirst(t *testing.T) {
	all := &controllerv1.Rates{Machine: "lb-1", Sent: 7, Services: []*controllerv1.Rate{
		{Service: "web-a", Packets: 30, Bytes: 100}, {Service: "web-b", Packets: 20, Bytes: 300}, {Service: "dns", Packets: 10, Bytes: 200},
	}}
	for _, c := range []struct {
		sort, filter string
		limit        int
		want         string
		busy         uint32
	}{
		{"", "", 100, "web-a web-b dns ", 3},
		{"bytes", "", 2, "web-b dns ", 3},
		{"bytes", "web", 100, "web-b web-a ", 2},
		{"packets", "x", 100, "", 0},
	} {
		chosen, names := Choose(all, Orders[c.sort], c.filter, c.limit), ""
		for _, s := range chosen.Services {
			names += s.Service + " "
		}
		if names != c.want || chosen.ServicesBusy != c.busy || chosen.Sent != 7 || chosen.Machine != "lb-1" {
			t.Errorf("%+v: %q, %v", c, names, chosen)
		}
	}
	if all.Services[0].Service != "web-a" {
		t.Error("what others read was changed")
	}
}

func TestAnHourIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, &forwarder{})
		time.Sleep(2 * time.Hour)
		hour := r.Hour()
		if len(hour) != points || hour[0].At.After(hour[1].At) || time.Since(hour[len(hour)-1].At) > pointTime+second {
			t.Fatalf("%d points, the last %v ago", len(hour), time.Since(hour[len(hour)-1].At))
		}
		times, ofWeb := r.HourOf("web")
		if len(times) != points || len(ofWeb) != points || math.Abs(float64(ofWeb[7].Packets)-1000) > 1 || ofWeb[7].Bytes != 100*ofWeb[7].Packets {
			t.Errorf("%d, %d, %v", len(times), len(ofWeb), ofWeb[7])
		}
		if _, none := r.HourOf("other"); none != nil {
			t.Errorf("%v", none)
		}
	})
}

func TestServicesOfTheHourAreBoundedAndGoWhenTheyRest(t *testing.T) {
	var h hour
	services := map[string]ServicePoint{}
	for i := range 2 * servicesMax {
		services[fmt.Sprint(i)] = ServicePoint{Packets: 1}
	}
	h.add(Point{}, services)
	if len(h.services) != servicesMax {
		t.Errorf("%d services kept", len(h.services))
	}
	for range points {
		h.add(Point{}, nil)
	}
	if len(h.services) != 0 {
		t.Errorf("%d services kept that rested for an hour", len(h.services))
	}
}
