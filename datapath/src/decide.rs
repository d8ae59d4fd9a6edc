//! THE decision: which backend gets a packet, and what its connection's entry
//! says afterwards (paper 3.3 and 3.4).
//!
//! Pure: the caller has looked the entry up, and the owner of the connection
//! table writes the [`Effect`]. Workers do both ([`crate::forward`],
//! [`crate::batch`]); slow path, tracer and `explain` only read. There is no
//! second copy of these rules: [`steady_member`] is a filter in front of them,
//! which answers "as `decide`" or nothing.
//!
//! Where the backend of a flow's entry stays in charge:
//!
//! | backend | SYN | any other packet |
//! |---|---|---|
//! | active | always | always |
//! | draining | unless a FIN was seen | always |
//! | down, with `on_down: keep` | unless the entry is unconfirmed | always |
//! | gone | never | never |
//!
//! A SYN goes where its flow's entry says because only that backend's kernel
//! knows whether the connection lives (RFC 5961). So a forged SYN or RST moves
//! no connection.
//!
//! | class | becomes | by |
//! |---|---|---|
//! | unconfirmed | established | a packet that is no SYN, at least a tick later |
//! | established | closing | FIN: two minutes; RST: ten seconds |
//! | closing by FIN | closing by RST | SYN: the same port may be used anew |
//! | closing by RST | established | a later packet: RSTs are forged; a SYN prolongs it |
//!
//! A TCP packet that is no SYN, of a flow without an entry, belongs to a connection
//! that this machine has never seen, or has forgotten: it may have been begun by an
//! earlier table. Services with a second chance send it to the backend that their
//! table has, with the backends that earlier tables had for it; no entry is made,
//! because only the backends' agents know which of them has the connection.
//!
//! A stateless service's packets are decided each alone, by their buckets (MPLB,
//! section 3): there is no entry, and none is made. A QUIC packet goes where its
//! connection id says, as long as that backend is active, draining, or down with
//! `on_down: keep`; else by its bucket, as all others.
//!
//! At a service with Multipath TCP a TCP packet goes to the bucket that the key chosen for
//! its connection, its token or the timestamp that it echoes has in its lowest bits
//! (MPLB, figure 6); where it has none of these, to that of its five-tuple.
//!
//! A packet to a join port goes to the backend whose port it is, unless that is
//! disabled: a connection that joins lives there and nowhere else.

use plan::group::Selected;
use plan::{Admission, BackendId, Group, Matched, Service, ServiceId, Tracking};
use wire::tunnel::route_option::Emitted;
use wire::{PacketMeta, Protocol, tcp};

pub use crate::chosen_member::ChosenMember;
use crate::clock::Now;
use crate::recorder::Lookup;
use crate::table::{Entry, EntryClass, Expiry, Lifetimes, TableReader, Ticks};
use crate::view::View;

/// What one service's packets are decided by at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'v> {
    /// The service.
    pub service: ServiceId,
    /// Whether its connections are tracked.
    pub tracking: Tracking,
    /// Its members.
    pub group: &'v Group,
    /// When entries expire, and the moment.
    pub expiry: Expiry<'v>,
}

/// What one service's packets are decided by at any moment.
#[derive(Debug, Clone, Copy)]
pub struct ServiceRules<'v> {
    /// The service.
    pub service: ServiceId,
    /// Whether its connections are tracked.
    pub tracking: Tracking,
    /// Its members.
    pub group: &'v Group,
    /// When entries expire.
    pub lifetimes: &'v Lifetimes,
}

impl<'v> ServiceRules<'v> {
    /// Those of packets of that match.
    #[must_use]
    pub fn of_match(view: &'v View, matched: &Matched) -> ServiceRules<'v> {
        ServiceRules {
            service: matched.service,
            tracking: matched.tracking,
            group: view.plan.group_of(matched),
            lifetimes: &view.lifetimes,
        }
    }

    /// Those of most of a service's packets.
    #[must_use]
    pub fn of_service(service: &'v Service, lifetimes: &'v Lifetimes) -> ServiceRules<'v> {
        let Service { id, tracking, ref group, .. } = *service;
        ServiceRules { service: id, tracking, group, lifetimes }
    }

    pub(crate) fn at(self, ticks: &'v Ticks) -> Rules<'v> {
        let ServiceRules { service, tracking, group, lifetimes } = self;
        Rules { service, tracking, group, expiry: Expiry { lifetimes, ticks } }
    }
}

/// What a packet says about its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// TCP: SYN without ACK.
    Syn,
    /// TCP: RST.
    Rst,
    /// TCP: FIN.
    Fin,
    /// Any other TCP.
    Data,
    /// Another protocol.
    Datagram,
}

impl Signal {
    /// The flags that are not [`Signal::Data`], and some that may be.
    const FLAGS: tcp::Flags = tcp::Flags(tcp::Flags::SYN.0 | tcp::Flags::FIN.0 | tcp::Flags::RST.0);
}

impl From<&PacketMeta> for Signal {
    #[inline(always)]
    fn from(meta: &PacketMeta) -> Signal {
        match meta.tcp_flags {
            _ if meta.protocol != Protocol::TCP => Signal::Datagram,
            flags if flags.opens() => Signal::Syn,
            flags if flags.has(tcp::Flags::RST) => Signal::Rst,
            flags if flags.has(tcp::Flags::FIN) => Signal::Fin,
            _ => Signal::Data,
        }
    }
}

/// What was decided about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Who gets it. None: no backend takes new connections.
    pub chosen: Option<ChosenMember>,
    /// Why.
    pub why: Why,
    /// The selector's slot, where that selected.
    pub slot: Option<u32>,
    /// What becomes of the flow's entry.
    pub effect: Effect,
}

/// Why a backend gets a packet: the flow's entry names it, or else the group's
/// selector does, because...
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The flow's entry names it.
    Tracked,
    /// The flow has no entry.
    Untracked,
    /// The entry has expired; the sweep has not reached it yet.
    Expired,
    /// The entry's backend may no longer keep connections.
    Gone,
    /// A SYN begins a connection that the entry's backend is not to take.
    Opened,
    /// The same as untracked, and the connection may be one that an earlier table
    /// gave to another backend.
    SecondChance,
    /// The service is stateless.
    Stateless,
    /// The same, and the packet's QUIC connection id names the backend.
    ConnectionId,
    /// The same, and the packet's token or echoed timestamp names the bucket.
    Multipath,
    /// The packet is to a port that is a backend's own.
    JoinPort,
}

impl Decision {
    /// What the packet carries, of the group that decided.
    #[inline]
    #[must_use]
    pub fn option<'g>(&self, group: &'g Group) -> Option<&'g Emitted> {
        let (ChosenMember { backend, .. }, slot) = (self.chosen?, self.slot?);
        match self.why {
            Why::SecondChance => group.earlier_option(slot),
            _ => group.route_option(slot, backend),
        }
    }
}

impl Why {
    /// The same as seen from the connection table.
    #[inline]
    #[must_use]
    pub fn lookup(self) -> Lookup {
        match self {
            Why::Tracked => Lookup::Hit,
            Why::Stateless | Why::ConnectionId | Why::Multipath | Why::JoinPort => Lookup::None,
            Why::Untracked | Why::Expired | Why::Gone | Why::Opened | Why::SecondChance => {
                Lookup::Miss
            }
        }
    }
}

/// What becomes of a flow's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// It says this from now on.
    Update(Entry),
    /// This one is made, in place of the one there was.
    Insert(Entry),
}

/// Decides about a packet whose flow's entry is `entry`. Where none decides,
/// `gets_second_chance` is asked about the slot, and takes from the limit on those.
#[inline(always)]
pub fn decide(
    rules: &Rules<'_>,
    entry: Option<Entry>,
    packet: impl Into<Signal>,
    selector: impl FnOnce() -> u64,
    gets_second_chance: impl FnOnce(u32, Why) -> bool,
) -> Decision {
    let why = match entry {
        _ if rules.tracking == Tracking::JoinPort => return by_join_port(rules.group),
        _ if rules.tracking.is_stateless() => {
            return by_bucket(decide_stateless(rules.group, selector()));
        }
        None => Why::Untracked,
        Some(entry) => {
            let signal = packet.into();
            match keep(rules, &entry, signal) {
                Err(why) => why,
                Ok(chosen) => {
                    let effect = effect(entry, signal, rules.expiry.ticks);
                    let (chosen, why) = (Some(chosen), Why::Tracked);
                    return Decision { chosen, why, slot: None, effect };
                }
            }
        }
    };
    let Some(Selected { member, backend, slot, .. }) = rules.group.select(selector()) else {
        return Decision { chosen: None, why, slot: None, effect: Effect::None };
    };
    if gets_second_chance(slot, why) {
        let (chosen, why) = (Some(ChosenMember { member, backend }), Why::SecondChance);
        return Decision { chosen, why, slot: Some(slot), effect: Effect::None };
    }
    let (service, class) = (rules.service, EntryClass::Unconfirmed);
    let entry = Entry { service, backend, class, time: rules.expiry.ticks.of(class) };
    let chosen = ChosenMember { member, backend };
    Decision { chosen: Some(chosen), why, slot: Some(slot), effect: Effect::Insert(entry) }
}

/// Whether a packet that no entry decides about may belong to a connection that an
/// earlier table gave to another backend than the slot has now.
pub(crate) fn has_second_chance(group: &Group, slot: u32, why: Why, signal: Signal) -> bool {
    matches!(why, Why::Untracked | Why::Expired)
        && !matches!(signal, Signal::Syn | Signal::Datagram)
        && group.earlier_option(slot).is_some()
}

/// Decides about a packet of a stateless service: whose bucket it is.
#[inline(always)]
pub(crate) fn decide_stateless(group: &Group, selector: u64) -> Option<Selected> {
    group.select(selector)
}

/// Decides about a packet of a stateless service whose QUIC connection id names that
/// member.
#[inline(always)]
pub(crate) fn decide_by_connection_id(named: ChosenMember) -> Decision {
    Decision { chosen: Some(named), why: Why::ConnectionId, slot: None, effect: Effect::None }
}

/// Decides about a packet of a stateless service whose bucket's number is in the lowest
/// of `bits`.
#[inline(always)]
pub(crate) fn decide_by_bits(group: &Group, bits: u32) -> Decision {
    Decision { why: Why::Multipath, ..by_bucket(group.select_bucket(bits)) }
}

fn by_bucket(selected: Option<Selected>) -> Decision {
    Decision {
        chosen: selected.map(|Selected { member, backend, .. }| ChosenMember { member, backend }),
        why: Why::Stateless,
        slot: selected.map(|selected| selected.slot),
        effect: Effect::None,
    }
}

/// Decides about a packet to a port that is a backend's own: the group has no other.
fn by_join_port(group: &Group) -> Decision {
    Decision { why: Why::JoinPort, slot: None, ..by_bucket(group.select(0)) }
}

/// As [`decide`] decides, without an effect, about data whose flow's entry is
/// steady: written in this tick, with this backend. None: ask `decide`.
#[inline(always)]
#[must_use]
pub fn steady_member(
    group: &Group,
    meta: &PacketMeta,
    steady: impl FnOnce() -> Option<BackendId>,
) -> Option<ChosenMember> {
    if meta.tcp_flags.has_any(Signal::FLAGS) {
        return None;
    }
    let backend = steady()?;
    let (member, admission) = group.member(backend)?;
    (admission != Admission::Nothing).then_some(ChosenMember { member, backend })
}

/// An entry in some worker's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackedBy {
    /// The worker whose table it is.
    pub worker: usize,
    /// The entry.
    pub entry: Entry,
    /// Since it was written, in milliseconds.
    pub idle_ms: u64,
}

/// Decides for a thread that only reads the workers' tables: by the first of
/// them whose entry decides, as its worker would.
#[must_use]
pub fn decide_by_tables(
    tables: &[TableReader<'_>],
    rules: ServiceRules<'_>,
    hash: u64,
    signal: Signal,
    selector: u64,
) -> (Decision, Option<TrackedBy>) {
    let tables = if rules.tracking.is_stateless() { &[] } else { tables };
    let mut undecided = None;
    for (worker, table) in tables.iter().enumerate() {
        let Some((entry, idle_ms)) = table.find(hash, rules.service) else { continue };
        let ticks = table.ticks();
        let at = rules.at(&ticks);
        let second_chance = |slot, why| has_second_chance(rules.group, slot, why, signal);
        let by_table = decide(&at, Some(entry), signal, || selector, second_chance);
        let tracked = Some(TrackedBy { worker, entry, idle_ms });
        if by_table.why == Why::Tracked {
            return (by_table, tracked);
        }
        undecided.get_or_insert((by_table, tracked));
    }
    undecided.unwrap_or_else(|| (decide_untracked(rules, signal, selector), None))
}

/// Decides about a flow without an entry, for those who only read.
#[must_use]
pub fn decide_untracked(rules: ServiceRules<'_>, signal: Signal, selector: u64) -> Decision {
    let second_chance = |slot, why| has_second_chance(rules.group, slot, why, signal);
    decide(&rules.at(&Ticks::new(Now(0))), None, signal, || selector, second_chance)
}

/// The entry's member, if it still decides.
#[inline]
fn keep(rules: &Rules<'_>, entry: &Entry, signal: Signal) -> Result<ChosenMember, Why> {
    if rules.expiry.expired(entry) {
        return Err(Why::Expired);
    }
    let (member, admission) = rules.group.member(entry.backend).ok_or(Why::Gone)?;
    let is_syn = signal == Signal::Syn;
    let selects_anew = match admission {
        Admission::All => None,
        Admission::TrackedOnly { is_down: false } => Some(EntryClass::Closing),
        Admission::TrackedOnly { is_down: true } => Some(EntryClass::Unconfirmed),
        Admission::Nothing => return Err(Why::Gone),
    };
    match is_syn && selects_anew == Some(entry.class) {
        true => Err(Why::Opened),
        false => Ok(ChosenMember { member, backend: entry.backend }),
    }
}

/// What a packet changes in its entry. Its time changes with the tick, so
/// that a busy flow is written once in a tick of its class.
#[inline]
fn effect(entry: Entry, signal: Signal, ticks: &Ticks) -> Effect {
    let Some(class) = class_after(&entry, signal, ticks) else { return Effect::None };
    let next = Entry { class, time: ticks.of(class), ..entry };
    if next == entry { Effect::None } else { Effect::Update(next) }
}

/// The class and a fresh time; None: the packet changes nothing.
#[inline]
fn class_after(entry: &Entry, signal: Signal, ticks: &Ticks) -> Option<EntryClass> {
    match (entry.class, signal) {
        (EntryClass::Unconfirmed, Signal::Syn) => Some(EntryClass::Unconfirmed),
        // Within a tick it may still be a flood, and a RST confirms nothing.
        (EntryClass::Unconfirmed, _) if signal == Signal::Rst || ticks.since(entry) == 0 => None,
        (_, Signal::Datagram) => Some(EntryClass::Datagram),
        (EntryClass::Established, Signal::Syn) => None,
        (EntryClass::Established, Signal::Rst) | (_, Signal::Syn) => Some(EntryClass::Reset),
        // More RSTs do not lengthen the ten seconds.
        (_, Signal::Rst) => None,
        (EntryClass::Closing, _) | (_, Signal::Fin) => Some(EntryClass::Closing),
        _ => Some(EntryClass::Established),
    }
}
