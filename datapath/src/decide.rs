//! THE decision: which backend gets a packet, and the state of its connection's entry
//! afterwards (paper 3.3 and 3.4).
//!
//! Pure: the caller says by [`Evidence`] what is known about the packet, and the owner of the
//! connection table writes the [`Effect`]. Workers do both ([`crate::forward`],
//! [`crate::batch`]); slow path, tracer and `explain` only read. These rules exist only here:
//! [`steady_member`] is a filter in front of them, which answers as `choose` would, or not at
//! all.
//!
//! The evidence used, in this order, until it names a backend:
//!
//! | a service's packets | |
//! |---|---|
//! | to a join port | the port |
//! | tracked | the flow's entry, the selector's slot |
//! | stateless | the bucket of the five-tuple, or of the client |
//! | stateless, with QUIC connection ids | the connection id, the bucket |
//! | stateless, with Multipath TCP | the token or the echoed timestamp, the bucket |
//!
//! When the backend of a flow's entry stays in charge:
//!
//! | backend | SYN | any other packet |
//! |---|---|---|
//! | active | always | always |
//! | draining | unless a FIN was seen | always |
//! | down, with `on_down: keep` | unless the entry is unconfirmed | always |
//! | gone | never | never |
//!
//! A SYN follows its flow's entry because only that backend's kernel knows whether the
//! connection is alive (RFC 5961). So a forged SYN or RST moves no connection.
//!
//! | class | becomes | by |
//! |---|---|---|
//! | unconfirmed | established | a packet that is no SYN, at least a tick later |
//! | established | closing | FIN: two minutes; RST: ten seconds |
//! | closing by FIN | closing by RST | SYN: the same port may be used anew |
//! | closing by RST | established | a later packet: RSTs are forged; a SYN prolongs it |
//!
//! A TCP packet without SYN, of a flow without an entry, belongs to a connection that this
//! machine has never seen or has forgotten: an earlier table may have selected its backend.
//! Services with a second chance send it to the backend in their present table, and name the
//! backends that earlier tables had for it; no entry is made, because only the backends' agents
//! know which of them has the connection.
//!
//! Each packet of a stateless service is decided independently, by its bucket (MPLB, section
//! 3): there is no entry, and none is made. A QUIC packet goes to the backend that its
//! connection id names if that is active, draining, or down with `on_down: keep`; otherwise its
//! bucket decides, as for all others.
//!
//! At a service with Multipath TCP, the bucket of a TCP packet is given by the lowest bits of
//! the key chosen for its connection, of its token, or of the timestamp that it echoes (MPLB,
//! figure 6). If it has none of these, it is the bucket of its five-tuple.
//!
//! A packet to a join port goes to the backend with that port, unless that is disabled: the
//! connection to join lives there and nowhere else.

use plan::group::Selected;
use plan::{Admission, BackendId, Group, Matched, Service, ServiceId, Tracking};
use wire::{PacketMeta, Protocol, tcp};

pub use crate::agent_options::Route;
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
    pub(crate) const FLAGS: tcp::Flags =
        tcp::Flags(tcp::Flags::SYN.0 | tcp::Flags::FIN.0 | tcp::Flags::RST.0);

    #[inline(always)]
    pub(crate) fn of_tcp(flags: tcp::Flags) -> Signal {
        match flags {
            flags if flags.opens() => Signal::Syn,
            flags if flags.has(tcp::Flags::RST) => Signal::Rst,
            flags if flags.has(tcp::Flags::FIN) => Signal::Fin,
            _ => Signal::Data,
        }
    }
}

impl From<&PacketMeta> for Signal {
    #[inline(always)]
    fn from(meta: &PacketMeta) -> Signal {
        match meta.protocol {
            Protocol::TCP => Signal::of_tcp(meta.tcp_flags),
            _ => Signal::Datagram,
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
    /// Where else the connection may live, as the packet says.
    pub route: Route,
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
    /// As the entry or the connection id says.
    #[inline(always)]
    fn by_name(why: Why, named: ChosenMember, effect: Effect) -> Decision {
        Decision { chosen: Some(named), why, slot: None, route: Route::None, effect }
    }

    /// As the selector says.
    #[inline(always)]
    fn by_slot(why: Why, selected: Option<Selected>) -> Decision {
        let chosen =
            selected.map(|Selected { member, backend, .. }| ChosenMember { member, backend });
        let slot = selected.map(|selected| selected.slot);
        let is_moving = selected.is_some_and(|selected| selected.has_route_option);
        let route = if is_moving { Route::Move } else { Route::None };
        Decision { chosen, why, slot, route, effect: Effect::None }
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

/// What is known of one packet, as far as [`choose`] asks.
pub trait Evidence {
    /// What it says about its connection.
    fn signal(&self) -> Signal;
    /// Its flow's entry.
    fn entry(&mut self) -> Option<Entry>;
    /// The member that its QUIC connection id names.
    fn connection_id(&mut self, group: &Group) -> Option<ChosenMember>;
    /// The token or the echoed timestamp in its TCP header, whose lowest bits are a bucket.
    fn bits(&mut self) -> Option<u32>;
    /// The hash that selects where nothing else names a backend.
    fn selector(&mut self) -> u64;
    /// Whether it may still have a second chance: takes from the service's limit.
    fn allows_second_chance(&mut self) -> bool;
}

/// Evidence that was found before, for those who only read: no limit is taken from.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// See [`Evidence::signal`].
    pub signal: Signal,
    /// See [`Evidence::entry`].
    pub entry: Option<Entry>,
    /// See [`Evidence::connection_id`].
    pub connection_id: Option<ChosenMember>,
    /// See [`Evidence::bits`].
    pub bits: Option<u32>,
    /// See [`Evidence::selector`].
    pub selector: u64,
}

impl Known {
    /// Nothing but the hash that selects.
    #[must_use]
    pub fn selector(signal: Signal, selector: u64) -> Known {
        Known { signal, entry: None, connection_id: None, bits: None, selector }
    }
}

impl Evidence for Known {
    fn signal(&self) -> Signal {
        self.signal
    }

    fn entry(&mut self) -> Option<Entry> {
        self.entry
    }

    fn connection_id(&mut self, _: &Group) -> Option<ChosenMember> {
        self.connection_id
    }

    fn bits(&mut self) -> Option<u32> {
        self.bits
    }

    fn selector(&mut self) -> u64 {
        self.selector
    }

    fn allows_second_chance(&mut self) -> bool {
        true
    }
}

/// Decides about a packet. The only place that knows which evidence comes first.
#[inline(always)]
pub fn choose(rules: &Rules<'_>, packet: &mut impl Evidence) -> Decision {
    match rules.tracking {
        Tracking::Tracked => return by_entry(rules, packet),
        Tracking::JoinPort => {
            let only = Decision::by_slot(Why::JoinPort, rules.group.select(0));
            return Decision { slot: None, route: Route::None, ..only };
        }
        Tracking::StatelessQuic => {
            if let Some(named) = packet.connection_id(rules.group) {
                return Decision::by_name(Why::ConnectionId, named, Effect::None);
            }
        }
        Tracking::StatelessMultipath => {
            if let Some(bits) = packet.bits() {
                return Decision::by_slot(Why::Multipath, rules.group.select_bucket(bits));
            }
        }
        Tracking::Stateless => {}
    }
    Decision::by_slot(Why::Stateless, rules.group.select(packet.selector()))
}

/// Decides about a packet of a tracked service: by its flow's entry, or as the selector
/// selects.
#[inline(always)]
fn by_entry(rules: &Rules<'_>, packet: &mut impl Evidence) -> Decision {
    let signal = packet.signal();
    let why = match packet.entry() {
        None => Why::Untracked,
        Some(entry) => match keep(rules, &entry, signal) {
            Err(why) => why,
            Ok(chosen) => {
                let effect = effect(entry, signal, rules.expiry.ticks);
                return Decision::by_name(Why::Tracked, chosen, effect);
            }
        },
    };
    let selected = rules.group.select(packet.selector());
    let Some(selected) = selected else { return Decision::by_slot(why, None) };
    let Selected { member, backend, slot, .. } = selected;
    let (chosen, slot) = (Some(ChosenMember { member, backend }), Some(slot));
    if rules.group.has_earlier_slots()
        && has_second_chance(rules.group, selected.slot, why, signal)
        && packet.allows_second_chance()
    {
        let (why, route) = (Why::SecondChance, Route::Earlier);
        return Decision { chosen, why, slot, route, effect: Effect::None };
    }
    let (service, class) = (rules.service, EntryClass::Unconfirmed);
    let entry = Entry { service, backend, class, time: rules.expiry.ticks.of(class) };
    Decision { chosen, why, slot, route: Route::None, effect: Effect::Insert(entry) }
}

/// True if an untracked packet may belong to a connection made under an earlier table, when
/// its slot had another backend.
#[inline(never)]
fn has_second_chance(group: &Group, slot: u32, why: Why, signal: Signal) -> bool {
    matches!(why, Why::Untracked | Why::Expired)
        && !matches!(signal, Signal::Syn | Signal::Datagram)
        && group.earlier_option(slot).is_some()
}

/// As [`choose`] chooses, without an effect, about data whose flow's entry is
/// steady: written in this tick, with this backend. None: ask `choose`.
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

/// Chooses for a thread that only reads the workers' tables: by the first of
/// them whose entry decides, as its worker would.
#[must_use]
pub fn choose_by_tables(
    tables: &[TableReader<'_>],
    rules: ServiceRules<'_>,
    hash: u64,
    known: Known,
) -> (Decision, Option<TrackedBy>) {
    let tables = if rules.tracking == Tracking::Tracked { tables } else { &[] };
    let mut undecided = None;
    for (worker, table) in tables.iter().enumerate() {
        let Some((entry, idle_ms)) = table.find(hash, rules.service) else { continue };
        let ticks = table.ticks();
        let by_table = choose(&rules.at(&ticks), &mut Known { entry: Some(entry), ..known });
        let tracked = Some(TrackedBy { worker, entry, idle_ms });
        if by_table.why == Why::Tracked {
            return (by_table, tracked);
        }
        undecided.get_or_insert((by_table, tracked));
    }
    undecided.unwrap_or_else(|| (choose_untracked(rules, known), None))
}

/// Chooses for a flow without an entry, for those who only read.
#[must_use]
pub fn choose_untracked(rules: ServiceRules<'_>, known: Known) -> Decision {
    choose(&rules.at(&Ticks::new(Now(0))), &mut Known { entry: None, ..known })
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
