//! Counters about rules, by name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// All events, in the order of metrics.
pub const EVENTS: [&str; 19] = [
    "requested",
    "granted",
    "gave_up",
    "challenged",
    "answer_outdated",
    "answer_refused",
    "no_key",
    "no_room_here",
    "taken",
    "challenge_sent",
    "replayed",
    "malformed",
    "other_key",
    "forged",
    "unknown_agent",
    "other_service",
    "other_agent",
    "no_room",
    "rate_limited",
];

/// How rules stand.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Other agents that take rules of this one.
    pub agents: usize,
    /// Rules that others are to have for connections and handshakes here.
    pub requested: usize,
    /// Those of them that are not known to be there.
    pub pending: usize,
    /// Connections of other agents that rules here lead to.
    pub rules: usize,
    /// Why rules are not requested of all others; absent where they are.
    pub problem: Option<String>,
    /// By name.
    pub events: BTreeMap<String, u64>,
}

/// The state as metrics and status read it.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<State>>);

impl Shared {
    /// As it is now, with every event.
    pub fn read(&self) -> State {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for name in EVENTS {
            state.events.entry(name.to_string()).or_default();
        }
        state
    }

    /// Counts an event, which is one of [`EVENTS`].
    pub fn add(&self, event: &str, count: usize) {
        debug_assert!(EVENTS.contains(&event), "{event}");
        self.change(|state| *state.events.entry(event.to_string()).or_default() += count as u64);
    }

    /// Changes it.
    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
