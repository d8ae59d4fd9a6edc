//! The fragment table (paper 4.3): where a datagram's first fragment went, so
//! that the later ones follow; and a buffer for those that come before it.
//!
//! Bounded in both, and in time. Only the slow path uses it.

use std::collections::{BTreeMap, VecDeque};

use plan::BackendId;
use wire::ip::AddressBits;
use wire::{Family, Fragment, Frame, Headers, Protocol, Target};

use crate::clock::Now;

/// Datagrams remembered: each about 100 bytes, so 1.6 MB. More: the oldest
/// is forgotten.
pub const DATAGRAMS_MAX: usize = 16_384;
/// How long a first fragment is remembered. Hosts give a datagram up after
/// 30 or 60 seconds; what comes that late is lost anyway.
pub const REMEMBERED_MS: u64 = 10_000;
/// Frames held: 2 KiB each, so 4 MiB. More: dropped.
pub const HELD_MAX: usize = 2_048;
/// How long a fragment waits for its first one.
pub const HELD_MS: u64 = 1_000;

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
    /// The flow hash.
    pub hash: u64,
}

/// A fragment that waits.
#[derive(Debug)]
struct Held {
    since: Now,
    key: DatagramKey,
    bytes: Vec<u8>,
}

/// Decisions and held fragments.
#[derive(Debug, Default)]
pub struct FragmentTable {
    decisions: BTreeMap<DatagramKey, (Now, Decision)>,
    /// Oldest first; a key that was remembered again is there again.
    order: VecDeque<(Now, DatagramKey)>,
    held: VecDeque<Held>,
}

impl FragmentTable {
    /// Where the datagram's first fragment went.
    #[must_use]
    pub fn find(&self, key: &DatagramKey) -> Option<Decision> {
        self.decisions.get(key).map(|(_, decision)| *decision)
    }

    /// Remembers where a first fragment goes.
    pub fn remember(&mut self, key: DatagramKey, decision: Decision, now: Now) {
        if self.order.len() == DATAGRAMS_MAX {
            self.forget_oldest();
        }
        self.decisions.insert(key, (now, decision));
        self.order.push_back((now, key));
    }

    /// Keeps a copy of a fragment until its first one comes; false: no room.
    pub fn hold(&mut self, key: DatagramKey, frame: &Frame<'_>, now: Now) -> bool {
        if self.held.len() == HELD_MAX {
            return false;
        }
        self.held.push_back(Held { since: now, key, bytes: frame.bytes().to_vec() });
        true
    }

    /// Takes out the fragments that waited for this datagram's first one.
    pub fn release(&mut self, key: &DatagramKey) -> Vec<Vec<u8>> {
        if !self.held.iter().any(|held| held.key == *key) {
            return Vec::new();
        }
        let (released, rest) =
            self.held.drain(..).partition::<VecDeque<Held>, _>(|held| held.key == *key);
        self.held = rest;
        released.into_iter().map(|held| held.bytes).collect()
    }

    /// Forgets what is too old; gives how many held fragments that were.
    pub fn expire(&mut self, now: Now) -> u64 {
        while self.order.front().is_some_and(|(since, _)| now.0 - since.0 > REMEMBERED_MS) {
            self.forget_oldest();
        }
        let over = self.held.iter().take_while(|held| now.0 - held.since.0 > HELD_MS).count();
        self.held.drain(..over);
        over as u64
    }

    fn forget_oldest(&mut self) {
        if let Some((since, key)) = self.order.pop_front()
            && self.decisions.get(&key).is_some_and(|(latest, _)| *latest == since)
        {
            self.decisions.remove(&key);
        }
    }
}
