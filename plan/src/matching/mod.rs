//! Which service a packet is for (paper 4.2).
//!
//! ```text
//!  exact address ─► class of the longest prefix: suffixes, longest first
//!       │                 │
//!       └─ at each step:  (protocol, port) ─► (protocol, all ports) ─► (any)
//! ```
//!
//! The first match wins; if a step has none, the next one is tried, but never a shorter prefix
//! than the longest that matches. Each step is a hash lookup.
//!
//! Most packets are to a single port that one lookup finds: for IPv4 at an address or a suffix
//! ([`Vips::lookup_v4`]), for IPv6 at an address ([`Vips::lookup_v6`]). For all others
//! [`Vips::lookup_rest`] takes all steps. A property test checks that both find the same.

mod builder;
mod flat_map;
mod ports_v4;

use wire::ip::AddressBits;
use wire::{Family, Protocol, SocketV4, Target};

pub use builder::{Conflict, VipsBuilder};
use flat_map::{FlatMap, Key};
pub use ports_v4::LookupV4;
use ports_v4::PortsV4;

use crate::ids::ServiceId;
use crate::service::Tracking;

/// The service a packet is for, with all that most of its packets need: a
/// service in itself is another line of the cache. Of one plan only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Matched {
    /// Which service.
    pub service: ServiceId,
    /// Where the plan lists that service.
    pub listed: u16,
    /// Which of the plan's profiles it has: the same for services of the same
    /// `encap` and `dscp`.
    pub profile: u16,
    /// Which of the plan's matches: an index for counters and explanations.
    pub matched: u32,
    /// As [`crate::Service`] has it.
    pub first_member: u32,
    /// Which of the plan's groups is the service's.
    pub group: u32,
    /// As [`crate::Service`] has it.
    pub tracking: Tracking,
    /// Nothing else counts where its members are counted, no other match of the
    /// service and no other service: it is what is counted for the match.
    pub alone: bool,
}

/// A target as the index looks it up, hashed once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookupKey {
    key: Key,
    hash: u64,
}

impl LookupKey {
    /// That of a target, in every index.
    #[inline(always)]
    #[must_use]
    pub fn of(target: &Target) -> LookupKey {
        let key = port_key(target);
        LookupKey { key, hash: key.hash() }
    }

    /// The target.
    #[must_use]
    pub fn target(&self) -> Target {
        let Key { bits, scope } = self.key;
        let [.., port_high, port_low, protocol, family] = scope.to_be_bytes();
        Target {
            address: bits,
            family: if family == Family::V4 as u8 { Family::V4 } else { Family::V6 },
            protocol: Protocol(protocol),
            port: u16::from_be_bytes([port_high, port_low]),
        }
    }
}

/// What is known of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The packet is for this service.
    Service(Matched),
    /// The address is a VIP's, but no service has its protocol and port.
    NoService {
        /// A service on the address says `unmatched: pass`.
        pass: bool,
    },
    /// No VIP has this address.
    NotVip,
}

/// What is known of a VIP's address, whatever protocol and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressInfo {
    /// A service on it says `unmatched: pass`.
    pub unmatched_pass: bool,
    /// A service on it says `fragments: true`.
    pub fragments: bool,
}

/// Protocol and ports of a Vip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ports {
    /// Any protocol, all ports.
    Any,
    /// All ports of a protocol.
    All(Protocol),
    /// Some ports of a protocol, both ends included.
    Range(Protocol, u16, u16),
}

/// The addresses of a Vip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressPattern {
    /// This address.
    Exact(Family, AddressBits),
    /// Addresses under prefixes of a class whose low `bits` are `suffix`.
    Suffix {
        /// Index of the class.
        class: u32,
        /// How many low bits are compared.
        bits: u32,
        /// Their value.
        suffix: AddressBits,
    },
}

/// Prefixes of one length and family in one group: packets to them are looked
/// up by the same suffixes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PrefixClass {
    /// Suffix lengths in use, longest first.
    suffix_bits: Box<[u32]>,
}

/// The index. Built by [`VipsBuilder`].
#[derive(Debug)]
pub struct Vips {
    /// Single ports, but for those whose bucket was full. All are in
    /// `patterns`, too, but here one access finds them.
    ports_v4: PortsV4,
    /// Single ports at exact addresses.
    ports_v6: FlatMap<Matched>,
    patterns: FlatMap<u32>,
    addresses: Box<[Address]>,
    ranges: Box<[Range]>,
    prefixes: FlatMap<u32>,
    /// Prefix lengths in use, longest first; IPv4, IPv6.
    prefix_bits: [Box<[u32]>; 2],
    classes: Box<[PrefixClass]>,
}

/// Everything of one pattern.
#[derive(Debug, Clone, Copy)]
struct Address {
    tcp: PortTable,
    udp: PortTable,
    any: Option<Matched>,
    info: AddressInfo,
}

/// Everything of one pattern for one protocol; ranges sorted and disjoint.
#[derive(Debug, Clone, Copy, Default)]
struct PortTable {
    first: u32,
    count: u32,
    all: Option<Matched>,
}

#[derive(Debug, Clone, Copy)]
struct Range {
    first: u16,
    last: u16,
    matched: Matched,
}

impl Vips {
    /// The service of packets to this target.
    #[inline]
    #[must_use]
    pub fn find(&self, target: &Target) -> Found {
        let port = match SocketV4::of(target) {
            Some(socket) => self.lookup_v4(socket).matched(),
            None => self.lookup_v6(&LookupKey::of(target)),
        };
        port.map_or_else(|| self.lookup_rest(target), |matched| Found::Service(*matched))
    }

    /// The lookup of a single port of IPv4.
    #[inline(always)]
    #[must_use]
    pub fn lookup_v4(&self, socket: SocketV4) -> LookupV4<'_> {
        self.ports_v4.lookup(socket)
    }

    /// The service that has the IPv6 target's port at its exact address.
    #[inline(always)]
    #[must_use]
    pub fn lookup_v6(&self, LookupKey { key, hash }: &LookupKey) -> Option<&Matched> {
        self.ports_v6.get_hashed(*key, *hash)
    }

    /// Where [`Vips::lookup_v6`] begins, for a prefetch: in which slots, at
    /// which index.
    #[inline(always)]
    #[must_use]
    pub fn prefetch_v6(&self, key: &LookupKey) -> (&[impl Sized], usize) {
        self.ports_v6.prefetch(key.hash)
    }

    /// The service of a target that no single port was found for: by every
    /// step.
    #[inline(never)]
    #[must_use]
    pub fn lookup_rest(&self, target: &Target) -> Found {
        let mut known = None;
        let found = self.find_exact(target, &mut known);
        let found = found.or_else(|| self.find_suffix(target, &mut known));
        match (found, known) {
            (Some(matched), _) => Found::Service(matched),
            (None, Some(info)) => Found::NoService { pass: info.unmatched_pass },
            (None, None) => Found::NotVip,
        }
    }

    fn find_exact(&self, target: &Target, known: &mut Option<AddressInfo>) -> Option<Matched> {
        let address = self.at(exact_key(target.family, target.address))?;
        *known = Some(address.info);
        self.at_ports(address, target)
    }

    /// What is known of an address, whatever protocol and port.
    #[must_use]
    pub fn address(&self, family: Family, destination: AddressBits) -> Option<AddressInfo> {
        let mut known: Option<AddressInfo> =
            self.at(exact_key(family, destination)).map(|address| address.info);
        if let Some(class) = self.class(family, destination) {
            for address in self.suffixes(class, destination) {
                merge(&mut known, address.info);
            }
        }
        known
    }

    fn find_suffix(&self, target: &Target, known: &mut Option<AddressInfo>) -> Option<Matched> {
        let class = self.class(target.family, target.address)?;
        for address in self.suffixes(class, target.address) {
            let matched = self.at_ports(address, target);
            if matched.is_some() {
                return matched;
            }
            merge(known, address.info);
        }
        None
    }

    /// The class of the longest prefix that covers the address.
    #[inline]
    fn class(&self, family: Family, destination: AddressBits) -> Option<u32> {
        self.prefix_bits[family as usize]
            .iter()
            .find_map(|bits| self.prefixes.get(prefix_key(family, destination, *bits)))
    }

    /// What the class has for suffixes that the address ends in, longest first.
    fn suffixes(&self, class: u32, destination: AddressBits) -> impl Iterator<Item = &Address> {
        self.classes[class as usize].suffix_bits.iter().filter_map(move |bits| {
            self.at(suffix_key(class, *bits, destination & low_mask(*bits)))
        })
    }

    fn at(&self, key: Key) -> Option<&Address> {
        self.patterns.get(key).map(|index| &self.addresses[index as usize])
    }

    fn at_ports(&self, address: &Address, target: &Target) -> Option<Matched> {
        let table = match target.protocol {
            Protocol::TCP => &address.tcp,
            Protocol::UDP => &address.udp,
            _ => return address.any,
        };
        self.in_ranges(table, target.port).or(table.all).or(address.any)
    }

    fn in_ranges(&self, table: &PortTable, port: u16) -> Option<Matched> {
        let ranges = &self.ranges[table.first as usize..][..table.count as usize];
        let at = ranges.partition_point(|range| range.last < port);
        ranges.get(at).filter(|range| range.first <= port).map(|range| range.matched)
    }
}

fn merge(known: &mut Option<AddressInfo>, info: AddressInfo) {
    let before = known.unwrap_or(AddressInfo { unmatched_pass: false, fragments: false });
    *known = Some(AddressInfo {
        unmatched_pass: before.unmatched_pass || info.unmatched_pass,
        fragments: before.fragments || info.fragments,
    });
}

/// The low `bits` bits.
#[inline]
#[must_use]
pub fn low_mask(bits: u32) -> u128 {
    if bits >= 128 { u128::MAX } else { (1 << bits) - 1 }
}

#[inline]
fn exact_key(family: Family, bits: AddressBits) -> Key {
    Key { bits, scope: family as u64 }
}

#[inline(always)]
fn port_key(target: &Target) -> Key {
    let port = u64::from(target.port) << 16 | u64::from(target.protocol.0) << 8;
    Key { bits: target.address, scope: port | target.family as u64 }
}

/// Scopes 0 and 1 are the families' exact addresses.
#[inline]
fn suffix_key(class: u32, suffix_bits: u32, suffix: u128) -> Key {
    Key { bits: suffix, scope: 2 + u64::from(class) * 129 + u64::from(suffix_bits) }
}

#[inline]
fn prefix_key(family: Family, bits: AddressBits, prefix_bits: u32) -> Key {
    let host = family.address_bits() - prefix_bits;
    Key { bits: bits & !low_mask(host), scope: (family as u64) << 8 | u64::from(prefix_bits) }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const INFO: AddressInfo = AddressInfo { unmatched_pass: false, fragments: false };

    fn ports() -> impl Strategy<Value = Ports> {
        let protocol = || prop::sample::select(vec![Protocol::TCP, Protocol::UDP]);
        prop_oneof![
            8 => (protocol(), 0u16..6).prop_map(|(protocol, port)| Ports::Range(protocol, port, port)),
            1 => (protocol(), 0u16..6, 0u16..6)
                .prop_map(|(protocol, a, b)| Ports::Range(protocol, a.min(b), a.max(b))),
            1 => protocol().prop_map(Ports::All),
            1 => Just(Ports::Any),
        ]
    }

    /// Two classes of one family, prefixes /28 and /24, over few addresses.
    fn pattern(family: Family) -> impl Strategy<Value = AddressPattern> {
        prop_oneof![
            (0u128..512).prop_map(move |address| AddressPattern::Exact(family, address)),
            (0u32..2, 1u32..5, 0u128..16).prop_map(|(class, bits, suffix)| {
                AddressPattern::Suffix { class, bits, suffix: suffix & low_mask(bits) }
            }),
        ]
    }

    fn index(family: Family, wanted: &[(AddressPattern, Ports)]) -> Vips {
        let mut building = VipsBuilder::default();
        let (short, long) = (building.class(), building.class());
        for network in [0, 256] {
            building.prefix(family, network, family.address_bits() - 8, short);
        }
        building.prefix(family, 16, family.address_bits() - 4, long);
        for ((pattern, ports), matched) in wanted.iter().zip(0..) {
            // Conflicts leave the first one, or change nothing of interest.
            let matched = Matched { matched, ..Matched::default() };
            if let Err(Conflict { with }) = building.add(*pattern, *ports, matched, INFO)
                && !matches!(ports, Ports::Range(..))
            {
                building.add(*pattern, *ports, with, INFO).expect_err("it is there twice");
            }
        }
        building.build()
    }

    proptest! {
        #[test]
        fn one_lookup_finds_what_all_steps_find(
            is_v6: bool,
            patterns in vec((pattern(Family::V4), ports()), 0..40),
            targets in vec((0u128..600, 0u16..7, prop::sample::select(vec![6u8, 17, 47])), 40),
        ) {
            let family = if is_v6 { Family::V6 } else { Family::V4 };
            let of_family = |pattern| match pattern {
                AddressPattern::Exact(_, address) => AddressPattern::Exact(family, address),
                suffix => suffix,
            };
            let patterns: Vec<_> =
                patterns.into_iter().map(|(pattern, ports)| (of_family(pattern), ports)).collect();
            let vips = index(family, &patterns);
            for (address, port, protocol) in targets {
                let target = Target { address, family, protocol: Protocol(protocol), port };
                prop_assert_eq!(vips.find(&target), vips.lookup_rest(&target));
            }
        }
    }

    /// Prefixes of these lengths, each a class of its own.
    const LENGTHS: [u32; 6] = [8, 12, 16, 20, 24, 28];

    /// Addresses that have much in common.
    fn address() -> impl Strategy<Value = u128> {
        (0u128..2, 0u128..3, 0u128..3, 0u128..3)
            .prop_map(|(a, b, c, d)| 0xcb00_0000 | a << 20 | b << 16 | c << 8 | d << 3)
    }

    fn pattern_among_prefixes() -> impl Strategy<Value = AddressPattern> {
        let lengths = 0..LENGTHS.len();
        prop_oneof![
            address().prop_map(|address| AddressPattern::Exact(Family::V4, address)),
            (lengths, 0u32..3, address()).prop_map(|(class, shorter, address)| {
                let bits = (32 - LENGTHS[class]).saturating_sub(shorter * 4).max(1);
                AddressPattern::Suffix {
                    class: class as u32,
                    bits,
                    suffix: address & low_mask(bits),
                }
            }),
        ]
    }

    proptest! {
        #[test]
        fn one_lookup_finds_the_same_under_nested_prefixes(
            prefixes in vec((0..LENGTHS.len(), address()), 0..12),
            patterns in vec((pattern_among_prefixes(), ports()), 0..30),
            targets in vec((address(), 0u16..7, prop::sample::select(vec![6u8, 17, 47])), 40),
        ) {
            let mut building = VipsBuilder::default();
            for _ in LENGTHS {
                building.class();
            }
            for (class, address) in prefixes {
                let bits = LENGTHS[class];
                building.prefix(Family::V4, address & !low_mask(32 - bits), bits, class as u32);
            }
            for ((pattern, ports), index) in patterns.into_iter().zip(0..) {
                let matched = Matched { matched: index, ..Matched::default() };
                // Of two that conflict, either will do.
                let _ = building.add(pattern, ports, matched, INFO);
            }
            let vips = building.build();
            for (address, port, protocol) in targets {
                let protocol = Protocol(protocol);
                let target = Target { address, family: Family::V4, protocol, port };
                prop_assert_eq!(vips.find(&target), vips.lookup_rest(&target));
            }
        }
    }
}
