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
//! one in all for a port of its own at an exact address, which most are.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use wire::ip::AddressBits;
use wire::{Family, Protocol, SocketV4, Target};

use crate::flat_map::{FlatMap, Key, WordMap};
use crate::ids::ServiceId;

/// The service a packet is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Matched {
    /// Which service.
    pub service: ServiceId,
    /// Which of the plan's matches: an index for counters and explanations.
    pub matched: u32,
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

impl From<Target> for Whereabouts {
    fn from(target: Target) -> Whereabouts {
        Whereabouts::of(&target)
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
}

/// The index. Built by [`VipsBuilder`].
#[derive(Debug)]
pub struct Vips {
    /// Single ports at exact addresses. They are at `places`, too, but here
    /// one access tells.
    sockets_v4: WordMap<Matched>,
    sockets_v6: FlatMap<Matched>,
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
            Some(socket) => self.find_socket_v4(socket),
            None => self.find_socket_v6(&whereabouts),
        };
        found.map_or_else(|| self.find_further(&whereabouts), Found::Service)
    }

    /// Where [`Vips::find_socket_v4`] looks first: memory to be asked for ahead.
    #[inline(always)]
    #[must_use]
    pub fn first_look_v4(&self, socket: SocketV4) -> (&[impl Sized], usize) {
        self.sockets_v4.first_look(socket.word())
    }

    /// The service that has the port at the exact address.
    #[inline(always)]
    #[must_use]
    pub fn find_socket_v4(&self, socket: SocketV4) -> Option<Matched> {
        self.sockets_v4.get(socket.word())
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
    pub fn find_socket_v6(&self, Whereabouts { key, hash }: &Whereabouts) -> Option<Matched> {
        self.sockets_v6.get_hashed(*key, *hash)
    }

    /// Who wants the packet where no port of its own was found.
    #[inline(never)]
    #[must_use]
    pub fn find_further(&self, whereabouts: &Whereabouts) -> Found {
        let target = &target_of(whereabouts.key);
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
    Key { bits, scope: family as u32 }
}

#[inline(always)]
fn socket_key(target: &Target) -> Key {
    let scope = u32::from(target.port) << 16 | u32::from(target.protocol.0) << 8;
    Key { bits: target.address, scope: scope | target.family as u32 }
}

/// The target that has this key.
fn target_of(Key { bits, scope }: Key) -> Target {
    let [port_high, port_low, protocol, family] = scope.to_be_bytes();
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
    Key { bits: suffix, scope: 2 + class * 129 + suffix_bits }
}

#[inline]
fn prefix_key(family: Family, bits: AddressBits, prefix_bits: u32) -> Key {
    let host = family.address_bits() - prefix_bits;
    Key { bits: bits & !low_mask(host), scope: (family as u32) << 8 | prefix_bits }
}

/// Two Vips that claim the same packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    /// The match that was there first.
    pub with: Matched,
}

/// Collects Vips and prefixes into a [`Vips`].
#[derive(Debug, Default)]
pub struct VipsBuilder {
    places: BTreeMap<Place, BuildingAddress>,
    prefixes: HashMap<Key, u32>,
    prefix_bits: [BTreeSet<u32>; 2],
    classes: Vec<BTreeSet<u32>>,
}

#[derive(Debug, Default)]
struct BuildingAddress {
    any: Option<Matched>,
    all: BTreeMap<Protocol, Matched>,
    /// By protocol and first port.
    ranges: BTreeMap<(Protocol, u16), (u16, Matched)>,
    info: Option<AddressInfo>,
}

impl VipsBuilder {
    /// A new class of prefixes; gives its index.
    pub fn class(&mut self) -> u32 {
        self.classes.push(BTreeSet::new());
        self.classes.len() as u32 - 1
    }

    /// Puts a prefix into a class; false if it is in one already.
    pub fn prefix(
        &mut self,
        family: Family,
        bits: AddressBits,
        prefix_bits: u32,
        class: u32,
    ) -> bool {
        self.prefix_bits[family as usize].insert(prefix_bits);
        self.prefixes.insert(prefix_key(family, bits, prefix_bits), class).is_none()
    }

    /// Adds what a service wants at a place.
    ///
    /// # Errors
    /// If another Vip claims some of the same packets at the same step.
    pub fn add(
        &mut self,
        place: Place,
        ports: Ports,
        matched: Matched,
        info: AddressInfo,
    ) -> Result<(), Conflict> {
        if let Place::Suffix { class, bits, .. } = place {
            self.classes[class as usize].insert(bits);
        }
        let address = self.places.entry(place).or_default();
        merge(&mut address.info, info);
        let taken = match ports {
            Ports::Any => address.any.replace(matched),
            Ports::All(protocol) => address.all.insert(protocol, matched),
            Ports::Range(protocol, first, last) => {
                address.add_range(protocol, first, last, matched)
            }
        };
        taken.map_or(Ok(()), |with| Err(Conflict { with }))
    }

    /// The finished index.
    #[must_use]
    pub fn build(self) -> Vips {
        let mut ranges = Vec::new();
        let addresses: Vec<Address> =
            self.places.values().map(|building| building.build(&mut ranges)).collect();
        let keys: Vec<(Key, u32)> =
            self.places.keys().zip(0..).map(|(place, index)| (place.key(), index)).collect();
        let sockets = || self.places.iter().flat_map(|(place, building)| building.sockets(place));
        let sockets_v4: Vec<(u64, Matched)> = sockets()
            .filter_map(|(target, matched)| Some((SocketV4::of(&target)?.word(), matched)))
            .collect();
        let sockets_v6: Vec<(Key, Matched)> = sockets()
            .filter(|(target, _)| target.family == Family::V6)
            .map(|(target, matched)| (socket_key(&target), matched))
            .collect();
        let descending = |bits: &BTreeSet<u32>| bits.iter().rev().copied().collect();
        Vips {
            sockets_v4: WordMap::new(sockets_v4.into_iter()),
            sockets_v6: FlatMap::new(sockets_v6.into_iter()),
            places: FlatMap::new(keys.into_iter()),
            addresses: addresses.into(),
            ranges: ranges.into(),
            prefixes: FlatMap::new(self.prefixes.into_iter()),
            prefix_bits: self.prefix_bits.map(|bits| descending(&bits)),
            classes: self
                .classes
                .iter()
                .map(|bits| Class { suffix_bits: bits.iter().rev().copied().collect() })
                .collect(),
        }
    }
}

impl Place {
    fn key(&self) -> Key {
        match *self {
            Place::Exact(family, bits) => exact_key(family, bits),
            Place::Suffix { class, bits, suffix } => suffix_key(class, bits, suffix),
        }
    }
}

impl BuildingAddress {
    /// Adds a range; gives one that it overlaps, if any.
    fn add_range(
        &mut self,
        protocol: Protocol,
        first: u16,
        last: u16,
        matched: Matched,
    ) -> Option<Matched> {
        let below = self.ranges.range((protocol, 0)..=(protocol, last)).next_back();
        if let Some((_, (other_last, other))) = below
            && *other_last >= first
        {
            return Some(*other);
        }
        self.ranges.insert((protocol, first), (last, matched));
        None
    }

    /// The ranges of one port, if this is an exact address.
    fn sockets(&self, place: &Place) -> impl Iterator<Item = (Target, Matched)> {
        let exact = match *place {
            Place::Exact(family, address) => Some((family, address)),
            Place::Suffix { .. } => None,
        };
        self.ranges.iter().filter_map(move |((protocol, port), (last, matched))| {
            let (family, address) = exact.filter(|_| port == last)?;
            Some((Target { family, address, protocol: *protocol, port: *port }, *matched))
        })
    }

    fn build(&self, ranges: &mut Vec<Range>) -> Address {
        let mut table = |protocol: Protocol| {
            let first = ranges.len() as u32;
            let mine = self.ranges.range((protocol, 0)..=(protocol, u16::MAX));
            ranges.extend(mine.map(|((_, first), (last, matched))| Range {
                first: *first,
                last: *last,
                matched: *matched,
            }));
            PortTable {
                first,
                count: ranges.len() as u32 - first,
                all: self.all.get(&protocol).copied(),
            }
        };
        Address {
            tcp: table(Protocol::TCP),
            udp: table(Protocol::UDP),
            any: self.any,
            info: self.info.expect("every place was added with its info"),
        }
    }
}
