//! Load balancers that lose their tables, a router that sends flows to another of them at any
//! time, and backends that are added, drain and change their weights: a connection survives as
//! long as its backend is one of those that its packets name.
//!
//! The load balancers are real, and so are their plans and the bytes that they send;
//! the backends are a model of agents and sockets.

use std::collections::{BTreeMap, HashMap};

use crate::common::agents::{Answer, Backends, Flow, Packet, frame};
use crate::common::{self, Machine, Random, Tcp, message, tcp};
use datapath::Verdict;
use plan::proto;
use wire::tunnel::geneve;
use wire::tunnel::route_option::{ADDRESSES_MAX, RouteOption};

const BACKENDS: usize = 8;
const FLOWS_MAX: usize = 150;
const EARLIER_MAX: usize = 8;

type Table = BTreeMap<String, u32>;

/// What the controller does: changes the members, and keeps the tables before.
struct Controller {
    message: proto::Plan,
    earlier: Vec<Table>,
}

impl Controller {
    fn new() -> Controller {
        let mut message = message(BACKENDS);
        message.backends[2].address = "2001:db8:1::13".into();
        let service = &mut message.services[0];
        service.set_encap(proto::Encap::Geneve);
        service.second_chance = Some(proto::SecondChance { packets_per_second: 1_000_000 });
        Controller { message, earlier: Vec::new() }
    }

    fn table(&self) -> Table {
        let members = self.message.groups[0].members.iter();
        let active = members.filter(|member| member.state() == proto::BackendState::Active);
        active.map(|member| (member.backend.clone(), member.weight)).collect()
    }

    /// One backend drains, comes back, or has another weight; two remain.
    fn change(&mut self, random: &mut Random) {
        let before = self.table();
        let member = &mut self.message.groups[0].members[random.below(BACKENDS as u64) as usize];
        match member.state() {
            proto::BackendState::Active if before.len() > 2 && random.one_in(2) => {
                member.set_state(proto::BackendState::Draining);
            }
            _ => {
                member.set_state(proto::BackendState::Active);
                member.weight = 1 + random.below(2) as u32;
            }
        }
        let now = self.table();
        self.earlier.retain(|table| *table != before && *table != now);
        if now != before {
            self.earlier.insert(0, before);
        }
        self.earlier.truncate(EARLIER_MAX);
        self.message.generation += 1;
        self.message.groups[0].earlier = differences(&now, &self.earlier);
    }
}

fn differences(present: &Table, earlier: &[Table]) -> Vec<proto::EarlierTable> {
    let later = std::iter::once(present).chain(earlier);
    let tables = later.zip(earlier).map(|(later, table)| {
        let names = later.keys().chain(table.keys()).collect::<std::collections::BTreeSet<_>>();
        let differs = names.into_iter().filter(|name| later.get(*name) != table.get(*name));
        let member = |name: &String| proto::EarlierMember {
            backend: name.clone(),
            weight: table.get(name).copied().unwrap_or_default(),
        };
        proto::EarlierTable { differences: differs.map(member).collect() }
    });
    tables.collect()
}

struct World {
    controller: Controller,
    balancers: [Machine; 2],
    backends: Backends,
    /// Open ones: of the SYN/ACK, and the backend.
    clients: HashMap<Flow, (u32, usize)>,
    random: Random,
    /// Which load balancer the router sends a flow to.
    route: u64,
    next_port: u16,
    broken: u64,
    /// Connections that ended because their packets would no longer name their
    /// backend, of how many.
    displaced: u64,
    opened: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let controller = Controller::new();
        let balancers = [(); 2].map(|()| Machine::new(controller.message.clone(), 1000));
        World {
            backends: Backends::new(&controller.message),
            controller,
            balancers,
            clients: HashMap::new(),
            random: Random(seed),
            route: 0,
            next_port: 1024,
            broken: 0,
            displaced: 0,
            opened: 0,
        }
    }

    fn send(&mut self, flow: Flow, packet: Packet) -> Answer {
        let (client, port) = flow;
        let at = (u64::from(client) + u64::from(port) * 7 + self.route) % 2;
        let (verdict, _, sent) = self.balancers[at as usize].forward(1, &frame(flow, packet));
        assert!(matches!(verdict, Verdict::Send(_)), "{verdict:?}");
        self.backends.receive(&sent)
    }

    fn round(&mut self) {
        for _ in 0..60 {
            self.act();
        }
        self.route += self.random.below(2);
        if self.random.one_in(3) {
            // Another machine in the place of one.
            let at = self.random.below(2) as usize;
            self.balancers[at] = Machine::new(self.controller.message.clone(), 1000);
        }
        if self.random.one_in(6) {
            self.controller.change(&mut self.random);
            self.end_displaced();
            for balancer in &mut self.balancers {
                balancer.set(self.controller.message.clone());
            }
        }
    }

    fn act(&mut self) {
        let mut flows: Vec<Flow> = self.clients.keys().copied().collect();
        flows.sort_unstable();
        if flows.is_empty() || flows.len() < FLOWS_MAX && self.random.one_in(6) {
            return self.open();
        }
        let flow = self.random.pick(&flows);
        let (isn, backend) = self.clients[&flow];
        let (ack, ends) = (isn + 1, self.random.one_in(20));
        let packet = if ends { Packet::Fin { ack } } else { Packet::Data { ack } };
        let goes_on = self.send(flow, packet) == Answer::Taken { by: backend };
        self.broken += u64::from(!goes_on);
        if ends || !goes_on {
            self.forget(flow);
        }
    }

    fn open(&mut self) {
        let flow = (0xc000_0200 + self.random.below(256) as u32, self.next_port);
        self.next_port += 1;
        let Answer::SynAck { isn } = self.send(flow, Packet::Syn) else { panic!("a new port") };
        let is_at = |sockets: &HashMap<Flow, _>| sockets.contains_key(&flow);
        let backend = self.backends.sockets.iter().position(is_at).unwrap();
        self.clients.insert(flow, (isn, backend));
        self.opened += 1;
    }

    /// As a machine that knows nothing would send their packets.
    fn end_displaced(&mut self) {
        let mut fresh = Machine::new(self.controller.message.clone(), 1000);
        let flows: Vec<(Flow, usize)> =
            self.clients.iter().map(|(flow, (_, backend))| (*flow, *backend)).collect();
        for (flow, backend) in flows {
            let (_, journey, sent) = fresh.forward(1, &frame(flow, Packet::Data { ack: 1 }));
            let named = named_by(&sent);
            let chosen = fresh.view.plan.backend(journey.backend.unwrap()).unwrap().address;
            assert_eq!(journey.second_chance, !named.is_empty());
            assert!(named.len() <= ADDRESSES_MAX && !named.contains(&chosen));
            let address = self.backends.addresses[backend];
            if chosen != address && !named.contains(&address) {
                self.displaced += 1;
                self.forget(flow);
            }
        }
    }

    fn forget(&mut self, flow: Flow) {
        self.clients.remove(&flow);
        for sockets in &mut self.backends.sockets {
            sockets.remove(&flow);
        }
    }
}

/// The addresses of the route option, if there is one.
fn named_by(sent: &[u8]) -> Vec<std::net::IpAddr> {
    let datagram = if sent[14] >> 4 == 4 { &sent[34..] } else { &sent[54..] };
    let header = geneve::parse_with_options(&datagram[8..]).unwrap();
    let Some(option) = geneve::options(header.options).next() else { return Vec::new() };
    let option = RouteOption::parse(&option.unwrap()).unwrap().unwrap();
    assert_eq!((option.bucket, option.hop_limit, option.returns), (None, 4, false));
    option.addresses.to_vec()
}

#[test]
fn connections_go_on_over_changes_and_over_machines_that_know_nothing() {
    for seed in 0..6 {
        let mut world = World::new(seed);
        for _ in 0..120 {
            world.round();
        }
        let World { broken, displaced, opened, .. } = world;
        assert_eq!(broken, 0, "seed {seed}");
        let passed_on = world.backends.passed_on;
        assert!(
            opened > 400 && displaced < opened / 10 && passed_on > 200,
            "seed {seed}: {displaced} of {opened} displaced, {passed_on} packets passed on"
        );
    }
}

/// So that the test above can fail.
#[test]
fn without_a_second_chance_connections_break() {
    let mut world = World::new(0);
    world.controller.message.services[0].second_chance = None;
    for _ in 0..30 {
        for _ in 0..60 {
            world.act();
        }
        world.controller.change(&mut world.random);
        let message = world.controller.message.clone();
        world.balancers = [(); 2].map(|()| Machine::new(message.clone(), 1000));
    }
    assert!(world.broken > 20, "{} broke", world.broken);
}

/// Two tables, of which the earlier had only the second backend.
fn moved(packets_per_second: u64) -> Machine {
    let mut message = message(2);
    let service = &mut message.services[0];
    service.set_encap(proto::Encap::Geneve);
    service.second_chance = Some(proto::SecondChance { packets_per_second });
    message.groups[0].members[1].set_state(proto::BackendState::Draining);
    let member = |name: &str, weight| proto::EarlierMember { backend: name.into(), weight };
    let differences = vec![member("b001", 0), member("b002", 1)];
    message.groups[0].earlier = vec![proto::EarlierTable { differences }];
    Machine::new(message, 1000)
}

fn entries(machine: &Machine) -> usize {
    machine.tables[0].entries().count()
}

#[test]
fn only_tcp_that_opens_nothing_has_a_second_chance_and_it_makes_no_entry() {
    let mut machine = moved(1000);
    for (port, kind) in [(1000, Tcp::Ack), (1001, Tcp::Fin), (1002, Tcp::Rst)] {
        let (_, journey, sent) = machine.forward(1, &tcp(1, port, kind));
        assert!(journey.second_chance);
        assert_eq!(named_by(&sent), ["10.1.0.2".parse::<std::net::IpAddr>().unwrap()]);
    }
    assert_eq!(entries(&machine), 0);
    for (at, other) in [tcp(1, 1003, Tcp::Syn), common::udp(1, 1004)].iter().enumerate() {
        let (_, journey, sent) = machine.forward(1, other);
        assert!(!journey.second_chance && named_by(&sent).is_empty());
        assert_eq!(entries(&machine), at + 1);
    }
    // What the SYN began is tracked.
    let (_, journey, sent) = machine.forward(200, &tcp(1, 1003, Tcp::Ack));
    assert!(!journey.second_chance && named_by(&sent).is_empty());
}

#[test]
fn beyond_its_limit_a_packet_is_forwarded_as_without() {
    let mut machine = moved(10);
    let chances = |machine: &mut Machine, from: u16| {
        let acks = (from..from + 50).map(|port| machine.forward(0, &tcp(1, port, Tcp::Ack)).1);
        acks.filter(|journey| journey.second_chance).count()
    };
    assert_eq!(chances(&mut machine, 1000), 10);
    assert_eq!(entries(&machine), 40);
    machine.wait(500);
    assert_eq!(chances(&mut machine, 2000), 5);
    let counters = &machine.counters(0).second_chances;
    assert_eq!((counters.sent.get(), counters.limited.get()), (15, 85));
}

#[test]
fn a_backend_that_keeps_no_connections_is_not_named() {
    let mut machine = moved(1000);
    let mut message = machine.view.plan.message.clone();
    message.generation += 1;
    message.groups[0].members[1].set_state(proto::BackendState::Disabled);
    machine.set(message);
    let (_, journey, sent) = machine.forward(1, &tcp(1, 1000, Tcp::Ack));
    assert!(!journey.second_chance && named_by(&sent).is_empty());
}
