package console

import (
	"context"
	"sync"
	"time"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// view is everything at one moment, for all who read within a second. Nothing in it is
// changed.
type view struct {
	at       time.Time
	state    *controllerv1.GetStateResponse
	counters *forwarderv1.GetCountersResponse // nil: none
	rates    *controllerv1.Rates              // never nil
	// Those that have traffic; and of a backend over all services.
	ofService map[string]*controllerv1.Rate
	ofBackend map[rated]*controllerv1.Rate
	inAll     map[string]*controllerv1.Rate

	mu   sync.Mutex
	made map[string]*made
}

type rated struct{ service, backend string }

// made of a page, for the next reader of the same one.
type made struct {
	content *content
	packed  []byte // nil: nobody asked for it as HTML yet
}

const (
	// Pages of one view that are kept for the next reader.
	madeMax = 64
	// Of the state, for each service and backend.
	stateBytes = 500
)

func (c *Console) readView(ctx context.Context) (*view, int, error) {
	state, err := c.sources.State(ctx)
	if err != nil {
		return nil, 0, err
	}
	v := &view{at: time.Now(), state: state, made: map[string]*made{}}
	v.rates, v.counters = c.sources.Rates.Latest()
	if v.rates == nil {
		v.rates = &controllerv1.Rates{Problem: "not known yet: the counters are read each ten seconds"}
	}
	v.ofService = make(map[string]*controllerv1.Rate, len(v.rates.Services))
	for _, r := range v.rates.Services {
		v.ofService[r.Service] = r
	}
	v.ofBackend = make(map[rated]*controllerv1.Rate, len(v.rates.Backends))
	v.inAll = make(map[string]*controllerv1.Rate, len(v.rates.Backends))
	for _, r := range v.rates.Backends {
		v.ofBackend[rated{r.Service, r.Backend}] = r
		sum := v.inAll[r.Backend]
		v.inAll[r.Backend] = &controllerv1.Rate{Packets: sum.GetPackets() + r.Packets, Bytes: sum.GetBytes() + r.Bytes, NewConnections: sum.GetNewConnections() + r.NewConnections}
	}
	return v, stateBytes * (len(state.Services) + len(state.Backends)), nil
}

// rateOf a backend; nil: it has no traffic. Those of several services are counted together.
func (v *view) rateOf(b *controllerv1.Backend) *controllerv1.Rate {
	if b.Service == "" {
		return v.inAll[b.Name]
	}
	return v.ofBackend[rated{b.Service, b.Name}]
}

func (v *view) found(p page, asHTML bool) *made {
	v.mu.Lock()
	defer v.mu.Unlock()
	found := v.made[p.key()]
	if found == nil || asHTML && found.packed == nil {
		return nil
	}
	return found
}

func (v *view) keep(p page, of *made) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.made) < madeMax {
		v.made[p.key()] = of
	}
}
