//! The programs' tables of rules (bpf/redirect.h).

use std::collections::BTreeMap;
use std::net::IpAddr;

use aya::maps::{Array, HashMap, MapData, MapError, RingBuf};
use ebpf::{Record, with_causes};
use wire::{FlowKey, Protocol};

use super::HANDSHAKES_MAX;
use super::rule::{Action, Rule};
use crate::config::Config;
use crate::flows::{self, now_seconds};
use crate::records::{self, Address, Flow, mapped};

/// Connections that have rules: `REDIRECTS_MAX` in bpf/redirect.h.
const CONNECTIONS_MAX: usize = 131_072;

/// Seconds that a connection's rule lasts: three times as long as until it is refreshed.
const CONNECTION_SECONDS: u32 = 100;

/// And a handshake's: longer than until the kernel's list shows its connection.
const HANDSHAKE_SECONDS: u32 = 20;

/// All of them.
pub struct Tables {
    /// New connections and handshakes here whose bucket another agent has.
    pub events: RingBuf<MapData>,
    /// These connections.
    pub away: HashMap<MapData, Record<Flow>, Address>,
    /// The agents that rules may be requested of.
    pub agents: HashMap<MapData, Address, u32>,
    /// Whether this agent takes rules.
    pub takes_rules: Array<MapData, u32>,
    /// Rules for others.
    pub rules: Rules,
}

/// Rules for packets that other agents' connections get here. A rule is its maker's until
/// it has ended: no other agent takes its place or ends it. And none fills a table: where
/// there are several, one has another rule while it has fewer than there is room left.
pub struct Rules {
    connections: Table,
    handshakes: Table,
    agents: Agents,
}

/// What became of what an agent requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It was done.
    Done,
    /// The agent has as many rules as it may have.
    NoRoom,
    /// The flow has a rule of another agent.
    OtherAgent,
}

/// The number of the agent with an address; one of none is of a former config.
struct Agents(BTreeMap<Address, usize>);

impl Agents {
    fn of(&self, rule: &records::Rule) -> Option<usize> {
        self.0.get(&rule.agent).copied()
    }
}

/// A table of the programs', and how many rules in it each agent has.
struct Table {
    rules: HashMap<MapData, Record<Flow>, Record<records::Rule>>,
    room: usize,
    counts: Vec<usize>,
}

impl Rules {
    /// Of the programs' tables, which may have a predecessor's rules.
    pub fn new(
        connections: HashMap<MapData, Record<Flow>, Record<records::Rule>>,
        handshakes: HashMap<MapData, Record<Flow>, Record<records::Rule>>,
        config: &Config,
    ) -> Rules {
        let others = config.agents.iter().filter(|(name, _)| **name != config.name);
        let numbers = others.clone().enumerate().flat_map(|(number, (_, addresses))| {
            addresses.iter().map(move |address| (mapped(*address), number))
        });
        let agents = Agents(numbers.collect());
        let table = |rules, room| Table { rules, room, counts: vec![0; others.clone().count()] };
        let connections = table(connections, CONNECTIONS_MAX);
        let handshakes = table(handshakes, HANDSHAKES_MAX);
        let mut rules = Rules { connections, handshakes, agents };
        rules.sweep();
        rules
    }

    /// Does what the agent with an address requests.
    pub fn apply(&mut self, address: IpAddr, rule: &Rule) -> Applied {
        let Rules { connections, handshakes, agents } = self;
        let (flow, address) = (&rule.flow, mapped(address));
        // The server has looked that it is one of ours.
        let Some(agent) = agents.0.get(&address).copied() else { return Applied::OtherAgent };
        // Another agent's connection may have the client's port by now.
        let is_others = |table: &Table| table.holder(flow, agents).is_some_and(|of| of != agent);
        match rule.action {
            Action::End => {
                connections.remove(flow, agent, agents);
                handshakes.remove(flow, agent, agents);
                Applied::Done
            }
            _ if is_others(connections) || is_others(handshakes) => Applied::OtherAgent,
            Action::Handshake => {
                handshakes.enter(flow, &lasting(address, HANDSHAKE_SECONDS), agent, agents)
            }
            Action::Connection => {
                let value = lasting(address, CONNECTION_SECONDS);
                let applied = connections.enter(flow, &value, agent, agents);
                handshakes.remove(flow, agent, agents);
                applied
            }
        }
    }

    /// Takes out what was not refreshed; how many connections have rules.
    pub fn sweep(&mut self) -> usize {
        self.handshakes.sweep(&self.agents);
        self.connections.sweep(&self.agents)
    }

    /// The flows of connections with rules, as packets of their clients.
    pub fn flows(&self) -> Result<Vec<FlowKey>, String> {
        let now = now_seconds();
        let mut listed = Vec::new();
        for entry in self.connections.rules.iter() {
            match entry {
                Ok((Record(flow), Record(rule))) if holds(&rule, now) => {
                    listed.push(flows::key_of(&flow, Protocol::TCP));
                }
                // One that was taken out meanwhile is gone.
                Ok(_) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(format!("cannot list rules: {}", with_causes(&error))),
            }
        }
        Ok(listed)
    }
}

impl Table {
    /// The agent whose rule a flow has; one of a former config's agents is nobody's.
    fn holder(&self, flow: &Flow, agents: &Agents) -> Option<usize> {
        let Record(rule) = self.rules.get(&Record(*flow), 0).ok()?;
        holds(&rule, now_seconds()).then(|| agents.of(&rule))?
    }

    /// A flow's rule of this agent, which no other one has.
    fn enter(
        &mut self,
        flow: &Flow,
        rule: &records::Rule,
        agent: usize,
        agents: &Agents,
    ) -> Applied {
        let former = self.rules.get(&Record(*flow), 0).ok().map(|rule| agents.of(&rule.0));
        if former != Some(Some(agent)) && !self.has_room(agent) {
            return Applied::NoRoom;
        }
        if self.rules.insert(Record(*flow), Record(*rule), 0).is_err() {
            return Applied::NoRoom;
        }
        if let Some(Some(former)) = former {
            self.counts[former] = self.counts[former].saturating_sub(1);
        }
        self.counts[agent] += 1;
        Applied::Done
    }

    fn has_room(&self, agent: usize) -> bool {
        let left = self.room.saturating_sub(self.counts.iter().sum());
        left > 0 && (self.counts.len() == 1 || self.counts[agent] < left)
    }

    /// If it is this agent's.
    fn remove(&mut self, flow: &Flow, agent: usize, agents: &Agents) {
        let flow = Record(*flow);
        let is_its = |rule: Record<_>| agents.of(&rule.0) == Some(agent);
        if self.rules.get(&flow, 0).is_ok_and(is_its) && self.rules.remove(&flow).is_ok() {
            self.counts[agent] = self.counts[agent].saturating_sub(1);
        }
    }

    /// Takes out what is over, and counts anew: the kernel may have displaced some. How many
    /// there are.
    fn sweep(&mut self, agents: &Agents) -> usize {
        let now = now_seconds();
        let (mut gone, mut count) = (Vec::new(), 0);
        self.counts.fill(0);
        for (flow, Record(rule)) in self.rules.iter().flatten() {
            if !holds(&rule, now) {
                gone.push(flow);
                continue;
            }
            count += 1;
            agents.of(&rule).into_iter().for_each(|agent| self.counts[agent] += 1);
        }
        for flow in &gone {
            let _ = self.rules.remove(flow);
        }
        count
    }
}

fn lasting(agent: Address, seconds: u32) -> records::Rule {
    records::Rule { agent, until: now_seconds().wrapping_add(seconds), zero: 0 }
}

fn holds(rule: &records::Rule, now: u32) -> bool {
    rule.until.wrapping_sub(now).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Program;

    const Y: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 2));
    const Z: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 3));

    /// With a program, which holds the tables.
    fn rules_of(agents: &str) -> (Rules, Program) {
        let text = format!(
            "{{interface: eth0, load_balancers: [10.0.0.1], vips: [203.0.113.10], name: x, agents: {{{agents}}}}}"
        );
        let config = Config::parse("config", &text).unwrap();
        let mut program = Program::load(crate::attachment::Place::Tc, None).unwrap();
        (program.redirects(&config).unwrap().rules, program)
    }

    fn rule(action: Action, number: u32) -> Rule {
        let (client, vip) = (mapped(number.to_be_bytes().into()), [0; 16]);
        let flow = Flow { client, vip, client_port: 0.into(), vip_port: 0.into() };
        Rule { action, flow }
    }

    #[test]
    fn a_rule_is_its_makers_until_it_has_ended() {
        if !testnet::root_or_skip("a_rule_is_its_makers_until_it_has_ended") {
            return;
        }
        let (mut rules, _program) =
            rules_of("x: [10.1.0.1, '2001:db8::1'], y: [10.1.0.2, '2001:db8::2'], z: 10.1.0.3");
        let of_y = ["10.1.0.2", "2001:db8::2"].map(|text| text.parse::<IpAddr>().unwrap());
        for (number, first) in [(1, Action::Connection), (2, Action::Handshake)] {
            assert_eq!(rules.apply(Y, &rule(first, number)), Applied::Done);
            let held = |rules: &Rules| {
                let tables = [&rules.connections, &rules.handshakes];
                tables.map(|table| table.rules.get(&Record(rule(first, number).flow), 0).ok())
            };
            let before = held(&rules);
            for action in [Action::Handshake, Action::Connection] {
                assert_eq!(rules.apply(Z, &rule(action, number)), Applied::OtherAgent);
            }
            assert_eq!(rules.apply(Z, &rule(Action::End, number)), Applied::Done);
            assert_eq!(held(&rules), before);
            // By either of its addresses it is the same agent.
            for address in of_y {
                assert_eq!(rules.apply(address, &rule(first, number)), Applied::Done);
                assert_eq!(rules.apply(address, &rule(Action::Connection, number)), Applied::Done);
            }
            assert_eq!(rules.apply(Y, &rule(Action::End, number)), Applied::Done);
            assert_eq!(held(&rules), [None; 2]);
            assert_eq!(rules.apply(Z, &rule(Action::Connection, number)), Applied::Done);
        }
        // What has not been refreshed is nobody's.
        let over = Record(lasting(mapped(Y), 0));
        rules.connections.rules.insert(Record(rule(Action::End, 3).flow), over, 0).unwrap();
        assert_eq!(rules.apply(Z, &rule(Action::Connection, 3)), Applied::Done);
        assert_eq!(rules.sweep(), 3);
    }

    #[test]
    fn one_agent_leaves_room_for_the_others_rules() {
        if !testnet::root_or_skip("one_agent_leaves_room_for_the_others_rules") {
            return;
        }
        let (mut rules, _program) = rules_of("x: 10.1.0.1, y: 10.1.0.2, z: 10.1.0.3");
        for (action, room) in
            [(Action::Handshake, HANDSHAKES_MAX), (Action::Connection, CONNECTIONS_MAX)]
        {
            let numbers = 0..room as u32 + 1;
            let apply =
                |rules: &mut Rules, agent, number| rules.apply(agent, &rule(action, number));
            let done = numbers
                .clone()
                .filter(|number| apply(&mut rules, Z, *number) == Applied::Done)
                .count();
            assert_eq!(done, room / 2);
            assert_eq!(apply(&mut rules, Z, 0), Applied::Done, "refreshed");
            assert_eq!(apply(&mut rules, Z, 1 << 20), Applied::NoRoom);
            let others = (1 << 24..).take(room / 4);
            assert!(others.into_iter().all(|n| apply(&mut rules, Y, n) == Applied::Done));
            assert_eq!(apply(&mut rules, Y, 1 << 25), Applied::NoRoom);
            assert_eq!(rules.apply(Z, &rule(Action::End, 0)), Applied::Done);
            rules.sweep();
            assert_eq!(apply(&mut rules, Y, 1 << 25), Applied::Done, "of what has ended");
        }
        // A restarted agent counts what it finds; alone, an agent has all of it.
        let config = "{interface: eth0, load_balancers: [10.0.0.1], vips: [203.0.113.10], name: x, agents: {x: 10.1.0.1, z: 10.1.0.3}}";
        let config = Config::parse("config", config).unwrap();
        let Rules { connections, handshakes, .. } = rules;
        let mut rules = Rules::new(connections.rules, handshakes.rules, &config);
        assert_eq!(rules.connections.counts, [CONNECTIONS_MAX / 2 - 1]);
        assert_eq!(rules.apply(Z, &rule(Action::Connection, 1 << 20)), Applied::Done);
    }
}
