package events

import (
	"context"
	"net/netip"
	"sync"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

// routeLog watches the router during an event: a machine whose routes go
// although it was not killed makes flows move, and explains what breaks then.
type routeLog struct {
	cancel context.CancelFunc
	ended  chan struct{}

	mutex sync.Mutex
	// lost counts, by machine, how often its last route went.
	lost map[string]int
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
	log := &routeLog{cancel: cancel, ended: make(chan struct{}), lost: map[string]int{}}
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
		if present[machine] && !now {
			log.lost[machine]++
		}
		present[machine] = now
	}
}

// stop watching; returns which machines lost their routes how often without being killed.
func (log *routeLog) stop(killed string) (map[string]int, error) {
	log.cancel()
	<-log.ended
	log.mutex.Lock()
	defer log.mutex.Unlock()
	lost := map[string]int{}
	for machine, times := range log.lost {
		if machine == killed {
			times--
		}
		if times > 0 {
			lost[machine] = times
		}
	}
	return lost, log.err
}
