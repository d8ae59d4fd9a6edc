package members

// Turns a domain name's records into members: addresses, or the addresses of SRV records'
// targets.

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"

	"github.com/guideway/guideway/controller/config"
)

const (
	// All questions of one read.
	domainTimeout = 30 * time.Second
	// Questions about targets of SRV records at once.
	targetsAtOnce = 8
)

type domain struct {
	from config.MemberSource
	// Families that this machine can tunnel to; of others nothing is asked.
	ipv4, ipv6 bool
	servers    func() ([]netip.AddrPort, error)
}

func (d *domain) read(ctx context.Context) ([]config.PoolMember, time.Duration, error) {
	limited, cancel := context.WithTimeout(ctx, domainTimeout)
	defer cancel()
	members, ttl, err := d.lookup(limited)
	if err != nil {
		return nil, d.from.TTLMin, err
	}
	if len(members) == 0 {
		ttl = 0 // soon again: it should not be so
	}
	return members, min(max(ttl, d.from.TTLMin), d.from.TTLMax), nil
}

func (d *domain) lookup(ctx context.Context) ([]config.PoolMember, time.Duration, error) {
	servers, err := d.servers()
	if err != nil {
		return nil, 0, err
	}
	r := resolver{servers}
	if strings.HasPrefix(d.from.DNS, "_") {
		return d.services(ctx, r)
	}
	found, err := d.addresses(ctx, r, d.from.DNS)
	if err != nil {
		return nil, 0, err
	}
	members := &set{}
	err = members.addAll(d.from.DNS, found.addresses, "")
	return members.members, found.ttl, err
}

func (s *set) addAll(name string, addresses []netip.Addr, weight string) error {
	for _, address := range addresses {
		m, err := config.ParseMember("", address.String(), weight)
		if err == nil {
			err = s.add(m)
		}
		if err != nil {
			return fmt.Errorf("%s has %s: %w", name, address, err)
		}
	}
	return nil
}

// addresses of a name, of the families that are asked for.
func (d *domain) addresses(ctx context.Context, r resolver, name string) (found answer, err error) {
	found.ttl = d.from.TTLMax
	for _, family := range []struct {
		wanted bool
		kind   dnsmessage.Type
	}{{d.ipv4, dnsmessage.TypeA}, {d.ipv6, dnsmessage.TypeAAAA}} {
		if !family.wanted {
			continue
		}
		one, err := r.ask(ctx, name, family.kind)
		if err != nil {
			return answer{}, err
		}
		found.addresses = append(found.addresses, one.addresses...)
		if len(one.addresses) > 0 {
			found.ttl = min(found.ttl, one.ttl)
		}
	}
	return found, nil
}

// services are the targets of SRV records (RFC 2782), of the best priority alone.
func (d *domain) services(ctx context.Context, r resolver) ([]config.PoolMember, time.Duration, error) {
	asked, err := r.ask(ctx, d.from.DNS, dnsmessage.TypeSRV)
	if err != nil {
		return nil, 0, err
	}
	best, heaviest := bestOf(asked.services)
	found := make([]answer, len(best))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(targetsAtOnce)
	for i, service := range best {
		group.Go(func() (err error) {
			found[i], err = d.addresses(ctx, r, strings.TrimSuffix(service.Target.String(), "."))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, 0, fmt.Errorf("a target of %s: %w", d.from.DNS, err)
	}
	members, ttl := &set{}, asked.ttl
	for i, service := range best {
		target := service.Target.String()
		if err := samePort(d.from.Port, service.Port); err != nil {
			return nil, 0, fmt.Errorf("%s lists %s: %w", d.from.DNS, target, err)
		}
		if err := members.addAll(target, found[i].addresses, weightOf(service, heaviest)); err != nil {
			return nil, 0, err
		}
		ttl = min(ttl, found[i].ttl)
	}
	return members.members, ttl, nil
}

// bestOf the records: those of the lowest priority, without ones that say that there is no
// such service (a target of `.`); and their greatest weight.
func bestOf(services []dnsmessage.SRVResource) (best []dnsmessage.SRVResource, heaviest uint16) {
	services = slices.DeleteFunc(services, func(s dnsmessage.SRVResource) bool { return s.Target.String() == "." })
	slices.SortFunc(services, func(a, b dnsmessage.SRVResource) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), strings.Compare(a.Target.String(), b.Target.String()))
	})
	for _, s := range services {
		if s.Priority == services[0].Priority {
			best, heaviest = append(best, s), max(heaviest, s.Weight)
		}
	}
	return best, heaviest
}

// weightOf a record among others: SRV has 0 for a small share, and up to 65535.
func weightOf(s dnsmessage.SRVResource, heaviest uint16) string {
	weight := int(s.Weight)
	if heaviest > config.MemberWeightMax {
		weight = weight * config.MemberWeightMax / int(heaviest)
	}
	return strconv.Itoa(max(1, weight))
}
