//! Handles rules that other agents request from this one. Pure: datagrams and times in,
//! rules and answers out.
//!
//! A request is accepted if it presents the nonce of its sender's session, and a higher
//! sequence number than the previous one. A request with the nonce that would begin the
//! next session begins it. Any other is answered with that nonce, which is a function of a
//! key drawn at the start, the sender's name and boot, and its number of sessions so far:
//! no recorded request can be used after a restart of either side.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::rule::{self, Rule};
use crate::config::{Config, Keys};
use crate::datagram::{self, Header, Kind, Nonce, Refused};

/// Datagrams of one agent in a second.
const RATE_MAX: u32 = 4096;

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// It counts.
    Rules {
        /// Of services here.
        rules: Vec<Rule>,
        /// Those of others, which are left out.
        others: usize,
        /// What its sender gets.
        answer: Vec<u8>,
    },
    /// It does not, and its sender gets this.
    Challenged(Vec<u8>),
    /// It has the session's nonce, and was received before, or later ones were.
    Replayed,
    /// Its source is no agent of the config, or one without a key here.
    UnknownAgent,
    /// Its sender sends too many.
    RateLimited,
    /// It was refused.
    Refused(Refused),
}

struct Peer {
    own: Keys,
    other: Keys,
    /// How many sessions it has had; the latest one's boot and sequence.
    sessions: u64,
    boot: u64,
    sequence: u64,
    /// Datagrams since then.
    window: Instant,
    received: u32,
}

/// This agent's side of others' requests.
pub struct Server {
    start: [u8; 32],
    by_address: HashMap<IpAddr, String>,
    peers: HashMap<String, Peer>,
    services: HashSet<SocketAddr>,
}

impl Server {
    /// `start` differs each time this agent starts.
    pub fn new(config: &Config, start: [u8; 32], now: Instant) -> Server {
        let keys = super::pairs(config);
        let peers = keys.into_iter().map(|(name, (own, other))| {
            let peer =
                Peer { own, other, sessions: 0, boot: 0, sequence: 0, window: now, received: 0 };
            (name, peer)
        });
        let agents = config.agents.iter();
        let by_address = agents
            .flat_map(|(name, addresses)| addresses.iter().map(|address| (*address, name.clone())));
        Server {
            start,
            by_address: by_address.collect(),
            peers: peers.collect(),
            services: config.multipath.iter().copied().collect(),
        }
    }

    /// Takes a datagram from an address.
    pub fn receive(&mut self, source: IpAddr, bytes: &[u8], now: Instant) -> Received {
        let Some(peer) = self.by_address.get(&source).and_then(|name| self.peers.get_mut(name))
        else {
            return Received::UnknownAgent;
        };
        if now.saturating_duration_since(peer.window).as_secs() >= 1 {
            (peer.window, peer.received) = (now, 0);
        }
        peer.received += 1;
        if peer.received > RATE_MAX {
            return Received::RateLimited;
        }
        let (header, body) = match datagram::parse(&peer.other, bytes) {
            Ok((header, body)) if header.kind == Kind::Rules => (header, body),
            Ok(_) => return Received::Refused(Refused::Malformed),
            Err(refused) => return Received::Refused(refused),
        };
        let Some(rules) = rule::parse(body) else {
            return Received::Refused(Refused::Malformed);
        };
        let is_present = peer.sessions > 0 && header.boot == peer.boot;
        if is_present && header.nonce == nonce(&self.start, peer, header.boot, peer.sessions) {
            if header.sequence <= peer.sequence {
                return Received::Replayed;
            }
        } else {
            let next = nonce(&self.start, peer, header.boot, peer.sessions + 1);
            if header.nonce != next {
                return Received::Challenged(answer(peer, &header, next));
            }
            (peer.sessions, peer.boot) = (peer.sessions + 1, header.boot);
        }
        peer.sequence = header.sequence;
        let all = rules.len();
        let services = &self.services;
        let rules: Vec<Rule> =
            rules.into_iter().filter(|rule| services.contains(&rule.flow.service())).collect();
        let answer = answer(peer, &header, header.nonce);
        Received::Rules { others: all - rules.len(), rules, answer }
    }
}

fn answer(peer: &Peer, to: &Header, nonce: Nonce) -> Vec<u8> {
    let header = Header { kind: Kind::RulesAnswer, part: 0, parts: 1, nonce, ..*to };
    datagram::emit(&peer.own, &header, &[])
}

fn nonce(start: &[u8; 32], peer: &Peer, boot: u64, session: u64) -> Nonce {
    let mac = Hmac::<Sha256>::new_from_slice(start).expect("any length is a key");
    let mac = mac.chain_update(boot.to_be_bytes()).chain_update(session.to_be_bytes());
    let code = mac.chain_update(&peer.other.agent).finalize().into_bytes();
    code[..16].try_into().expect("16 bytes")
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
