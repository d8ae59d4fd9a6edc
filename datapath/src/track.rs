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

use plan::group::Selected;
use plan::{BackendId, Group, ServiceId, Standing};
use wire::{Facts, tcp};

use crate::table::{
    Class, ConnectionTable, Entry, Home, Lifetimes, Slot, Ticks, is_tcp, steady_backend,
};

/// The backend that a connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Index of the member in its group.
    pub member: u16,
    /// The backend.
    pub backend: BackendId,
}

impl From<Selected> for Kept {
    fn from(selected: Selected) -> Kept {
        Kept { member: selected.member, backend: selected.backend }
    }
}

/// The backend that this packet's connection keeps, whose entry was `found`.
///
/// # Errors
/// If it has none that the plan still lets it keep; then with the entry that
/// no longer decides, if there is one.
#[inline(always)]
pub fn track<'t>(
    table: &ConnectionTable<'_>,
    found: Option<Slot<'t>>,
    group: &Group,
    facts: &Facts,
    hash: u64,
    ticks: &Ticks,
    lifetimes: &Lifetimes,
) -> Result<Kept, Option<Slot<'t>>> {
    let found = found.ok_or(None)?;
    if let Some(kept) = keep_steady(&found, group, facts, ticks) {
        return Ok(kept);
    }
    let entry = found.entry();
    let kept = keep(group, facts, &entry, ticks, lifetimes).ok_or(Some(found))?;
    let next = after(entry, facts, ticks);
    if next != entry {
        table.update(&found, hash, next);
    }
    Ok(kept)
}

/// The same, for most of a busy connection's packets, without a look at all
/// that could be: data whose entry is at home and steady. None: [`track`] is
/// to be asked.
#[inline(always)]
pub fn track_steady(
    home: &Home,
    (service, group): (ServiceId, &Group),
    facts: &Facts,
    hash: u64,
    ticks: &Ticks,
) -> Option<Kept> {
    if facts.tcp_flags.has_any(SIGNALS) {
        return None;
    }
    let backend = steady_backend(home, hash, service, ticks, is_tcp(facts.protocol))?;
    keep_backend(group, backend)
}

/// The backend of data whose entry is steady, wherever it is.
#[inline(always)]
fn keep_steady(found: &Slot<'_>, group: &Group, facts: &Facts, ticks: &Ticks) -> Option<Kept> {
    let is_data = !facts.tcp_flags.has_any(SIGNALS);
    let is_steady = is_data && found.is_steady(ticks, is_tcp(facts.protocol));
    if is_steady { keep_backend(group, found.backend()) } else { None }
}

/// A backend that the plan still lets a connection keep.
#[inline(always)]
fn keep_backend(group: &Group, backend: BackendId) -> Option<Kept> {
    let (member, standing) = group.member(backend)?;
    (standing != Standing::Gone).then_some(Kept { member, backend })
}

/// Flags that may change an entry's class.
const SIGNALS: tcp::Flags = tcp::Flags(tcp::Flags::SYN.0 | tcp::Flags::FIN.0 | tcp::Flags::RST.0);

/// Whether an entry still decides.
#[inline]
fn keep(
    group: &Group,
    facts: &Facts,
    entry: &Entry,
    ticks: &Ticks,
    lifetimes: &Lifetimes,
) -> Option<Kept> {
    if lifetimes.expired(entry, ticks) {
        return None;
    }
    let (member, standing) = group.member(entry.backend)?;
    let opens = is_tcp(facts.protocol) && facts.tcp_flags.opens();
    let keeps = match standing {
        Standing::Active => !(opens && entry.class >= Class::Closing),
        Standing::Keeps => !opens,
        Standing::Gone => false,
    };
    keeps.then_some(Kept { member, backend: entry.backend })
}

/// The entry after this packet. Its time changes with the tick, so that a
/// busy flow is written once in a tick of its class.
#[inline]
fn after(entry: Entry, facts: &Facts, ticks: &Ticks) -> Entry {
    let class = if is_tcp(facts.protocol) {
        class_after_tcp(&entry, facts.tcp_flags, ticks)
    } else {
        class_after_datagram(&entry, ticks)
    };
    match class {
        Some(class) => Entry { class, time: ticks.of(class), ..entry },
        None => entry,
    }
}

/// The class and a fresh time; None: the packet changes nothing.
#[inline]
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
