//! Which service a packet is for (paper 4.2).
//!
//! ```text
//!  exact address ─► class of the longest prefix: suffixes, longest first
//!       │                 │
//!       └─ at each step:  (protocol, port) ─► (protocol, all ports) ─► (any)
//! ```
//!
//! The first that exists wins; where a step has none the next is tried, but
//! never a shorter prefix than the longest that fits. One hash lookup a step;
//! one in all for a port of its own at an exact address, which most are, and
//! one for each length of prefixes and suffixes for a port of its own at a
//! suffix.

mod builder;
mod flat_map;
mod ports_v4;

use wire::ip::AddressBits;
use wire::{Family, Protocol, SocketV4, Target};

pub use builder::{Conflict, VipsBuilder};
use flat_map::{FlatMap, Key};
pub use ports_v4::LookV4;
use ports_v4::SocketsV4;

use crate::ids::ServiceId;

/// The service a packet is for, with all that most of its packets need: a
/// service in itself is another line of the cache. Of one plan only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Matched {
    /// Which service.
    pub service: ServiceId,
    /// Where the plan lists that service.
    pub listed: u16,
    /// Which of the plan's styles it has: the same for services of the same
    /// `encap` and `dscp`.
    pub style: u16,
    /// Which of the plan's matches: an index for counters and explanations.
    pub matched: u32,
    /// As [`crate::Service`] has it.
    pub first_member: u32,
    /// Which of the plan's groups is the service's.
    pub group: u32,
    /// Nothing else counts where its members are counted, no other match of the
    /// service and no other service: it is what is counted for the match.
    pub alone: bool,
}

/// A target as the index looks it up, hashed once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whereabouts {
    key: Key,
    hash: u64,
}

impl Whereabouts {
    /// Those of a target, in every index.
    #[inline(always)]
    #[must_use]
    pub fn of(target: &Target) -> Whereabouts {
        let key = socket_key(target);
        Whereabouts { key, hash: key.hash() }
    }

    /// For tables of targets. Nobody outside chooses targets that exist, and
    /// others may collide.
    #[inline]
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

/// What is known of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A service wants the packet.
    Service(Matched),
    /// The address is a VIP's, but no service wants the packet.
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

/// Where a Vip is: an exact address or a class and suffix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// This address.
    Exact(Family, AddressBits),
    /// Addresses of a class whose low `bits` are `suffix`.
    Suffix {
        /// Index of the class.
        class: u32,
        /// How many low bits are compared.
        bits: u32,
        /// Their value.
        suffix: AddressBits,
    },
}

/// Prefixes of one length and family in one group: packets to them look at
/// the same suffixes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// Suffix lengths in use, longest first.
    suffix_bits: Vec<u32>,
    /// At some of its suffixes there are more than single ports.
    is_wide: bool,
}

/// The index. Built by [`VipsBuilder`].
#[derive(Debug)]
pub struct Vips {
    /// Single ports. They are at `places`, too, but here one access tells.
    sockets_v4: SocketsV4,
    /// At exact addresses.
    sockets_v6: FlatMap<Matched>,
    /// At suffixes, of either family.
    suffix_sockets: FlatMap<Matched>,
    /// At some exact addresses there are more than single ports.
    is_wide: bool,
    places: FlatMap<u32>,
    addresses: Box<[Address]>,
    ranges: Box<[Range]>,
    prefixes: FlatMap<u32>,
    /// Prefix lengths in use, longest first; IPv4, IPv6.
    prefix_bits: [Box<[u32]>; 2],
    classes: Box<[Class]>,
}

/// Everything at one place.
#[derive(Debug, Clone, Copy)]
struct Address {
    tcp: PortTable,
    udp: PortTable,
    any: Option<Matched>,
    info: AddressInfo,
}

/// Everything at one place for one protocol; ranges sorted and disjoint.
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
    /// Who wants a packet to this target.
    #[inline]
    #[must_use]
    pub fn find(&self, target: &Target) -> Found {
        let whereabouts = Whereabouts::of(target);
        let found = match SocketV4::of(target) {
            Some(socket) => {
                let look = self.look_v4(socket);
                look.found().or_else(|| self.find_behind_v4(look))
            }
            None => self.find_socket_v6(&whereabouts),
        };
        found.map_or_else(|| self.find_further(&whereabouts), |found| Found::Service(*found))
    }

    /// Where a single port is looked up.
    #[inline(always)]
    #[must_use]
    pub fn look_v4(&self, socket: SocketV4) -> LookV4<'_> {
        self.sockets_v4.look(socket)
    }

    /// The service that has the single port where [`LookV4::found`] knows
    /// none: few are there.
    #[must_use]
    pub fn find_behind_v4(&self, look: LookV4<'_>) -> Option<&Matched> {
        self.sockets_v4.find_behind(look)
    }

    /// Where [`Vips::find_socket_v6`] looks first: memory to be asked for ahead.
    #[inline(always)]
    #[must_use]
    pub fn first_look_v6(&self, whereabouts: &Whereabouts) -> (&[impl Sized], usize) {
        self.sockets_v6.first_look(whereabouts.hash)
    }

    /// The service that has the IPv6 target's port at its exact address.
    #[inline(always)]
    #[must_use]
    pub fn find_socket_v6(&self, Whereabouts { key, hash }: &Whereabouts) -> Option<&Matched> {
        self.sockets_v6.get_hashed(*key, *hash)
    }

    /// Who wants the packet where no port of its own was found.
    #[inline(never)]
    #[must_use]
    pub fn find_further(&self, whereabouts: &Whereabouts) -> Found {
        let target = &target_of(whereabouts.key);
        self.find_suffix_socket(target)
            .map_or_else(|| self.find_by_steps(target), |matched| Found::Service(*matched))
    }

    /// The service that has the target's port at a suffix, if it has none at
    /// its address and nothing but the class of its prefix need be known.
    fn find_suffix_socket(&self, target: &Target) -> Option<&Matched> {
        if self.is_wide && self.at(exact_key(target.family, target.address)).is_some() {
            return None;
        }
        let class = self.class(target.family, target.address)?;
        let Class { suffix_bits, is_wide } = &self.classes[class as usize];
        // Where others than single ports may come first, only the longest
        // suffix is sure.
        let sure = if *is_wide { 1 } else { suffix_bits.len() };
        suffix_bits.iter().take(sure).find_map(|bits| {
            let key = suffix_socket_key(class, *bits, target);
            self.suffix_sockets.get_hashed(key, key.hash())
        })
    }

    /// Who wants the packet, by every step.
    fn find_by_steps(&self, target: &Target) -> Found {
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

    /// What stands at the class's suffixes that the address ends in, longest
    /// first.
    fn suffixes(&self, class: u32, destination: AddressBits) -> impl Iterator<Item = &Address> {
        self.classes[class as usize].suffix_bits.iter().filter_map(move |bits| {
            self.at(suffix_key(class, *bits, destination & low_mask(*bits)))
        })
    }

    fn at(&self, key: Key) -> Option<&Address> {
        self.places.get(key).map(|index| &self.addresses[index as usize])
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
fn socket_key(target: &Target) -> Key {
    Key { bits: target.address, scope: socket_scope(target) | target.family as u64 }
}

#[inline(always)]
fn socket_scope(target: &Target) -> u64 {
    u64::from(target.port) << 16 | u64::from(target.protocol.0) << 8
}

#[inline]
fn suffix_socket_key(class: u32, suffix_bits: u32, target: &Target) -> Key {
    let place = u64::from(class) << 40 | u64::from(suffix_bits) << 32;
    Key { bits: target.address & low_mask(suffix_bits), scope: place | socket_scope(target) }
}

/// The target that has this key.
fn target_of(Key { bits, scope }: Key) -> Target {
    let [.., port_high, port_low, protocol, family] = scope.to_be_bytes();
    Target {
        address: bits,
        family: if family == Family::V4 as u8 { Family::V4 } else { Family::V6 },
        protocol: Protocol(protocol),
        port: u16::from_be_bytes([port_high, port_low]),
    }
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
    fn place(family: Family) -> impl Strategy<Value = Place> {
        prop_oneof![
            (0u128..512).prop_map(move |address| Place::Exact(family, address)),
            (0u32..2, 1u32..5, 0u128..16).prop_map(|(class, bits, suffix)| Place::Suffix {
                class,
                bits,
                suffix: suffix & low_mask(bits),
            }),
        ]
    }

    fn index(family: Family, wanted: &[(Place, Ports)]) -> Vips {
        let mut building = VipsBuilder::default();
        let (short, long) = (building.class(), building.class());
        for network in [0, 256] {
            building.prefix(family, network, family.address_bits() - 8, short);
        }
        building.prefix(family, 16, family.address_bits() - 4, long);
        for ((place, ports), matched) in wanted.iter().zip(0..) {
            // Conflicts leave the first one, or change nothing of interest.
            let matched = Matched { matched, ..Matched::default() };
            if let Err(Conflict { with }) = building.add(*place, *ports, matched, INFO)
                && !matches!(ports, Ports::Range(..))
            {
                building.add(*place, *ports, with, INFO).expect_err("it is there twice");
            }
        }
        building.build()
    }

    proptest! {
        #[test]
        fn the_quick_ways_find_what_all_steps_find(
            is_v6: bool,
            places in vec((place(Family::V4), ports()), 0..40),
            targets in vec((0u128..600, 0u16..7, prop::sample::select(vec![6u8, 17, 47])), 40),
        ) {
            let family = if is_v6 { Family::V6 } else { Family::V4 };
            let of_family = |place| match place {
                Place::Exact(_, address) => Place::Exact(family, address),
                suffix => suffix,
            };
            let places: Vec<_> =
                places.into_iter().map(|(place, ports)| (of_family(place), ports)).collect();
            let vips = index(family, &places);
            for (address, port, protocol) in targets {
                let target = Target { address, family, protocol: Protocol(protocol), port };
                prop_assert_eq!(vips.find(&target), vips.find_by_steps(&target));
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

    fn place_among_prefixes() -> impl Strategy<Value = Place> {
        let lengths = 0..LENGTHS.len();
        prop_oneof![
            address().prop_map(|address| Place::Exact(Family::V4, address)),
            (lengths, 0u32..3, address()).prop_map(|(class, shorter, address)| {
                let bits = (32 - LENGTHS[class]).saturating_sub(shorter * 4).max(1);
                Place::Suffix { class: class as u32, bits, suffix: address & low_mask(bits) }
            }),
        ]
    }

    proptest! {
        #[test]
        fn under_nested_prefixes_too(
            prefixes in vec((0..LENGTHS.len(), address()), 0..12),
            places in vec((place_among_prefixes(), ports()), 0..30),
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
            for ((place, ports), index) in places.into_iter().zip(0..) {
                let matched = Matched { matched: index, ..Matched::default() };
                // Of two that conflict, either will do.
                let _ = building.add(place, ports, matched, INFO);
            }
            let vips = building.build();
            for (address, port, protocol) in targets {
                let protocol = Protocol(protocol);
                let target = Target { address, family: Family::V4, protocol, port };
                prop_assert_eq!(vips.find(&target), vips.find_by_steps(&target));
            }
        }
    }
}
