//! The fragment table (paper 4.3): where a datagram's first fragment went, so that the later
//! ones follow; and a buffer for fragments that arrive before it.
//!
//! Table and buffer are limited in size, in time, and in the work for one packet. The buffer is
//! shared out by destination and source, so that a flood of fragments without a first one gets
//! only the room that others leave. Only the slow path uses it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use plan::BackendId;
use wire::ip::AddressBits;
use wire::{Family, FlowKey, Fragment, Frame, Headers, Protocol, Target, ethernet, ipv4};

use crate::clock::Now;
use crate::flow_hash::FlowHash;
use crate::packet::Arrived;
use crate::recursion_limit::RecursionLimit;

/// Datagrams remembered: each about 100 bytes, so 1.6 MB. More: the oldest
/// is forgotten.
pub const DATAGRAMS_MAX: usize = 16_384;
/// How long a first fragment is remembered. Hosts give a datagram up after
/// 30 or 60 seconds; what comes that late is lost anyway.
pub const REMEMBERED_MS: u64 = 10_000;
/// Frames held: 2 KiB each, so 4 MiB. More: the oldest of the largest share
/// is dropped.
pub const HELD_MAX: usize = 2_048;
/// Frames held of one datagram, all of which its first fragment sends on: one
/// of 64 KiB has 45 fragments of 1,500 bytes, or 54 of 1,280. More: dropped.
pub const HELD_OF_DATAGRAM_MAX: usize = 64;
/// How long a fragment waits for its first one.
pub const HELD_MS: u64 = 1_000;

/// Shares of the buffer by destination, and within each by source: two
/// destinations (sources) have the same one by chance, which cannot be aimed at
/// from outside.
const DESTINATIONS: usize = 256;
const SOURCES: usize = 64;

/// What all fragments of a datagram have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DatagramKey {
    family: Family,
    /// None for IPv6, whose first fragment may name another header than the
    /// later ones do; its identification is by addresses alone.
    protocol: Option<Protocol>,
    source: AddressBits,
    destination: AddressBits,
    id: u32,
}

impl DatagramKey {
    /// Of a fragment; None for whole datagrams.
    #[must_use]
    pub fn of(headers: &Headers) -> Option<DatagramKey> {
        let (Fragment::First { id } | Fragment::Later { id }) = headers.fragment else {
            return None;
        };
        let protocol = match headers.key.family {
            Family::V4 => Some(headers.key.protocol),
            Family::V6 => None,
        };
        let key = &headers.key;
        Some(DatagramKey {
            family: key.family,
            protocol,
            source: key.source,
            destination: key.destination,
            id,
        })
    }
}

/// Where a first fragment went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Where the datagram is to: what it is for may change with the plan.
    pub target: Target,
    /// The backend; None: none is left, it goes where the service spills.
    pub backend: Option<BackendId>,
    /// The slot that its service's selector gave it, if that selected.
    pub slot: Option<u32>,
    /// The flow hash.
    pub hash: u64,
}

/// The part of an IPv4 datagram that a fragment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    bytes: u32,
    /// Of the last fragment: where the datagram ends.
    end: Option<u32>,
}

impl Part {
    /// Of a fragment; None for IPv6, whose identifications have 32 bits and
    /// do not come again while a datagram is remembered.
    #[must_use]
    pub fn of(frame: &Frame<'_>, headers: &Headers) -> Option<Part> {
        if headers.key.family == Family::V6 {
            return None;
        }
        let header = &frame.bytes()[ethernet::HEADER_BYTES..];
        let flags = u16::from_be_bytes([header[6], header[7]]);
        let header_bytes = u32::from(header[0] & 0xf) * 4;
        let bytes = u32::from(headers.packet_bytes).saturating_sub(header_bytes);
        let is_last = flags & ipv4::MORE_FRAGMENTS == 0;
        let end = is_last.then(|| u32::from(flags & ipv4::OFFSET_MASK) * 8 + bytes);
        Some(Part { bytes, end })
    }
}

/// A decision and what came of its datagram.
#[derive(Debug)]
struct Remembered {
    since: Now,
    decision: Decision,
    /// Bytes of its fragments.
    bytes: u32,
    /// Where it ends, once its last fragment came.
    end: Option<u32>,
}

impl Remembered {
    fn add(&mut self, part: Option<Part>) {
        if let Some(part) = part {
            self.bytes = self.bytes.saturating_add(part.bytes);
            self.end = self.end.or(part.end);
        }
    }

    /// All of the datagram came: its sender may use the identification again.
    fn is_whole(&self) -> bool {
        self.end.is_some_and(|end| self.bytes >= end)
    }
}

/// A fragment that waits.
#[derive(Debug)]
pub struct Held {
    /// The frame, out of the tunnel it came in.
    pub bytes: Vec<u8>,
    /// How many further encapsulations it is permitted.
    pub recursion_limit: RecursionLimit,
    /// It came in a tunnel.
    pub tunnelled: bool,
    /// With what its tunnel said.
    pub traffic_class: u8,
    part: Option<Part>,
    since: Now,
    key: DatagramKey,
    share: Share,
}

/// By destination, then by source.
type Share = (u8, u8);

/// What became of a fragment that is to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// It waits.
    Free,
    /// It waits in the place of another, which is dropped.
    OfAnother,
    /// It does not: [`HELD_OF_DATAGRAM_MAX`] of its datagram do.
    None,
}

/// Decisions and held fragments.
#[derive(Debug, Default)]
pub struct FragmentTable {
    decisions: BTreeMap<DatagramKey, Remembered>,
    /// Oldest first; a key that was remembered again is there again.
    order: VecDeque<(Now, DatagramKey)>,
    buffer: Buffer,
}

impl FragmentTable {
    /// Where the datagram's first fragment went; this part follows it.
    #[must_use]
    pub fn follow(&mut self, key: &DatagramKey, part: Option<Part>) -> Option<Decision> {
        let remembered = self.decisions.get_mut(key)?;
        remembered.add(part);
        Some(remembered.decision)
    }

    /// Remembers where a first fragment goes. A decision that stands is not
    /// replaced, or a forged fragment could send the rest of a datagram elsewhere: one
    /// of which parts are missing, for as long as it is remembered.
    pub fn remember(&mut self, key: DatagramKey, part: Option<Part>, decision: Decision, now: Now) {
        if self.decisions.get(&key).is_some_and(|there| !there.is_whole()) {
            return;
        }
        if self.order.len() == DATAGRAMS_MAX {
            self.forget_oldest();
        }
        let mut remembered = Remembered { since: now, decision, bytes: 0, end: None };
        remembered.add(part);
        self.decisions.insert(key, remembered);
        self.order.push_back((now, key));
    }

    /// Keeps a copy of a fragment until its first one comes.
    pub(crate) fn hold(
        &mut self,
        key: DatagramKey,
        frame: &Frame<'_>,
        Arrived { headers, recursion_limit, .. }: &Arrived,
        hash: &FlowHash,
        now: Now,
    ) -> Room {
        self.buffer.hold(Held {
            bytes: frame.bytes().to_vec(),
            recursion_limit: *recursion_limit,
            tunnelled: frame.is_tunnelled(),
            traffic_class: headers.traffic_class,
            part: Part::of(frame, headers),
            since: now,
            key,
            share: share(hash, &headers.key),
        })
    }

    /// Takes out the oldest fragment that waits for this datagram's first one.
    pub fn release(&mut self, key: &DatagramKey) -> Option<Held> {
        let held = self.buffer.take_of(key)?;
        if let Some(remembered) = self.decisions.get_mut(key) {
            remembered.add(held.part);
        }
        Some(held)
    }

    /// Forgets what is too old; gives how many held fragments that were.
    pub fn expire(&mut self, now: Now) -> u64 {
        while self.order.front().is_some_and(|(since, _)| now.0 - since.0 > REMEMBERED_MS) {
            self.forget_oldest();
        }
        self.buffer.expire(now)
    }

    fn forget_oldest(&mut self) {
        if let Some((since, key)) = self.order.pop_front()
            && self.decisions.get(&key).is_some_and(|latest| latest.since == since)
        {
            self.decisions.remove(&key);
        }
    }
}

/// Whose part of the buffer a packet would take: by its destination, and the
/// network that its source is in (/24 or /48).
fn share(hash: &FlowHash, key: &FlowKey) -> Share {
    let network = match key.family {
        Family::V4 => key.source >> 8,
        Family::V6 => key.source >> 80,
    };
    let nothing = FlowKey { protocol: Protocol(0), source_port: 0, destination_port: 0, ..*key };
    let destination = hash.flow(&FlowKey { source: 0, ..nothing });
    let source = hash.flow(&FlowKey { source: network, ..nothing });
    ((destination % DESTINATIONS as u64) as u8, (source % SOURCES as u64) as u8)
}

/// Fragments that wait, by number of arrival.
#[derive(Debug)]
struct Buffer {
    held: BTreeMap<u64, Held>,
    by_datagram: BTreeSet<(DatagramKey, u64)>,
    by_share: BTreeSet<(Share, u64)>,
    /// How many of each destination there are, and of each source in it.
    destinations: Box<[u16]>,
    sources: Box<[[u16; SOURCES]]>,
    next: u64,
}

impl Default for Buffer {
    fn default() -> Buffer {
        Buffer {
            held: BTreeMap::new(),
            by_datagram: BTreeSet::new(),
            by_share: BTreeSet::new(),
            destinations: vec![0; DESTINATIONS].into(),
            sources: vec![[0; SOURCES]; DESTINATIONS].into(),
            next: 0,
        }
    }
}

impl Buffer {
    fn hold(&mut self, held: Held) -> Room {
        if self.of_datagram(&held.key).count() >= HELD_OF_DATAGRAM_MAX {
            return Room::None;
        }
        let is_full = self.held.len() == HELD_MAX;
        if is_full {
            let oldest = self.oldest_of_largest();
            self.take(oldest);
        }
        let number = self.next;
        self.next += 1;
        *self.count(held.share).0 += 1;
        *self.count(held.share).1 += 1;
        self.by_datagram.insert((held.key, number));
        self.by_share.insert((held.share, number));
        self.held.insert(number, held);
        if is_full { Room::OfAnother } else { Room::Free }
    }

    fn take_of(&mut self, key: &DatagramKey) -> Option<Held> {
        let number = self.of_datagram(key).next()?;
        self.take(number)
    }

    fn expire(&mut self, now: Now) -> u64 {
        let before = self.held.len();
        while let Some((number, held)) = self.held.first_key_value()
            && now.0 - held.since.0 > HELD_MS
        {
            self.take(*number);
        }
        (before - self.held.len()) as u64
    }

    fn take(&mut self, number: u64) -> Option<Held> {
        let held = self.held.remove(&number)?;
        self.by_datagram.remove(&(held.key, number));
        self.by_share.remove(&(held.share, number));
        *self.count(held.share).0 -= 1;
        *self.count(held.share).1 -= 1;
        Some(held)
    }

    /// Of the destination that has most, and there of the source that has
    /// most, the one that waits longest.
    fn oldest_of_largest(&self) -> u64 {
        let largest = |counts: &[u16]| {
            let indices = 0..counts.len();
            indices.max_by_key(|index| counts[*index]).expect("there are shares")
        };
        let destination = largest(&self.destinations);
        let share = (destination as u8, largest(&self.sources[destination]) as u8);
        let of_share = self.by_share.range((share, 0)..=(share, u64::MAX));
        of_share.map(|(_, number)| *number).next().expect("the largest share is not empty")
    }

    fn of_datagram(&self, key: &DatagramKey) -> impl Iterator<Item = u64> {
        self.by_datagram.range((*key, 0)..=(*key, u64::MAX)).map(|(_, number)| *number)
    }

    fn count(&mut self, (destination, source): Share) -> (&mut u16, &mut u16) {
        let (destination, source) = (usize::from(destination), usize::from(source));
        (&mut self.destinations[destination], &mut self.sources[destination][source])
    }
}
