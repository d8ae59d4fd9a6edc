package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

const (
	tableSizeDefault = 65537
	bucketsDefault   = 4096
	// As many as some thousand busy connections send.
	secondChanceRateDefault = 100_000
)

func (b *builder) services() {
	if len(b.schema.GetServices()) == 0 {
		b.missing("services", "is missing: give at least one service, or there is nothing to balance")
	}
	names := map[string]string{}
	b.config.Services = make([]Service, 0, len(b.schema.GetServices()))
	for i, given := range b.schema.GetServices() {
		path := fmt.Sprintf("services[%d]", i)
		b.uniqueName(names, path, given.GetName())
		b.config.Services = append(b.config.Services, b.service(path, given))
	}
}

func (b *builder) service(path string, given *configv1.Service) Service {
	service := Service{
		Name:             given.GetName(),
		Shard:            or(given.GetShard(), "default"),
		Pools:            given.GetPools(),
		Mode:             Mode(or(given.GetMode(), string(ModeStateful))),
		Affinity:         Affinity(or(given.GetAffinity(), string(AffinityFlow))),
		Encap:            Encap(or(given.GetEncap(), string(EncapGRE))),
		TableSize:        or(given.GetTableSize(), tableSizeDefault),
		IdleTimeouts:     b.idleTimeouts(path+".idle_timeouts", given.GetIdleTimeouts()),
		ConnectionsQuota: given.GetConnectionsQuota(),
		OnDown:           OnDown(or(given.GetOnDown(), string(OnDownMove))),
		WhenNone:         WhenNone(or(given.GetWhenNone(), string(WhenNoneWithdraw))),
		Fragments:        fragments(given.Fragments),
		Spill:            b.spill(path, given.GetSpill()),
		DSCP:             b.dscp(path+".dscp", or(given.GetDscp(), "copy")),
		Unmatched:        Unmatched(or(given.GetUnmatched(), string(UnmatchedDrop))),
		BackendsMin:      int(or(given.GetBackendsMin(), 1)),
		BackupPools:      given.GetBackupPools(),
		Communities:      b.communities(path, given.GetCommunities()),
		LargeCommunities: b.largeCommunities(path, given.GetLargeCommunities()),
		Announce:         Announce(or(given.GetAnnounce(), string(AnnounceAddress))),
	}
	if service.Mode == ModeStateless {
		service.Buckets = or(given.GetBuckets(), bucketsDefault)
	} else if given.Buckets != nil {
		b.errorf(path+".buckets", "is for stateless services: remove it, or set `mode: stateless`")
	}
	service.QUICLB = b.quicLB(path+".quic_lb", given.QuicLb)
	service.MultipathTCP = given.Mptcp != nil && given.GetMptcp().JoinPorts == nil
	service.JoinPorts = uint16(given.GetMptcp().GetJoinPorts())
	if service.SecondChance = given.GetSecondChance(); service.SecondChance {
		service.SecondChanceRate = or(given.GetSecondChanceRate(), secondChanceRateDefault)
	} else if given.SecondChanceRate != nil {
		b.errorf(path+".second_chance_rate", "is for services with a second chance: remove it, or set `second_chance: true`")
	}
	for i, vip := range given.GetVips() {
		service.VIPs = append(service.VIPs, b.vip(fmt.Sprintf("%s.vips[%d]", path, i), vip))
	}
	b.servicePools(path, &service)
	return service
}

func (b *builder) vip(path string, given *configv1.Vip) VIP {
	vip := VIP{Protocol: Protocol(given.GetProtocol())}
	exact := given.Address != nil
	suffixed := given.PrefixGroup != nil || given.Suffix != nil
	switch {
	case exact && suffixed:
		b.errorf(path+".address", "is given beside prefix_group or suffix: give either an address, or a prefix_group with a suffix")
	case exact:
		vip.Address = b.address(path+".address", given.GetAddress())
		b.vipOfMachine(path+".address", vip.Address)
	case given.Suffix == nil && given.PrefixGroup == nil:
		b.missing(path+".address", "is missing: give an address, or a prefix_group with a suffix")
	case given.Suffix == nil:
		b.missing(path+".suffix", "is missing: a VIP in a prefix group needs the low bits, like 0.0.0.10")
	case given.PrefixGroup == nil:
		b.missing(path+".prefix_group", "is missing: say in which prefix group the suffix is")
	default:
		b.suffixVIP(path, given, &vip)
	}
	vip.Ports = b.ports(path+".ports", given.GetPorts())
	return vip
}

func (b *builder) vipOfMachine(field string, address netip.Addr) {
	if slices.Contains(b.config.Machine.Addresses, address) {
		b.errorf(field, "%s is also in machine.addresses: the machine's own traffic would be taken for the service's; use another address for one of them", address)
	}
}

// suffixVIP reads ⟨prefix group, suffix⟩.
func (b *builder) suffixVIP(path string, given *configv1.Vip, vip *VIP) {
	vip.PrefixGroup = given.GetPrefixGroup()
	text, bits, hasBits := strings.Cut(given.GetSuffix(), "/")
	suffix, err := netip.ParseAddr(text)
	if err != nil || suffix.Zone() != "" || suffix.Is4In6() {
		b.errorf(path+".suffix", "is %q: give the low bits as an address, like 0.0.0.10, 0.0.0.10/8 or ::10", given.GetSuffix())
		return
	}
	vip.Suffix = suffix
	if hasBits {
		n, err := strconv.Atoi(bits)
		if err != nil || n < 1 || n > suffix.BitLen() {
			b.errorf(path+".suffix", "is %q: the number of low bits is 1 to %d", given.GetSuffix(), suffix.BitLen())
			return
		}
		vip.SuffixBits = n
	}
	group := b.groupNamed(vip.PrefixGroup)
	if group == nil {
		b.errorf(path+".prefix_group", "there is no prefix group %q: %s", vip.PrefixGroup,
			didYouMean(vip.PrefixGroup, b.groupNames(), "add it to `prefix_groups`"+"; "+listed(b.groupNames())))
		return
	}
	b.suffixFits(path+".suffix", *vip, group)
}

// suffixFits holds the suffix against every prefix of its family.
func (b *builder) suffixFits(field string, vip VIP, group *PrefixGroup) {
	fitting := 0
	for _, prefix := range group.Prefixes {
		if prefix.Addr().Is4() != vip.Suffix.Is4() {
			continue
		}
		fitting++
		left := prefix.Addr().BitLen() - prefix.Bits()
		bits := or(vip.SuffixBits, left)
		switch {
		case bits > left:
			b.errorf(field, "compares %d low bits, and %s leaves %d: give at most /%d", bits, prefix, left, left)
		case !fitsBits(vip.Suffix, bits):
			b.errorf(field, "%s does not fit into the %d low bits that are compared in %s: give a smaller suffix", vip.Suffix, bits, prefix)
		}
		for _, address := range b.config.Machine.Addresses {
			if prefix.Contains(address) {
				b.errorf(field, "machine.addresses has %s, which is inside %s: all of a prefix is taken from the kernel, the machine's own traffic too; use an address outside", address, prefix)
			}
		}
	}
	if fitting == 0 && len(group.Prefixes) > 0 {
		b.errorf(field, "is %s, and prefix group %q has no %s prefix: add one, or use the other family", family(vip.Suffix), group.Name, family(vip.Suffix))
	}
}

// fitsBits says whether only the low bits of a suffix are set.
func fitsBits(suffix netip.Addr, bits int) bool {
	upper, err := suffix.Prefix(suffix.BitLen() - bits)
	return err == nil && upper.Addr().IsUnspecified()
}

func (b *builder) groupNamed(name string) *PrefixGroup {
	for i := range b.config.PrefixGroups {
		if b.config.PrefixGroups[i].Name == name {
			return &b.config.PrefixGroups[i]
		}
	}
	return nil
}

func (b *builder) groupNames() []string {
	return namesOf(b.config.PrefixGroups, func(g PrefixGroup) string { return g.Name })
}

func (b *builder) ports(path string, given []string) []PortRange {
	var ranges []PortRange
	for i, text := range given {
		ports, problem := parsePorts(text)
		if problem != "" {
			b.errorf(fmt.Sprintf("%s[%d]", path, i), "%s", problem)
			continue
		}
		ranges = append(ranges, ports)
	}
	return mergePorts(ranges)
}

func (b *builder) idleTimeouts(path string, given *configv1.IdleTimeouts) IdleTimeouts {
	timeouts := IdleTimeouts{
		TCP:            duration(given.GetTcp(), 15*time.Minute),
		TCPUnconfirmed: duration(given.GetTcpUnconfirmed(), 30*time.Second),
		TCPClosing:     duration(given.GetTcpClosing(), 2*time.Minute),
		UDP:            duration(given.GetUdp(), time.Minute),
	}
	for _, one := range []struct {
		name  string
		value time.Duration
	}{{"tcp", timeouts.TCP}, {"tcp_unconfirmed", timeouts.TCPUnconfirmed}, {"tcp_closing", timeouts.TCPClosing}, {"udp", timeouts.UDP}} {
		if one.value%time.Millisecond != 0 {
			b.errorf(path+"."+one.name, "is %s: give whole milliseconds", one.value)
		}
	}
	return timeouts
}

func (b *builder) spill(path string, given []*configv1.Spill) []Spill {
	var spills []Spill
	for i, one := range given {
		field := fmt.Sprintf("%s.spill[%d]", path, i)
		prefix, problem := parsePrefix(one.GetPrefix())
		group := b.groupNamed(one.GetPrefixGroup())
		switch {
		case problem != "":
			b.errorf(field+".prefix", "%s", problem)
		case group == nil:
			b.errorf(field+".prefix_group", "there is no prefix group %q: %s", one.GetPrefixGroup(),
				didYouMean(one.GetPrefixGroup(), b.groupNames(), "add it to `prefix_groups`"+"; "+listed(b.groupNames())))
		case !slices.Contains(group.Prefixes, prefix):
			b.errorf(field+".prefix", "%s is not in prefix group %q: add it there, or name one that is", prefix, group.Name)
		case slices.Contains(b.config.Cluster.Prefixes, prefix):
			b.errorf(field+".prefix", "%s is this cluster's own (cluster.prefixes): name another cluster's", prefix)
		}
		spills = append(spills, Spill{PrefixGroup: one.GetPrefixGroup(), Prefix: prefix})
	}
	return spills
}

func (b *builder) dscp(field, text string) *uint32 {
	if text == "copy" {
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n > 63 {
		b.errorf(field, "is %q: give `copy`, or a number from 0 to 63", text)
	}
	value := uint32(n)
	return &value
}

func fragments(given *bool) Fragments {
	switch {
	case given == nil:
		return FragmentsAuto
	case *given:
		return FragmentsOn
	default:
		return FragmentsOff
	}
}
