//! The tokens of the connections that live here. A new connection must not have the token
//! of another one, and a joining SYN goes to the kernel only if it names one of them.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use aya::maps::{HashMap as Table, MapData};
use ebpf::with_causes;

use crate::records::Flow;

/// How long a handshake may take until the kernel has its connection: more than clients
/// repeat SYNs for.
const HANDSHAKE: Duration = Duration::from_secs(180);

/// Entries: `TOKENS_MAX` in bpf/handshake.h. Of connections beyond them those that join
/// after a move of their bucket are reset.
const TOKENS_MAX: usize = 1 << 20;

/// What a connection is known by until the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Opened {
    flow: Flow,
    sequence: u32,
    at: Instant,
}

/// All of them; the program's table has the same.
pub struct Tokens {
    table: Table<MapData, [u8; 4], u32>,
    /// None: the kernel listed it, and the SYN was before this agent's start.
    known: HashMap<u32, Option<Opened>>,
}

impl Tokens {
    /// Of the program's empty table.
    pub fn new(table: Table<MapData, [u8; 4], u32>) -> Tokens {
        Tokens { table, known: HashMap::new() }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// True if the connection that this SYN opens may have this token: no other has it.
    pub fn is_free(&self, token: u32, flow: &Flow, sequence: u32) -> bool {
        self.known.get(&token).is_none_or(|known| {
            known.is_some_and(|opened| opened.flow == *flow && opened.sequence == sequence)
        })
    }

    /// Enters one that is free, until the kernel lists its connection or none is made.
    pub fn claim(&mut self, token: u32, flow: &Flow, sequence: u32) {
        let opened = Opened { flow: *flow, sequence, at: Instant::now() };
        match self.known.get_mut(&token) {
            Some(known) => *known = Some(opened),
            None => self.enter(token, Some(opened)),
        }
    }

    /// Follows the kernel's list of its connections' tokens.
    pub fn follow(&mut self, listed: &HashSet<u32>) {
        let gone: Vec<u32> = self
            .known
            .iter()
            .filter(|(token, opened)| {
                let is_new = opened.is_some_and(|opened| opened.at.elapsed() < HANDSHAKE);
                !listed.contains(token) && !is_new
            })
            .map(|(token, _)| *token)
            .collect();
        for token in gone {
            self.known.remove(&token);
            // One that was not entered for want of room is not there.
            let _ = self.table.remove(&token.to_be_bytes());
        }
        for token in listed {
            if !self.known.contains_key(token) {
                self.enter(*token, None);
            }
        }
    }

    fn enter(&mut self, token: u32, opened: Option<Opened>) {
        if self.known.len() >= TOKENS_MAX {
            return;
        }
        self.known.insert(token, opened);
        if let Err(error) = self.table.insert(token.to_be_bytes(), 1, 0) {
            tracing::warn!("cannot enter a token: {}", with_causes(&error));
        }
    }
}
