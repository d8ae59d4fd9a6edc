package events

import (
	"context"
	"net/netip"
	"sync"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

// routeLog watches where packets to VIPs go during an event: a machine whose last
// route (without a router: VIP) goes although it was not killed makes flows move, and
// explains what breaks then.
type routeLog struct {
	cancel context.CancelFunc
	ended  chan struct{}

	// isSlow: the machine has made its routes worse than the others'.
	isSlow func(machine string) bool

	mutex sync.Mutex
	// lost counts, by machine, how often its last route went.
	lost map[string]int
	// slow is a machine that the router left because it was slow.
	slow string
	err  error
}

// watchRoutes until stop.
func watchRoutes(ctx context.Context, l *hosts.Lab) (*routeLog, error) {
	router, err := l.Network.OpenRouter()
	if err != nil {
		return nil, err
	}
	addresses := map[string][]netip.Addr{}
	for _, machine := range l.LoadBalancers() {
		if addresses[machine], err = l.Network.Addresses(machine); err != nil {
			router.Close()
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	isSlow := func(machine string) bool { return l.IsSlow(ctx, machine) }
	log := &routeLog{cancel: cancel, ended: make(chan struct{}), isSlow: isSlow, lost: map[string]int{}}
	go func() {
		defer close(log.ended)
		defer router.Close()
		present := map[string]bool{}
		_, err := router.Watch(ctx, func(routes topology.Routes) bool {
			log.see(routes, addresses, present)
			return false
		})
		if ctx.Err() == nil {
			log.mutex.Lock()
			log.err = err
			log.mutex.Unlock()
		}
	}()
	return log, nil
}

func (log *routeLog) see(routes topology.Routes, addresses map[string][]netip.Addr, present map[string]bool) {
	log.mutex.Lock()
	defer log.mutex.Unlock()
	for machine, own := range addresses {
		now := routes.Via(own)
		wasLeft := present[machine] && !now
		present[machine] = now
		switch {
		case !wasLeft:
		case log.isSlow(machine): // for 30 s at least: later it may not be any more
			log.slow = machine
		default:
			log.lost[machine]++
		}
	}
}

// stop watching; returns which machines lost their routes how often without being killed, and
// one that the router left because it was slow.
func (log *routeLog) stop(killed string) (lost map[string]int, slow string, err error) {
	log.cancel()
	<-log.ended
	log.mutex.Lock()
	defer log.mutex.Unlock()
	lost = map[string]int{}
	for machine, times := range log.lost {
		if machine == killed {
			times--
		}
		if times > 0 {
			lost[machine] = times
		}
	}
	return lost, log.slow, log.err
}
