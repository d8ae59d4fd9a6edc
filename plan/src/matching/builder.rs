//! Vips and prefixes on their way to an index.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use wire::ip::AddressBits;
use wire::{Family, Protocol, SocketV4, Target};

use super::flat_map::{FlatMap, Key};
use super::ports_v4::{SocketsV4Builder, Under};
use super::{
    Address, AddressInfo, Class, Matched, Place, PortTable, Ports, Range, Vips, exact_key, merge,
    prefix_key, socket_key, suffix_key, suffix_socket_key,
};

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
        let mut sockets = Sockets::default();
        let mut classes: Vec<Class> = self
            .classes
            .iter()
            .map(|bits| Class { suffix_bits: descending(bits), is_wide: false })
            .collect();
        let mut is_wide = false;
        for (Key { bits, scope }, class) in &self.prefixes {
            if scope >> 8 == Family::V4 as u64 {
                let longest = self.classes[*class as usize].last().copied();
                sockets.v4.prefix(*bits as u32, (scope & 0xff) as u32, *class, longest);
            }
        }
        for (place, building) in &self.places {
            sockets.add(place, building);
            match place {
                Place::Exact(..) => is_wide |= building.is_wide(),
                Place::Suffix { class, .. } => {
                    classes[*class as usize].is_wide |= building.is_wide()
                }
            }
        }
        Vips {
            sockets_v4: sockets.v4.build(),
            sockets_v6: FlatMap::new(&sockets.v6),
            suffix_sockets: FlatMap::new(&sockets.at_suffixes),
            is_wide,
            places: FlatMap::new(&keys),
            addresses: addresses.into(),
            ranges: ranges.into(),
            prefixes: FlatMap::new(&self.prefixes.into_iter().collect::<Vec<_>>()),
            prefix_bits: self.prefix_bits.map(|bits| descending(&bits).into()),
            classes: classes.into(),
        }
    }
}

/// Longest first.
fn descending(bits: &BTreeSet<u32>) -> Vec<u32> {
    bits.iter().rev().copied().collect()
}

/// Single ports, by how they are looked up.
#[derive(Default)]
struct Sockets {
    v4: SocketsV4Builder,
    v6: Vec<(Key, Matched)>,
    at_suffixes: Vec<(Key, Matched)>,
}

impl Sockets {
    fn add(&mut self, place: &Place, building: &BuildingAddress) {
        if let Place::Exact(Family::V4, address) = *place {
            self.v4.address(address as u32);
        }
        for (protocol, port, matched) in building.single_ports() {
            match *place {
                Place::Exact(family, address) => {
                    let target = Target { address, family, protocol, port };
                    match SocketV4::of(&target) {
                        Some(socket) => self.v4.socket(socket, matched),
                        None => self.v6.push((socket_key(&target), matched)),
                    }
                }
                Place::Suffix { class, bits, suffix: address } => {
                    // Its class knows the family.
                    let target = Target { address, family: Family::V4, protocol, port };
                    self.at_suffixes.push((suffix_socket_key(class, bits, &target), matched));
                    if let Some(socket) = SocketV4::of(&target) {
                        self.v4.socket_at_suffix(Under { class, bits }, socket, matched);
                    }
                }
            }
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

    /// The ranges of one port.
    fn single_ports(&self) -> impl Iterator<Item = (Protocol, u16, Matched)> {
        let single = self.ranges.iter().filter(|((_, first), (last, _))| first == last);
        single.map(|((protocol, port), (_, matched))| (*protocol, *port, *matched))
    }

    /// True if there are others than single ports.
    fn is_wide(&self) -> bool {
        let all_single = self.single_ports().count() == self.ranges.len();
        self.any.is_some() || !self.all.is_empty() || !all_single
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
