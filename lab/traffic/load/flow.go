package load

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
)

// Flow is the five-tuple of a TCP connection as the client sees it.
type Flow struct {
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
}

// String is the form that `guideway-forwarder select` reads.
func (f Flow) String() string {
	return fmt.Sprintf("tcp %s %d %s %d", f.Source.Addr(), f.Source.Port(), f.Destination.Addr(), f.Destination.Port())
}

const (
	portFirst = 10_000
	portCount = 50_000
	// A step without common factor with the count visits every port once.
	portStep = 7_919
)

// sources hands out source addresses and ports, none twice.
type sources struct {
	mutex     sync.Mutex
	addresses []netip.Addr
	first     uint32
	taken     int
}

func newSources(seed uint64, addresses []netip.Addr) *sources {
	random := rand.New(rand.NewPCG(seed, 0x736f7572636573)) // "sources"
	shuffled := append([]netip.Addr{}, addresses...)
	random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	return &sources{addresses: shuffled, first: random.Uint32N(portCount)}
}

// next flow to one of the destinations, whose families take turns with the
// sources.
func (s *sources) next(destinations []netip.AddrPort) (Flow, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for range s.addresses {
		address := s.addresses[s.taken%len(s.addresses)]
		round := s.taken / len(s.addresses)
		if round >= portCount {
			break
		}
		s.taken++
		for _, destination := range destinations {
			if destination.Addr().Is4() == address.Is4() {
				port := portFirst + (s.first+uint32(round)*portStep)%portCount
				return Flow{Source: netip.AddrPortFrom(address, uint16(port)), Destination: destination}, nil
			}
		}
	}
	return Flow{}, fmt.Errorf("no source left for %v among %d addresses with %d ports each: give more of its family", destinations, len(s.addresses), portCount)
}
