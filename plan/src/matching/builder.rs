//! Collects VIPs and prefixes for an index.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use wire::ip::AddressBits;
use wire::{Family, Protocol, SocketV4, Target};

use super::flat_map::{FlatMap, Key};
use super::ports_v4::{PortsV4Builder, SuffixKey};
use super::{
    Address, AddressInfo, AddressPattern, Matched, PortTable, Ports, PrefixClass, Range, Vips,
    exact_key, merge, port_key, prefix_key, suffix_key,
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
    patterns: BTreeMap<AddressPattern, BuildingAddress>,
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

    /// Adds what a service has of a pattern.
    ///
    /// # Errors
    /// If another Vip claims some of the same packets at the same step.
    pub fn add(
        &mut self,
        pattern: AddressPattern,
        ports: Ports,
        matched: Matched,
        info: AddressInfo,
    ) -> Result<(), Conflict> {
        if let AddressPattern::Suffix { class, bits, .. } = pattern {
            self.classes[class as usize].insert(bits);
        }
        let address = self.patterns.entry(pattern).or_default();
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
            self.patterns.values().map(|building| building.build(&mut ranges)).collect();
        let keys: Vec<(Key, u32)> =
            self.patterns.keys().zip(0..).map(|(pattern, index)| (pattern.key(), index)).collect();
        let (mut ports_v4, mut ports_v6) = (PortsV4Builder::default(), Vec::new());
        for (Key { bits, scope }, class) in &self.prefixes {
            if scope >> 8 == Family::V4 as u64 {
                let longest = self.classes[*class as usize].last().copied();
                ports_v4.prefix(*bits as u32, (scope & 0xff) as u32, *class, longest);
            }
        }
        for (pattern, building) in &self.patterns {
            match *pattern {
                AddressPattern::Exact(family, address) => {
                    if family == Family::V4 {
                        ports_v4.address(address as u32);
                    }
                    for (protocol, port, matched) in building.single_ports() {
                        let target = Target { address, family, protocol, port };
                        match SocketV4::of(&target) {
                            Some(socket) => ports_v4.port(socket, matched),
                            None => ports_v6.push((port_key(&target), matched)),
                        }
                    }
                }
                AddressPattern::Suffix { class, bits, suffix } => {
                    for (protocol, port, matched) in building.single_ports() {
                        ports_v4.port_at_suffix(
                            SuffixKey { class, bits, suffix, protocol, port },
                            matched,
                        );
                    }
                }
            }
        }
        let class = |bits: &BTreeSet<u32>| PrefixClass { suffix_bits: descending(bits) };
        Vips {
            ports_v4: ports_v4.build(),
            ports_v6: FlatMap::new(&ports_v6),
            patterns: FlatMap::new(&keys),
            addresses: addresses.into(),
            ranges: ranges.into(),
            classes: self.classes.iter().map(class).collect(),
            prefixes: FlatMap::new(&self.prefixes.into_iter().collect::<Vec<_>>()),
            prefix_bits: self.prefix_bits.map(|bits| descending(&bits)),
        }
    }
}

/// Longest first.
fn descending(bits: &BTreeSet<u32>) -> Box<[u32]> {
    bits.iter().rev().copied().collect()
}

impl AddressPattern {
    fn key(&self) -> Key {
        match *self {
            AddressPattern::Exact(family, bits) => exact_key(family, bits),
            AddressPattern::Suffix { class, bits, suffix } => suffix_key(class, bits, suffix),
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
            info: self.info.expect("every pattern was added with its info"),
        }
    }
}
