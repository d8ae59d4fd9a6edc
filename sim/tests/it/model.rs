//! Compares the connection table with a plain HashMap, on random traffic.
//!
//! The model has no buckets: with a table that never fills, every packet's backend must be the
//! model's. It has no ticks either, only the guarantee: an entry lives for its timeout, and at
//! most two ticks longer. In between it keeps both possibilities until a packet distinguishes
//! them.

use std::collections::HashMap;

use crate::common::{Machine, Tcp, message, tcp, udp};
use datapath::DropReason;
use plan::proto::{self, BackendState};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Event {
    /// A packet of that kind of that flow, that many milliseconds later.
    Packet { flow: u16, kind: u8, after_ms: u32 },
    /// A backend's state changes.
    State { backend: usize, state: u8 },
}

fn event() -> impl Strategy<Value = Event> {
    let near_a_timeout = prop::sample::select(vec![10_000u32, 30_000, 60_000, 120_000, 900_000])
        .prop_flat_map(|timeout_ms| timeout_ms - 9_000..timeout_ms + 17_000);
    let after_ms = prop_oneof![
        8 => 0u32..200,
        3 => 200u32..20_000,
        1 => near_a_timeout,
        1 => 20_000u32..2_000_000,
    ];
    prop_oneof![
        20 => (1u16..12, 0u8..5, after_ms).prop_map(|(flow, kind, after_ms)| Event::Packet { flow, kind, after_ms }),
        1 => (0usize..4, 1u8..5).prop_map(|(backend, state)| Event::State { backend, state }),
    ]
}

/// What the model remembers of a flow.
#[derive(Debug, Clone, PartialEq)]
struct Known {
    backend: String,
    class: EntryClass,
    tcp: bool,
    seen_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum EntryClass {
    Unconfirmed,
    Confirmed,
    /// After a FIN.
    Closing,
    /// After a RST, or a SYN on one of the last two.
    Reset,
}

impl Known {
    fn new(backend: String, tcp: bool, seen_ms: u64) -> Known {
        Known { backend, class: EntryClass::Unconfirmed, tcp, seen_ms }
    }

    /// Idle for so long that it must be gone, or so short that it must be
    /// there; None: in between, ticks decide.
    fn is_over(&self, now_ms: u64) -> Option<bool> {
        let (timeout_ms, tick_ms) = match (self.class, self.tcp) {
            (EntryClass::Unconfirmed, _) => (30_000, 100),
            (EntryClass::Confirmed, true) => (900_000, 8_192),
            (EntryClass::Confirmed, false) => (60_000, 8_192),
            (EntryClass::Closing, _) => (120_000, 2_000),
            (EntryClass::Reset, _) => (10_000, 2_000),
        };
        let idle_ms = now_ms - self.seen_ms;
        match idle_ms {
            _ if idle_ms <= timeout_ms => Some(false),
            _ if idle_ms > timeout_ms + 2 * tick_ms => Some(true),
            _ => None,
        }
    }
}

/// A packet as the model sees it.
struct Packet {
    kind: u8,
    is_tcp: bool,
    now_ms: u64,
    /// Where it goes without an entry.
    by_hash: Result<String, DropReason>,
}

/// Where the packet may go, and what its flow's entry may then be, if it is
/// `known` now.
fn outcomes(
    known: Option<&Known>,
    plan: &proto::Plan,
    packet: &Packet,
) -> Vec<(Result<String, DropReason>, Option<Known>)> {
    let selected = || match &packet.by_hash {
        Ok(backend) => {
            let fresh = Known::new(backend.clone(), packet.is_tcp, packet.now_ms);
            (packet.by_hash.clone(), Some(fresh))
        }
        // The old entry stays.
        Err(_) => (packet.by_hash.clone(), known.cloned()),
    };
    let Some(known) = known else { return vec![selected()] };
    let tracked = || match keeps(known, plan, packet) {
        true => (Ok(known.backend.clone()), Some(after(known, packet))),
        false => selected(),
    };
    match known.is_over(packet.now_ms) {
        Some(true) => vec![selected()],
        Some(false) => vec![tracked()],
        None => vec![tracked(), selected()],
    }
}

/// Whether the packet goes to the backend of its flow's entry.
fn keeps(known: &Known, plan: &proto::Plan, packet: &Packet) -> bool {
    let opens = packet.is_tcp && packet.kind == 0;
    let member =
        plan.groups[0].members.iter().find(|member| member.backend == known.backend).unwrap();
    match member.state() {
        BackendState::Active => true,
        BackendState::Draining => !(opens && known.class == EntryClass::Closing),
        BackendState::Down if plan.services[0].on_down() == proto::OnDown::Keep => {
            !(opens && known.class == EntryClass::Unconfirmed)
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn every_packet_goes_where_a_hash_map_would_send_it(
        on_down in 0i32..2,
        events in proptest::collection::vec(event(), 1..200),
    ) {
        let mut plan = message(4);
        plan.services[0].on_down = on_down;
        let mut machine = Machine::new(plan.clone(), 4096);
        let mut fresh = Machine::new(plan.clone(), 4096);
        // What each flow's entry may be.
        let mut model: HashMap<u16, Vec<Option<Known>>> = HashMap::new();
        let mut now_ms = 0u64;
        for event in events {
            match event {
                Event::State { backend, state } => {
                    plan.groups[0].members[backend].state = i32::from(state);
                    machine.set(plan.clone());
                    fresh.set(plan.clone());
                }
                Event::Packet { flow, kind, after_ms } => {
                    now_ms += u64::from(after_ms);
                    let (bytes, is_tcp) = packet(flow, kind);
                    // The table without memory: a machine that never saw the flow.
                    let by_hash = fresh_backend(&mut fresh, &bytes);
                    let got = machine.backend(after_ms, &bytes);
                    let packet = Packet { kind, is_tcp, now_ms, by_hash };
                    let before = model.remove(&flow).unwrap_or_else(|| vec![None]);
                    let mut expected = Vec::new();
                    let mut now: Vec<Option<Known>> = Vec::new();
                    for known in &before {
                        for (backend, next) in outcomes(known.as_ref(), &plan, &packet) {
                            if backend == got && !now.contains(&next) {
                                now.push(next);
                            }
                            expected.push(backend);
                        }
                    }
                    prop_assert!(!now.is_empty(), "{:?}, not one of {:?}: {:?}", got, expected, before);
                    model.insert(flow, now);
                }
            }
        }
    }
}

/// Flows of even number are UDP.
fn packet(flow: u16, kind: u8) -> (Vec<u8>, bool) {
    if flow.is_multiple_of(2) {
        return (udp(9, flow), false);
    }
    let kind = match kind {
        0 => Tcp::Syn,
        1 | 2 => Tcp::Ack,
        3 => Tcp::Fin,
        _ => Tcp::Rst,
    };
    (tcp(9, flow, kind), true)
}

fn fresh_backend(fresh: &mut Machine, bytes: &[u8]) -> Result<String, DropReason> {
    // Three hours later every entry has expired.
    fresh.backend(3 * 3_600_000, bytes)
}

fn after(known: &Known, packet: &Packet) -> Known {
    let refreshed = |class| Known { class, seen_ms: packet.now_ms, ..known.clone() };
    let (syn, fin, rst) = match packet.kind {
        _ if !packet.is_tcp => (false, false, false),
        kind => (kind == 0, kind == 3, kind == 4),
    };
    let confirmed = if fin { EntryClass::Closing } else { EntryClass::Confirmed };
    match known.class {
        EntryClass::Unconfirmed if syn => refreshed(EntryClass::Unconfirmed),
        // Ticks of 100 ms count from the start of time.
        EntryClass::Unconfirmed if rst || packet.now_ms / 100 == known.seen_ms / 100 => {
            known.clone()
        }
        EntryClass::Confirmed if syn => known.clone(),
        EntryClass::Confirmed if rst => refreshed(EntryClass::Reset),
        EntryClass::Closing | EntryClass::Reset if syn => refreshed(EntryClass::Reset),
        EntryClass::Closing | EntryClass::Reset if rst => known.clone(),
        EntryClass::Closing => refreshed(EntryClass::Closing),
        _ => refreshed(confirmed),
    }
}
