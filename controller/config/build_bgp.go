package config

// Builds the BGP settings.

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// Of a route without LOCAL_PREF in every implementation.
const localPrefDefault = 100

func (b *builder) bgp() {
	given := b.schema.GetBgp()
	if given == nil {
		return
	}
	bgp := &BGP{ASN: given.GetAsn(), RouterID: routerID(b.config.Machine), RoutesMax: int(given.GetRoutesMax())}
	if text := given.GetRouterId(); text != "" {
		bgp.RouterID = b.routerID("bgp.router_id", text)
	}
	seen := map[netip.Addr]string{}
	for i, neighbor := range given.GetNeighbors() {
		path := fmt.Sprintf("bgp.neighbors[%d]", i)
		built := b.neighbor(path, bgp.ASN, neighbor)
		if earlier, ok := seen[built.Address]; ok && built.Address.IsValid() {
			b.errorf(path+".address", "%s is already %s: one session for each router", built.Address, earlier)
		}
		seen[built.Address] = path
		bgp.Neighbors = append(bgp.Neighbors, built)
	}
	bgp.Communities = b.communities("bgp", given.GetCommunities())
	bgp.LargeCommunities = b.largeCommunities("bgp", given.GetLargeCommunities())
	b.config.BGP = bgp
}

func (b *builder) neighbor(path string, ownASN uint32, given *configv1.Neighbor) Neighbor {
	neighbor := Neighbor{
		Address:  b.address(path+".address", given.GetAddress()),
		ASN:      given.GetAsn(),
		HoldTime: duration(given.GetHoldTime(), 9*time.Second),

		TTLSecurity: given.GetTtlSecurity(),
	}
	if slices.Contains(b.config.Machine.Addresses, neighbor.Address) {
		b.errorf(path+".address", "%s is this machine's own address: give the router's", neighbor.Address)
	}
	hold := neighbor.HoldTime
	if hold%time.Second != 0 || (hold > 0 && hold < 3*time.Second) {
		b.errorf(path+".hold_time", "is %s: give 0 (never), or whole seconds from 3s on (RFC 4271)", short(hold))
	}
	if bfd := given.GetBfd(); bfd != nil {
		neighbor.BFD = &BFD{Interval: duration(bfd.GetInterval(), 100*time.Millisecond), Multiplier: or(bfd.GetMultiplier(), 3)}
	}
	if file := given.GetPasswordFile(); file != "" {
		neighbor.PasswordFile = b.passwordFile(path+".password_file", file)
	}
	if source := given.GetSource(); source != "" {
		neighbor.Source = b.address(path+".source", source)
		if neighbor.Source.IsValid() && neighbor.Address.IsValid() && neighbor.Source.Is4() != neighbor.Address.Is4() {
			b.errorf(path+".source", "%s is of another family than the router's address %s: give one of the same", neighbor.Source, neighbor.Address)
		}
	}
	b.multihop(path+".multihop", ownASN, given, &neighbor)
	b.preference(path, ownASN, given, &neighbor)
	return neighbor
}

func (b *builder) multihop(path string, ownASN uint32, given *configv1.Neighbor, neighbor *Neighbor) {
	if given.Multihop == nil {
		return
	}
	switch {
	case given.GetAsn() == ownASN:
		b.errorf(path, "is for routers of another AS, and this one is of our own (%d), where sessions have no limit of hops: remove it", ownASN)
	case given.GetTtlSecurity():
		b.errorf(path, "is given beside ttl_security, which only lets packets from the same link through: remove one of them")
	case given.GetBfd() != nil:
		b.errorf(path, "is given beside bfd, which works on one link only (RFC 5881): remove one of them")
	}
	neighbor.Multihop = uint8(given.GetMultihop())
}

// preference is what makes a router prefer one path to another.
func (b *builder) preference(path string, ownASN uint32, given *configv1.Neighbor, neighbor *Neighbor) {
	neighbor.MED = given.Med
	neighbor.Prepend = uint8(given.GetPrepend())
	inside := given.GetAsn() == ownASN
	if inside {
		neighbor.LocalPref = or(given.GetLocalPref(), localPrefDefault)
	}
	if given.LocalPref != nil && !inside {
		b.errorf(path+".local_pref", "is for routers of our own AS (%d), and this one is of AS %d, which would ignore it (RFC 4271, 5.1.5): use med or prepend, or a community that the router acts on", ownASN, given.GetAsn())
	}
	if neighbor.Prepend > 0 && inside {
		b.errorf(path+".prepend", "is for routers of another AS: one of our own (%d) takes a path with its own number for a loop and refuses it: use local_pref", ownASN)
	}
}

func (b *builder) communities(path string, given []string) []Community {
	var communities []Community
	for i, text := range given {
		parts, ok := numbers(text, 2, 16)
		if !ok {
			b.errorf(fmt.Sprintf("%s.communities[%d]", path, i), "is %q: give two numbers from 0 to 65535, like \"64512:100\"%s", text, hintLarge(text))
			continue
		}
		communities = append(communities, Community(parts[0]<<16|parts[1]))
	}
	return communities
}

func hintLarge(text string) string {
	if _, ok := numbers(text, 3, 32); ok {
		return "; three are a large community, for `large_communities`"
	}
	return ""
}

func (b *builder) largeCommunities(path string, given []string) []LargeCommunity {
	var communities []LargeCommunity
	for i, text := range given {
		parts, ok := numbers(text, 3, 32)
		if !ok {
			b.errorf(fmt.Sprintf("%s.large_communities[%d]", path, i), "is %q: give three numbers from 0 to 4294967295, like \"64512:1:100\"", text)
			continue
		}
		communities = append(communities, LargeCommunity{parts[0], parts[1], parts[2]})
	}
	return communities
}

// numbers reads `64512:100`: `count` numbers of `bits` bits each.
func numbers(text string, count, bits int) ([]uint32, bool) {
	var parts []uint32
	for part := range strings.SplitSeq(text, ":") {
		number, err := strconv.ParseUint(part, 10, bits)
		if err != nil {
			return nil, false
		}
		parts = append(parts, uint32(number))
	}
	return parts, len(parts) == count
}

func (b *builder) routerID(path, text string) netip.Addr {
	id, err := netip.ParseAddr(text)
	if err != nil || !id.Is4() || id.IsUnspecified() {
		b.errorf(path, "is %q: give an IPv4 address other than 0.0.0.0 (also on a machine that has none: it is a 32-bit number)", text)
	}
	return id
}

// routerID is the machine's first IPv4 address, or made from its name.
func routerID(machine Machine) netip.Addr {
	for _, address := range machine.Addresses {
		if address.Is4() {
			return address
		}
	}
	digest := sha256.Sum256([]byte("guideway router id\x00" + machine.Name))
	digest[3] |= 1 // never zero
	return netip.AddrFrom4([4]byte(digest[:4]))
}
