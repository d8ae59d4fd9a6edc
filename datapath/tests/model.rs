//! The connection table against a plain HashMap, on random traffic.
//!
//! The model knows no buckets: with a table that never fills, every packet's
//! backend must be the model's.

mod common;

use std::collections::HashMap;

use common::{Machine, Tcp, message, tcp, udp};
use plan::proto::BackendState;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Event {
    /// A packet of that kind of that flow, so many milliseconds later.
    Packet { flow: u16, kind: u8, after_ms: u32 },
    /// A backend's state changes.
    State { backend: usize, state: u8 },
}

fn event() -> impl Strategy<Value = Event> {
    let after_ms = prop_oneof![8 => 0u32..200, 3 => 200u32..20_000, 1 => 20_000u32..200_000, 1 => 900_000u32..2_000_000];
    prop_oneof![
        20 => (1u16..40, 0u8..5, after_ms).prop_map(|(flow, kind, after_ms)| Event::Packet { flow, kind, after_ms }),
        1 => (0usize..4, 1u8..5).prop_map(|(backend, state)| Event::State { backend, state }),
    ]
}

/// What the model remembers of a flow.
#[derive(Debug, Clone, PartialEq)]
struct Known {
    backend: String,
    confirmed: bool,
    closing: bool,
    reset: bool,
    tcp: bool,
    since_ms: u64,
    seen_ms: u64,
}

impl Known {
    /// Idle for long enough that it must be gone, or so short that it must
    /// be there; None: in between, ticks decide.
    fn is_over(&self, now_ms: u64) -> Option<bool> {
        let (timeout_ms, slack_ms) = match (self.confirmed, self.closing, self.reset, self.tcp) {
            (_, true, ..) => (120_000, 4_000),
            (_, _, true, _) => (10_000, 4_000),
            (true, _, _, true) => (900_000, 17_000),
            (true, _, _, false) => (60_000, 17_000),
            (false, ..) => (30_000, 400),
        };
        // A busy flow's time is written only once in a tick, so idleness
        // counts from the first packet of that tick.
        let idle_ms = now_ms - self.seen_ms;
        if idle_ms + 8_192 <= timeout_ms {
            Some(false)
        } else if idle_ms > timeout_ms + slack_ms {
            Some(true)
        } else {
            None
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_packet_goes_where_a_hash_map_would_send_it(events in proptest::collection::vec(event(), 1..200)) {
        let mut plan = message(4);
        let mut machine = Machine::new(plan.clone(), 4096);
        let mut fresh = Machine::new(plan.clone(), 4096);
        let mut model: HashMap<u16, Known> = HashMap::new();
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
                    let opens = is_tcp && kind == 0;
                    // The table without memory: a machine that never saw the flow.
                    let by_hash = fresh_backend(&mut fresh, &bytes);
                    let got = machine.backend(after_ms, &bytes);
                    let known = model.get(&flow).cloned();
                    let over = known.as_ref().map(|known| known.is_over(now_ms));
                    if over == Some(None) {
                        // In between: whatever it did is right; learn it anew.
                        model.remove(&flow);
                        prop_assume!(false);
                    }
                    let known = known.filter(|_| over == Some(Some(false)));
                    let state = |backend: &str| plan.groups[0].members.iter().find(|member| member.backend == backend).unwrap().state();
                    let keeps = known.as_ref().filter(|known| match state(&known.backend) {
                        BackendState::Active => !(opens && (known.closing || known.reset)),
                        BackendState::Draining => !opens,
                        _ => false,
                    });
                    match keeps {
                        Some(known) => {
                            prop_assert_eq!(got.as_ref().ok(), Some(&known.backend));
                            let next = after(known, kind, is_tcp, now_ms);
                            model.insert(flow, next);
                        }
                        None => {
                            prop_assert_eq!(&got, &by_hash);
                            match got {
                                Ok(backend) => { model.insert(flow, Known { backend, confirmed: false, closing: false, reset: false, tcp: is_tcp, since_ms: now_ms, seen_ms: now_ms }); }
                                // No backend: the old entry stays until it expires.
                                Err(_) => prop_assume!(known.is_none()),
                            }
                        }
                    }
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

fn fresh_backend(fresh: &mut Machine, bytes: &[u8]) -> Result<String, datapath::DropReason> {
    // Three hours later every entry has expired.
    fresh.backend(3 * 3_600_000, bytes)
}

fn after(known: &Known, kind: u8, is_tcp: bool, now_ms: u64) -> Known {
    let mut next = known.clone();
    let (syn, fin, rst) = (kind == 0 && is_tcp, kind == 3 && is_tcp, kind == 4 && is_tcp);
    if !known.confirmed && !known.closing && !known.reset {
        // Ticks of 100 ms count from the start of time.
        let later_tick = now_ms / 100 != known.since_ms / 100;
        if syn {
            next.since_ms = now_ms;
            next.seen_ms = now_ms;
        } else if later_tick && !rst {
            next.confirmed = !fin;
            next.closing = fin;
            next.seen_ms = now_ms;
        }
        return next;
    }
    if known.reset {
        if !rst {
            next = Known { reset: false, confirmed: !fin, closing: fin, seen_ms: now_ms, ..next };
        }
    } else if known.closing {
        if !rst {
            next.seen_ms = now_ms;
        }
    } else if rst {
        next = Known { reset: true, confirmed: false, seen_ms: now_ms, ..next };
    } else if fin {
        next = Known { closing: true, confirmed: false, seen_ms: now_ms, ..next };
    } else if !syn {
        next.seen_ms = now_ms;
    }
    next
}
