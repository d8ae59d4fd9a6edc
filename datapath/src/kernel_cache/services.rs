//! Stateless services in the kernel: the target of each of their buckets. Only the control
//! thread writes them, like targets ([`super::targets`]).
//!
//! ```text
//!  a packet's destination ─► service: first, count, layout ─► bucket: layout, target
//!                            (a map)                          (a word each)
//! ```
//!
//! A packet of such a service is decided by its bucket alone, so one word for each bucket
//! contains all decisions about its packets, and no flow is entered. The word is zero, and
//! packets go to user space, if more than the bucket decides, or agents must be told something.
//!
//! **Destinations.** The map contains single ports of single addresses; and addresses, under
//! port zero, if no other service is at any of their ports. Everything else is left to user
//! space, which knows all ways to match a service.
//!
//! **Layouts.** Services' buckets are stored one after the other, so a service that is added or
//! removed moves others. All words are then written again under the next layout's number, which
//! the services in the map have, too. Until they do, the numbers differ, which is a miss.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use plan::{Affinity, Match, Matched, Plan, Ports, Tracking};
use wire::ip::AddressBits;
use wire::{Family, Protocol, Target};

use super::targets::{TargetMemory, TargetRef};
use crate::not_cached::NotCached;

/// Buckets of all stateless services there may be. Packets to further services are not
/// the kernel's.
pub const SERVICE_BUCKETS_MAX: usize = 1 << 19;

/// A service in the kernel's map: where packets are to, and its buckets, as
/// nic/bpf/cache_services.h has both.
pub type ServiceEntry = ([u8; 20], [u32; 4]);

const LAYOUT_SHIFT: u32 = 32;

/// What the kernel knows of other protocols: nothing.
const PROTOCOLS: [Protocol; 2] = [Protocol::TCP, Protocol::UDP];

/// Keys of the kernel's map.
type Sockets = ArrayVec<Target, { PROTOCOLS.len() }>;

/// Which buckets are whose.
#[derive(Debug, Default)]
pub(super) struct Services {
    /// Number of the layout.
    layout: u32,
    placed: Vec<Placed>,
    /// Stateless matches that the kernel has not, in their order.
    refused: Vec<(u32, NotCached)>,
}

/// A match whose buckets the kernel has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Placed {
    /// Index of the match.
    matched: u32,
    sockets: Sockets,
    by_client: bool,
    first: u32,
    count: u32,
}

impl Services {
    /// Places the buckets of a plan's stateless services where there are that many.
    pub(super) fn place(&mut self, plan: &Plan, room: usize) {
        let addresses = Addresses::of(plan);
        let mut placed = Vec::new();
        let mut first = 0;
        self.refused.clear();
        for entry in plan.matches.iter().filter(|entry| is_by_bucket(&entry.matched)) {
            let (matched, sockets) = (entry.matched.matched, addresses.sockets(entry));
            let selector = plan.group_of(&entry.matched).selector();
            let count = selector.map_or(0, |selector| selector.entries().len() as u32);
            if sockets.is_empty() {
                self.refused.push((matched, NotCached::SeveralSockets));
            } else if (first + count) as usize > room {
                self.refused.push((matched, NotCached::BucketsFull));
            } else {
                let by_client = plan.service_of(&entry.matched).affinity == Affinity::Client;
                placed.push(Placed { matched, sockets, by_client, first, count });
                first += count;
            }
        }
        if placed != self.placed {
            (self.layout, self.placed) = (self.layout.wrapping_add(1), placed);
        }
    }

    /// Whether the kernel has a match's buckets, else why not.
    pub(super) fn has(&self, matched: &Matched) -> Result<(), NotCached> {
        if !is_by_bucket(matched) {
            return Err(NotCached::MoreThanBucket);
        }
        let refused = self.refused.binary_search_by_key(&matched.matched, |(matched, _)| *matched);
        refused.map_or(Ok(()), |at| Err(self.refused[at].1))
    }

    /// Writes all buckets; true if any was another before.
    pub(super) fn write(
        &self,
        plan: &Plan,
        target: impl Fn(u32, u16) -> Option<TargetRef>,
        memories: &[TargetMemory<'_>],
    ) -> bool {
        let mut has_changes = false;
        for Placed { matched, first, .. } in &self.placed {
            let group = plan.group_of(&plan.matches[*matched as usize].matched);
            for selected in group.selected_by_slot() {
                let target = match selected.has_route_option {
                    true => None,
                    false => target(*matched, selected.member),
                };
                let target = target.map_or(0, TargetRef::bits);
                let word = u64::from(self.layout) << LAYOUT_SHIFT | u64::from(target);
                for memory in memories {
                    let bucket = &memory.service_buckets[(first + selected.slot) as usize];
                    has_changes |= bucket.swap(word, Ordering::Release) != word;
                }
            }
        }
        has_changes
    }

    /// The kernel's map.
    pub(super) fn entries(&self) -> Box<[ServiceEntry]> {
        let entries = |placed: &Placed| {
            let Placed { ref sockets, by_client, first, count, .. } = *placed;
            let service = [first, count, self.layout, by_client.into()];
            sockets.iter().map(move |socket| (key(socket), service)).collect::<Vec<_>>()
        };
        self.placed.iter().flat_map(entries).collect()
    }
}

/// True if nothing but the bucket decides about a match's packets.
fn is_by_bucket(matched: &Matched) -> bool {
    matched.tracking == Tracking::Stateless
}

/// How many matches there are at each single address.
struct Addresses(HashMap<(Family, AddressBits), usize>);

impl Addresses {
    fn of(plan: &Plan) -> Addresses {
        let mut counts = HashMap::new();
        for Match { family, only, .. } in &plan.matches {
            if let Some((address, _)) = only {
                *counts.entry((*family, *address)).or_default() += 1;
            }
        }
        Addresses(counts)
    }

    /// What the kernel finds a match by; nothing if it cannot.
    fn sockets(&self, entry: &Match) -> Sockets {
        let Match { family, only, .. } = *entry;
        let Some((address, ports)) = only else { return Sockets::new() };
        let socket = |protocol, port| Target { address, family, protocol, port };
        let is_alone = self.0[&(family, address)] == 1;
        let all = PROTOCOLS.into_iter().map(|protocol| socket(protocol, 0));
        match ports {
            Ports::Range(protocol, port, last) if port == last && port != 0 => {
                Sockets::from_iter([socket(protocol, port)])
            }
            Ports::All(protocol) if is_alone => {
                all.filter(|socket| socket.protocol == protocol).collect()
            }
            Ports::Any if is_alone => all.collect(),
            _ => Sockets::new(),
        }
    }
}

/// As the kernel's program makes it of a packet: address, port, protocol.
fn key(socket: &Target) -> [u8; 20] {
    const MAPPED_V4: u128 = 0xffff << 32;
    let address = match socket.family {
        Family::V4 => socket.address | MAPPED_V4,
        Family::V6 => socket.address,
    };
    let mut key = [0; 20];
    key[..16].copy_from_slice(&address.to_be_bytes());
    key[16..18].copy_from_slice(&socket.port.to_be_bytes());
    key[18] = socket.protocol.0;
    key
}
