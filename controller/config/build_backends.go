package config

import (
	"cmp"
	"net/netip"
	"slices"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// backendNames holds "one name, one address" over all pools.
type backendNames struct {
	*builder
	byName    map[string]knownBackend
	byAddress map[netip.Addr][]knownBackend // a name each
}

type knownBackend struct {
	*Backend
	field string
}

func newBackendNames(b *builder) *backendNames {
	return &backendNames{builder: b, byName: map[string]knownBackend{}, byAddress: map[netip.Addr][]knownBackend{}}
}

// add puts a backend into its pool, unless the pool has it already.
func (n *backendNames) add(pool *Pool, path string, given *configv1.Backend) {
	address := netip.Addr{}
	if given.GetAddress() != "" { // else told by the schema's rule
		address = n.address(path+".address", given.GetAddress())
	}
	if !address.IsValid() {
		return
	}
	n.reachable(path+".address", address)
	backend := n.intern(path, Backend{Name: or(given.GetName(), address.String()), Address: address})
	entry := PoolBackend{Backend: backend, Weight: 1}
	if given.Weight != nil {
		entry.Weight = *given.Weight
	}
	for _, earlier := range pool.Backends {
		if earlier.Name != entry.Name {
			continue
		}
		if earlier.Weight != entry.Weight {
			n.errorf(path+".weight", "backend %q has weight %d here and %d earlier in the same pool: list it once", entry.Name, entry.Weight, earlier.Weight)
		} else {
			n.warnf(path, "backend %q is in this pool already: it counts once; remove one of the two", entry.Name)
		}
		return
	}
	pool.Backends = append(pool.Backends, entry)
}

// reachable refuses addresses to which this machine cannot tunnel.
func (n *backendNames) reachable(field string, address netip.Addr) {
	machine := n.config.Machine
	if len(machine.Addresses) == 0 {
		return // told: machine.addresses is missing
	}
	if _, ok := machine.Address(address); !ok {
		n.errorf(field, "%s is %s, and machine.addresses has no %s address to tunnel from: add one",
			address, family(address), family(address))
	}
	if slices.Contains(machine.Addresses, address) {
		n.errorf(field, "%s is this machine's own address: a load balancer is no backend of itself", address)
	}
}

// intern returns the one Backend of a name.
func (n *backendNames) intern(path string, backend Backend) *Backend {
	known, ok := n.byName[backend.Name]
	switch {
	case !ok:
		known = knownBackend{&backend, path}
		n.byName[backend.Name] = known
	case known.Address != backend.Address:
		n.errorf(path+".address", "backend %q is %s here and %s at %s (line %d): one name has one address; correct one, or give them different names",
			backend.Name, backend.Address, known.Address, known.field, n.document.position(known.field).line)
		return known.Backend
	}
	if !ok {
		n.byAddress[backend.Address] = append(n.byAddress[backend.Address], known)
	}
	return known.Backend
}

// warnNames of addresses that have several.
func (n *backendNames) warnNames() {
	for address, known := range n.byAddress {
		switch len(known) {
		case 1:
		case 2:
			n.warnf(known[1].field, "%s is backend %q here and %q at %s: they count as two, with a share each; give it one name",
				address, known[1].Name, known[0].Name, known[0].field)
		default:
			n.warnf(known[1].field, "%s has %d names, %q here and %q at %s among them: each counts as a backend, with a share of its own; give it one name",
				address, len(known), known[1].Name, known[0].Name, known[0].field)
		}
	}
}

func (n *backendNames) sorted() []Backend {
	backends := make([]Backend, 0, len(n.byName))
	for _, known := range n.byName {
		backends = append(backends, *known.Backend)
	}
	slices.SortFunc(backends, func(a, b Backend) int { return cmp.Compare(a.Name, b.Name) })
	return backends
}
