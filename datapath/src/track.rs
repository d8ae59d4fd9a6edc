//! Track (paper 3.3): the rules by which a connection keeps its backend.
//!
//! | class | becomes | by |
//! |---|---|---|
//! | unconfirmed | established | a packet that is no SYN, at least a tick later |
//! | established | closing | FIN: two minutes; RST: ten seconds |
//! | closing by RST | established | any later packet: RSTs are forged |
//!
//! A SYN never changes an established entry of an active backend; where the
//! backend drains or the entry closes, it selects anew.

use plan::{BackendId, Service, Standing};
use wire::{Headers, tcp};

use crate::counters::ConnectionCounters;
use crate::table::{Class, ConnectionTable, Entry, Lifetimes, Ticks, is_tcp};

/// A backend that a connection keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Index of the member in its group.
    pub member: u16,
    /// The backend.
    pub backend: BackendId,
}

/// The backend that this packet's connection keeps, if it has one that the
/// plan still lets keep it.
#[inline(always)]
pub fn track(
    table: &ConnectionTable<'_>,
    service: &Service,
    headers: &Headers,
    hash: u64,
    ticks: &Ticks,
    lifetimes: &Lifetimes,
    counters: &ConnectionCounters,
) -> Option<Kept> {
    if let Some((place, entry)) = table.find(hash, service.id)
        && let Some(kept) = keep(service, headers, &entry, ticks, lifetimes)
    {
        let next = after(entry, headers, ticks);
        if next != entry {
            table.update(place, hash, next);
        }
        counters.hits.add(1);
        return Some(kept);
    }
    counters.misses.add(1);
    None
}

/// Whether an entry still decides.
#[inline(always)]
fn keep(
    service: &Service,
    headers: &Headers,
    entry: &Entry,
    ticks: &Ticks,
    lifetimes: &Lifetimes,
) -> Option<Kept> {
    if lifetimes.expired(entry, ticks) {
        return None;
    }
    let (member, standing) = service.group.member(entry.backend)?;
    let opens = is_tcp(headers.key.protocol) && headers.tcp_flags.opens();
    let keeps = match standing {
        Standing::Active => !(opens && entry.class >= Class::Closing),
        Standing::Keeps => !opens,
        Standing::Gone => false,
    };
    keeps.then_some(Kept { member, backend: entry.backend })
}

/// The entry after this packet. Its time changes with the tick, so that a
/// busy flow is written once in a tick of its class.
#[inline(always)]
fn after(entry: Entry, headers: &Headers, ticks: &Ticks) -> Entry {
    let class = if is_tcp(headers.key.protocol) {
        class_after_tcp(&entry, headers.tcp_flags, ticks)
    } else {
        class_after_datagram(&entry, ticks)
    };
    match class {
        Some(class) => Entry { class, time: ticks.of(class), ..entry },
        None => entry,
    }
}

/// The class and a fresh time; None: the packet changes nothing.
#[inline(always)]
fn class_after_tcp(entry: &Entry, flags: tcp::Flags, ticks: &Ticks) -> Option<Class> {
    let (opens, fin, rst) = (flags.opens(), flags.has(tcp::Flags::FIN), flags.has(tcp::Flags::RST));
    match entry.class {
        Class::Unconfirmed if opens => Some(Class::Unconfirmed),
        // Within a tick it may still be a flood, and a RST confirms nothing.
        Class::Unconfirmed if rst || ticks.since(entry) == 0 => None,
        Class::Established if opens => None,
        Class::Established if rst => Some(Class::Reset),
        // More RSTs do not lengthen the ten seconds.
        Class::Reset if rst => None,
        Class::Closing if rst => None,
        Class::Closing => Some(Class::Closing),
        _ if fin => Some(Class::Closing),
        _ => Some(Class::Established),
    }
}

#[inline]
fn class_after_datagram(entry: &Entry, ticks: &Ticks) -> Option<Class> {
    match entry.class {
        Class::Unconfirmed if ticks.since(entry) == 0 => None,
        _ => Some(Class::Datagram),
    }
}
