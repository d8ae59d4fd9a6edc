//! The programs' tables of rules (bpf/redirect.h).

use std::net::IpAddr;

use aya::maps::{Array, HashMap, MapData, MapError, RingBuf};
use ebpf::with_causes;
use wire::{FlowKey, Protocol};

use super::rule::{Action, Flow, Rule};
use crate::addresses::mapped;
use crate::flows::{self, now_seconds};

/// Of `struct rule`: address, until, zero.
const RULE_BYTES: usize = 24;
const UNTIL_AT: usize = 16;

/// Seconds that a connection's rule lasts: three times as long as until it is refreshed.
const CONNECTION_SECONDS: u32 = 100;

/// And a handshake's: longer than until the kernel's list shows its connection.
const HANDSHAKE_SECONDS: u32 = 20;

/// All of them.
pub struct Tables {
    /// New connections and handshakes here whose bucket another agent has.
    pub events: RingBuf<MapData>,
    /// These connections.
    pub away: HashMap<MapData, Flow, [u8; 16]>,
    /// The agents that rules may be requested of.
    pub agents: HashMap<MapData, [u8; 16], u32>,
    /// Whether this agent takes rules.
    pub takes_rules: Array<MapData, u32>,
    /// Rules for others.
    pub rules: Rules,
}

/// Rules for packets that other agents' connections get here.
pub struct Rules {
    connections: HashMap<MapData, Flow, [u8; RULE_BYTES]>,
    handshakes: HashMap<MapData, Flow, [u8; RULE_BYTES]>,
}

impl Rules {
    /// Of the programs' tables.
    pub fn new(
        connections: HashMap<MapData, Flow, [u8; RULE_BYTES]>,
        handshakes: HashMap<MapData, Flow, [u8; RULE_BYTES]>,
    ) -> Rules {
        Rules { connections, handshakes }
    }

    /// Does what an agent requests; false: there is no room.
    pub fn apply(&mut self, agent: IpAddr, rule: &Rule) -> bool {
        let flow = rule.flow;
        let lasting = |seconds: u32| {
            let mut value = [0; RULE_BYTES];
            value[..16].copy_from_slice(&mapped(agent));
            value[UNTIL_AT..UNTIL_AT + 4]
                .copy_from_slice(&now_seconds().wrapping_add(seconds).to_ne_bytes());
            value
        };
        match rule.action {
            Action::Handshake => {
                self.handshakes.insert(flow, lasting(HANDSHAKE_SECONDS), 0).is_ok()
            }
            Action::Connection => {
                let entered = self.connections.insert(flow, lasting(CONNECTION_SECONDS), 0);
                let _ = self.handshakes.remove(&flow);
                entered.is_ok()
            }
            Action::End => {
                // Another agent's connection may have the client's port by now.
                for table in [&mut self.connections, &mut self.handshakes] {
                    if table.get(&flow, 0).is_ok_and(|rule| rule[..16] == mapped(agent)) {
                        let _ = table.remove(&flow);
                    }
                }
                true
            }
        }
    }

    /// Takes out what was not refreshed; how many connections have rules.
    pub fn sweep(&mut self) -> usize {
        let now = now_seconds();
        let (mut gone, mut count) = (Vec::new(), 0);
        for (flow, rule) in self.connections.iter().flatten() {
            if holds(&rule, now) { count += 1 } else { gone.push(flow) }
        }
        for flow in &gone {
            let _ = self.connections.remove(flow);
        }
        count
    }

    /// The flows of connections with rules, as packets of their clients.
    pub fn flows(&self) -> Result<Vec<FlowKey>, String> {
        let now = now_seconds();
        let mut listed = Vec::new();
        for entry in self.connections.iter() {
            match entry {
                Ok((key, rule)) if holds(&rule, now) => {
                    listed.push(FlowKey { protocol: Protocol::TCP, ..flows::flow(&key) });
                }
                // One that was taken out meanwhile is gone.
                Ok(_) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(format!("cannot list rules: {}", with_causes(&error))),
            }
        }
        Ok(listed)
    }
}

fn holds(rule: &[u8; RULE_BYTES], now: u32) -> bool {
    let until = [rule[16], rule[17], rule[18], rule[19]];
    u32::from_ne_bytes(until).wrapping_sub(now).cast_signed() > 0
}
