//! Single ports of IPv4 VIPs, at addresses and at suffixes: one lookup tells
//! for nearly all packets, however many prefixes have the suffix.
//!
//! ```text
//!  address ─► its /24 ─► what counts there: all of it, or the suffix of a class
//!                                              └─► with protocol and port: the service
//! ```
//!
//! A suffix counts where no VIP has an address of its own. What is not found
//! may still be a VIP's: see [`crate::Vips`].

use std::collections::BTreeMap;

use wire::SocketV4;

use super::flat_map::{Bucket, WordMap};
use super::{Matched, low_mask};

/// The index. Built by [`SocketsV4Builder`].
#[derive(Debug)]
pub(crate) struct SocketsV4 {
    /// By the upper 16 bits of the address: which block.
    blocks_by_upper: Box<[u16; 1 << 16]>,
    /// By the next 8 bits: which sight. Blocks are behind each other.
    blocks: Box<[u8]>,
    sights: [Sight; SIGHTS_MAX],
    matches: WordMap<Matched>,
}

/// What counts of the addresses of each /24 of a /16, by its place in
/// [`SocketsV4::sights`].
type Block = [u8; 256];

/// What counts of an address: the bits kept of a socket's word, and those set.
#[derive(Debug, Clone, Copy)]
struct Sight {
    mask: u64,
    mark: u64,
}

/// Where a packet's single port is looked up, and by what.
#[derive(Debug, Clone, Copy)]
pub struct LookV4<'p> {
    key: u64,
    bucket: &'p Bucket<Matched>,
}

/// The whole address counts.
const WHOLE: u8 = 0;

/// One for each value of the byte that holds the family in a socket's word,
/// where it marks the class: 4 is the family's, so fewer are used. Classes
/// beyond are found the longer way.
const SIGHTS_MAX: usize = 256;
const MARK_SHIFT: u32 = 24;
const PROTOCOL_AND_PORT: u64 = 0x00ff_ffff;
const FIRST_MARK: usize = 5;

impl SocketsV4 {
    /// Where a socket is looked up.
    #[inline(always)]
    pub(crate) fn look(&self, socket: SocketV4) -> LookV4<'_> {
        let word = socket.word();
        let block = usize::from(self.blocks_by_upper[(word >> 48) as usize]);
        let third = (word >> 40) as usize & 0xff;
        let Sight { mask, mark } = self.sights[usize::from(self.blocks[block << 8 | third])];
        let key = word & mask | mark;
        LookV4 { key, bucket: self.matches.bucket(key) }
    }

    /// Who has the port where [`LookV4::found`] knows nobody. None: nobody
    /// has it alone, or not by what counts.
    pub(crate) fn find_behind(&self, look: LookV4<'_>) -> Option<&Matched> {
        self.matches.get_behind(look.key)
    }
}

impl<'p> LookV4<'p> {
    /// Memory to be asked for ahead.
    #[inline(always)]
    #[must_use]
    pub fn place(&self) -> &'p impl Sized {
        self.bucket
    }

    /// Who has the port. None: [`crate::Vips::find_further`] tells.
    #[inline(always)]
    #[must_use]
    pub fn found(&self) -> Option<&'p Matched> {
        self.bucket.get(self.key)
    }
}

/// A suffix's place: the low bits of addresses under the prefixes of a class.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Under {
    pub class: u32,
    pub bits: u32,
}

/// Collects what a [`SocketsV4`] is to know.
#[derive(Debug, Default)]
pub(crate) struct SocketsV4Builder {
    /// By length and network: the class.
    prefixes: BTreeMap<(u32, u32), u32>,
    /// By class, if it has any: the length of its longest suffixes.
    suffix_bits: BTreeMap<u32, u32>,
    addresses: Vec<u32>,
    sockets: Vec<(SocketV4, Matched)>,
    at_suffixes: Vec<(Under, SocketV4, Matched)>,
}

impl SocketsV4Builder {
    /// A prefix, its class, and the length of the longest suffixes there.
    pub(crate) fn prefix(&mut self, network: u32, bits: u32, class: u32, longest: Option<u32>) {
        self.prefixes.insert((bits, network), class);
        self.suffix_bits.extend(longest.map(|longest| (class, longest)));
    }

    /// A VIP has this address.
    pub(crate) fn address(&mut self, address: u32) {
        self.addresses.push(address);
    }

    /// A single port at an address.
    pub(crate) fn socket(&mut self, socket: SocketV4, matched: Matched) {
        self.sockets.push((socket, matched));
    }

    /// A single port at a suffix, which is the socket's address.
    pub(crate) fn socket_at_suffix(&mut self, under: Under, socket: SocketV4, matched: Matched) {
        self.at_suffixes.push((under, socket, matched));
    }

    /// The finished index.
    pub(crate) fn build(self) -> SocketsV4 {
        let (sights, marks) = self.sights();
        let mut entries: Vec<(u64, Matched)> =
            self.sockets.iter().map(|(socket, matched)| (socket.word(), *matched)).collect();
        for (Under { class, bits }, socket, matched) in &self.at_suffixes {
            // Shorter suffixes come after longer ones: those are not looked up.
            if let Some(mark) = marks.get(class)
                && self.suffix_bits[class] == *bits
            {
                let Sight { mask, mark } = sights[usize::from(*mark)];
                entries.push((socket.word() & mask | mark, *matched));
            }
        }
        let (blocks_by_upper, blocks) = self.blocks(&marks);
        SocketsV4 { blocks_by_upper, blocks, sights, matches: WordMap::new(&entries) }
    }

    /// All sights, and which one a class has.
    fn sights(&self) -> ([Sight; SIGHTS_MAX], BTreeMap<u32, u8>) {
        let mut sights = [Sight { mask: u64::MAX, mark: 0 }; SIGHTS_MAX];
        let marks = self
            .suffix_bits
            .iter()
            .zip(FIRST_MARK..SIGHTS_MAX)
            .map(|((class, bits), mark)| {
                let mask = (low_mask(*bits) as u64) << 32 | PROTOCOL_AND_PORT;
                sights[mark] = Sight { mask, mark: (mark as u64) << MARK_SHIFT };
                (*class, mark as u8)
            })
            .collect();
        (sights, marks)
    }

    /// Which sight each /24 has.
    fn blocks(&self, marks: &BTreeMap<u32, u8>) -> (Box<[u16; 1 << 16]>, Box<[u8]>) {
        // Shorter prefixes come first, so that longer ones have the last word.
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
            // last ones then go the longer way.
            u16::try_from(blocks.len() - 1).unwrap_or(0)
        };
        let mut numbers = [None; SIGHTS_MAX];
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
