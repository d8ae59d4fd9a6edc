//! Single ports of IPv4 VIPs, at addresses and at suffixes: one lookup finds nearly all of
//! them, however many prefixes have the suffix.
//!
//! ```text
//!  address ─► its /24 ─► which bits are looked up: all, or the suffix of a class
//!                                              └─► with protocol and port: the service
//! ```
//!
//! A suffix is looked up only if no VIP has an address of its own there. A packet that is not
//! found may still be for a VIP: see [`crate::Vips::lookup_rest`].

use std::collections::BTreeMap;

use wire::ip::AddressBits;
use wire::{Family, Protocol, SocketV4, Target};

use super::flat_map::{Bucket, WordMap};
use super::{Matched, low_mask};

/// The index. Built by [`PortsV4Builder`].
#[derive(Debug)]
pub(super) struct PortsV4 {
    /// By the upper 16 bits of the address: which block.
    blocks_by_upper: Box<[u16; 1 << 16]>,
    /// By the next 8 bits: which rule. Blocks are behind each other.
    blocks: Box<[u8]>,
    rules: [MaskRule; RULES_MAX],
    matches: WordMap<Matched>,
}

/// For each /24 of a /16, the index of its rule in [`PortsV4::rules`].
type Block = [u8; 256];

/// Which bits of a socket's word are looked up, and the bits that are set in
/// place of the others.
#[derive(Debug, Clone, Copy)]
struct MaskRule {
    mask: u64,
    mark: u64,
}

/// The lookup of a packet's single port: its key and its bucket.
#[derive(Debug, Clone, Copy)]
pub struct LookupV4<'p> {
    key: u64,
    bucket: &'p Bucket<Matched>,
}

/// The rule for whole addresses.
const WHOLE: u8 = 0;

/// One for each value of the byte that holds the family in a socket's word,
/// which is a class's mark: 4 is the family's, so fewer are used. Classes
/// beyond are found by [`crate::Vips::lookup_rest`].
const RULES_MAX: usize = 256;
const MARK_SHIFT: u32 = 24;
const PROTOCOL_AND_PORT: u64 = 0x00ff_ffff;
const FIRST_MARK: usize = 5;

impl PortsV4 {
    /// The lookup of a socket.
    #[inline(always)]
    pub(super) fn lookup(&self, socket: SocketV4) -> LookupV4<'_> {
        let word = socket.word();
        let block = usize::from(self.blocks_by_upper[(word >> 48) as usize]);
        let third = (word >> 40) as usize & 0xff;
        let MaskRule { mask, mark } = self.rules[usize::from(self.blocks[block << 8 | third])];
        let key = word & mask | mark;
        LookupV4 { key, bucket: self.matches.bucket(key) }
    }
}

impl<'p> LookupV4<'p> {
    /// Memory to prefetch.
    #[inline(always)]
    #[must_use]
    pub fn bucket(&self) -> &'p impl Sized {
        self.bucket
    }

    /// The service that has the port. None: see [`crate::Vips::lookup_rest`].
    #[inline(always)]
    #[must_use]
    pub fn matched(&self) -> Option<&'p Matched> {
        self.bucket.get(self.key)
    }
}

/// A single port at a suffix: of addresses under the prefixes of a class.
#[derive(Debug, Clone, Copy)]
pub(super) struct SuffixKey {
    pub class: u32,
    pub bits: u32,
    pub suffix: AddressBits,
    pub protocol: Protocol,
    pub port: u16,
}

/// Collects what a [`PortsV4`] is to know.
#[derive(Debug, Default)]
pub(super) struct PortsV4Builder {
    /// By length and network: the class.
    prefixes: BTreeMap<(u32, u32), u32>,
    /// By class of IPv4, if it has any: the length of its longest suffixes.
    suffix_bits: BTreeMap<u32, u32>,
    addresses: Vec<u32>,
    ports: Vec<(SocketV4, Matched)>,
    at_suffixes: Vec<(SuffixKey, Matched)>,
}

impl PortsV4Builder {
    /// A prefix, its class, and the length of the longest suffixes there.
    pub(super) fn prefix(&mut self, network: u32, bits: u32, class: u32, longest: Option<u32>) {
        self.prefixes.insert((bits, network), class);
        self.suffix_bits.extend(longest.map(|longest| (class, longest)));
    }

    /// A VIP has this address.
    pub(super) fn address(&mut self, address: u32) {
        self.addresses.push(address);
    }

    /// A single port at an address.
    pub(super) fn port(&mut self, socket: SocketV4, matched: Matched) {
        self.ports.push((socket, matched));
    }

    /// A single port at a suffix of either family: those of IPv6 are left out.
    pub(super) fn port_at_suffix(&mut self, key: SuffixKey, matched: Matched) {
        self.at_suffixes.push((key, matched));
    }

    /// The finished index.
    pub(super) fn build(self) -> PortsV4 {
        let (rules, marks) = self.rules();
        let mut entries: Vec<(u64, Matched)> =
            self.ports.iter().map(|(socket, matched)| (socket.word(), *matched)).collect();
        for (SuffixKey { class, bits, suffix, protocol, port }, matched) in &self.at_suffixes {
            let target =
                Target { address: *suffix, family: Family::V4, protocol: *protocol, port: *port };
            // Shorter suffixes come after longer ones: those are not looked up.
            if let Some(socket) = SocketV4::of(&target)
                && let Some(mark) = marks.get(class)
                && self.suffix_bits[class] == *bits
            {
                let MaskRule { mask, mark } = rules[usize::from(*mark)];
                entries.push((socket.word() & mask | mark, *matched));
            }
        }
        let (blocks_by_upper, blocks) = self.blocks(&marks);
        PortsV4 { blocks_by_upper, blocks, rules, matches: WordMap::new(&entries) }
    }

    /// All rules, and which one a class has.
    fn rules(&self) -> ([MaskRule; RULES_MAX], BTreeMap<u32, u8>) {
        let mut rules = [MaskRule { mask: u64::MAX, mark: 0 }; RULES_MAX];
        let marks = self
            .suffix_bits
            .iter()
            .zip(FIRST_MARK..RULES_MAX)
            .map(|((class, bits), mark)| {
                let mask = (low_mask(*bits) as u64) << 32 | PROTOCOL_AND_PORT;
                rules[mark] = MaskRule { mask, mark: (mark as u64) << MARK_SHIFT };
                (*class, mark as u8)
            })
            .collect();
        (rules, marks)
    }

    /// Which rule each /24 has.
    fn blocks(&self, marks: &BTreeMap<u32, u8>) -> (Box<[u16; 1 << 16]>, Box<[u8]>) {
        // Shorter prefixes come first, so that longer ones replace them.
        let mut marks_by_upper = vec![WHOLE; 1 << 16];
        let mut mixed: BTreeMap<usize, Block> = BTreeMap::new();
        for ((bits, network), class) in &self.prefixes {
            let mark = marks.get(class).copied().unwrap_or(WHOLE);
            let (upper, third) = (*network as usize >> 16, *network as usize >> 8 & 0xff);
            match bits {
                0..=16 => marks_by_upper[upper..][..1 << (16 - bits)].fill(mark),
                17..=24 => {
                    let block = mixed.entry(upper).or_insert([marks_by_upper[upper]; 256]);
                    block[third..][..1 << (24 - bits)].fill(mark);
                }
                _ => mixed.entry(upper).or_insert([marks_by_upper[upper]; 256])[third] = WHOLE,
            }
        }
        for address in &self.addresses {
            let (upper, third) = (*address as usize >> 16, *address as usize >> 8 & 0xff);
            mixed.entry(upper).or_insert([marks_by_upper[upper]; 256])[third] = WHOLE;
        }
        let mut blocks = Vec::new();
        let mut number_of = |block| {
            blocks.push(block);
            // Were all /16s mixed, there would not be enough numbers: the
            // last ones are then found by all steps.
            u16::try_from(blocks.len() - 1).unwrap_or(0)
        };
        let mut numbers = [None; RULES_MAX];
        let mut uniform =
            |mark: u8| *numbers[usize::from(mark)].get_or_insert_with(|| number_of([mark; 256]));
        uniform(WHOLE);
        let mut by_upper: Vec<u16> = marks_by_upper.iter().map(|mark| uniform(*mark)).collect();
        for (upper, block) in mixed {
            by_upper[upper] = number_of(block);
        }
        let by_upper = by_upper.into_boxed_slice().try_into().expect("one for each");
        (by_upper, blocks.into_flattened().into())
    }
}
