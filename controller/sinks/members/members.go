// Package members reads pools' members from files and DNS.
//
//	Set(config) ─► one loop per pool with a source ─► read ─► brain.MembersRead
//
// It is a sink: Set takes all pools and determines the difference; a pool with an unchanged
// source is not read again for it. Each read gives a full set, or the reason why there is
// none. The brain decides what happens with it.
package members

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/outside"
)

// Members reads the sources of one config.
type Members struct {
	tell func(brain.Event)
	// Whom DNS is asked from.
	servers func() ([]netip.AddrPort, error)

	mu      sync.Mutex
	running map[string]running
	group   sync.WaitGroup
}

// source of a pool's members.
type source interface {
	// read all of them, and when to read again.
	read(ctx context.Context) (set []config.PoolMember, again time.Duration, err error)
}

// wanted is compared to find what differs.
type wanted struct {
	from       config.MemberSource
	ipv4, ipv6 bool
}

type running struct {
	wanted
	stop context.CancelFunc
}

// New reads nothing yet.
func New(tell func(brain.Event)) *Members {
	return &Members{tell: tell, servers: systemServers, running: map[string]running{}}
}

// Set starts sources that are new and stops those that are no longer wanted. An event of a
// stopped one may still come.
func (m *Members) Set(c *config.Config) {
	m.mu.Lock()
	defer m.mu.Unlock()
	want := map[string]wanted{}
	for _, pool := range c.MemberPools() {
		one := wanted{from: *pool.From}
		for _, address := range c.Machine.Addresses {
			one.ipv4, one.ipv6 = one.ipv4 || address.Is4(), one.ipv6 || address.Is6()
		}
		want[pool.Name] = one
	}
	for pool, r := range m.running {
		if want[pool] != r.wanted {
			r.stop()
			delete(m.running, pool)
		}
	}
	for pool, one := range want {
		if _, runs := m.running[pool]; !runs {
			ctx, stop := context.WithCancel(context.Background())
			m.running[pool] = running{one, stop}
			m.group.Go(func() { m.follow(ctx, pool, one) })
		}
	}
}

// Stop all of them, and wait until they have.
func (m *Members) Stop() {
	m.mu.Lock()
	for pool, r := range m.running {
		r.stop()
		delete(m.running, pool)
	}
	m.mu.Unlock()
	m.group.Wait()
}

func (m *Members) follow(ctx context.Context, pool string, one wanted) {
	source := m.source(one)
	for {
		set, again, err := source.read(ctx)
		if ctx.Err() != nil {
			return
		}
		event := brain.MembersRead{Pool: pool, From: one.from, Members: set}
		if err != nil {
			event.Members, event.Problem = nil, outside.Line(err.Error(), problemBytesMax)
		}
		m.tell(event)
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return
		}
	}
}

// Of a problem, which has text of files and servers in it.
const problemBytesMax = 1 << 10

func (m *Members) source(one wanted) source {
	if one.from.File != "" {
		return &file{path: one.from.File, port: one.from.Port}
	}
	return &domain{from: one.from, ipv4: one.ipv4, ipv6: one.ipv6, servers: m.servers}
}

// set of members, each once.
type set struct {
	members []config.PoolMember
	at      map[string]int
}

// add a member, which may have been listed before with the same values.
func (s *set) add(m config.PoolMember) error {
	if s.at == nil {
		s.at = map[string]int{}
	}
	at, known := s.at[m.Name]
	switch {
	case known && s.members[at] != m:
		was := s.members[at]
		return fmt.Errorf("%s is listed twice: with address %s, weight %d and address %s, weight %d", m.Name, was.Address, was.Weight, m.Address, m.Weight)
	case known:
		return nil
	case len(s.members) == config.MembersMax:
		return fmt.Errorf("more than %d members are listed, the limit", config.MembersMax)
	}
	s.at[m.Name] = len(s.members)
	s.members = append(s.members, m)
	return nil
}

// samePort refuses members that listen elsewhere: packets keep the port that the client chose.
func samePort(wanted, given uint16) error {
	if wanted != 0 && given != 0 && wanted != given {
		return fmt.Errorf("it has port %d, and the pool's `port` is %d", given, wanted)
	}
	return nil
}
