//! Two load balancers whose bucket maps are a generation apart, and a router that sends each
//! packet to either of them: as long as every step of a move waits until both have the one
//! before, no connection breaks.
//!
//! The load balancers are real, and so are their plans and the bytes that they send. The
//! backends are a model of agents and of their kernels' sockets; the controller is a model that
//! moves buckets at random:
//!
//! ```text
//!  prepared  the old backend has the bucket, the new one is named to be tried
//!  moved     the new one has it, the old one is named
//!  closed    once nothing of it is left on the old one, no backend is named
//! ```

use std::collections::HashMap;

use crate::common::agents::{Answer, Backends, Flow, Packet, Socket, frame};
use crate::common::{Machine, Random, make_stateless, message};
use datapath::Verdict;
use plan::proto;
use wire::tunnel::route_option::ADDRESSES_MAX;

const BUCKETS: usize = 256;
const BACKENDS: u32 = 6;
const FLOWS_MAX: usize = 400;

/// A bucket, as the controller has it.
#[derive(Debug, Clone)]
struct Bucket {
    owner: u32,
    /// To be tried, the latest first.
    others: Vec<u32>,
    /// Prepared: the backend that gets it.
    next: Option<u32>,
}

/// Which rules the controller holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    All,
    /// Buckets move at once, without *prepared*.
    WithoutPrepared,
    /// The next map comes before all load balancers have the last one.
    WithoutAcknowledgement,
}

struct Controller {
    rules: Rules,
    message: proto::Plan,
    buckets: Vec<Bucket>,
    moved: u64,
    longest: usize,
}

impl Controller {
    fn new(rules: Rules) -> Controller {
        let mut message = message(BACKENDS as usize);
        message.backends[2].address = "2001:db8:1::13".into();
        let owners: Vec<u32> = (0..BUCKETS as u32).map(|bucket| bucket % BACKENDS).collect();
        make_stateless(&mut message, &owners);
        let bucket = |owner| Bucket { owner, others: Vec::new(), next: None };
        let buckets = owners.into_iter().map(bucket).collect();
        Controller { rules, message, buckets, moved: 0, longest: 0 }
    }

    /// One step of some buckets' moves.
    fn step(&mut self, random: &mut Random, lives: &[Vec<u32>]) {
        for (bucket, lives) in self.buckets.iter_mut().zip(lives) {
            if !random.one_in(4) {
                continue;
            }
            if let Some(next) = bucket.next.take() {
                move_to(bucket, next);
                self.moved += 1;
                continue;
            }
            bucket.others.retain(|other| lives.contains(other));
            let next = (bucket.owner + 1 + random.below(u64::from(BACKENDS) - 1) as u32) % BACKENDS;
            let chain = bucket.others.iter().filter(|other| **other != next).count() + 1;
            // What would be longer waits.
            if chain > ADDRESSES_MAX || !random.one_in(2) {
                continue;
            }
            if self.rules == Rules::WithoutPrepared {
                move_to(bucket, next);
                continue;
            }
            bucket.others.retain(|other| *other != next);
            bucket.others.insert(0, next);
            bucket.next = Some(next);
            self.longest = self.longest.max(chain);
        }
        self.message.generation += 1;
        let map = self.message.services[0].bucket_map.as_mut().unwrap();
        map.generation += 1;
        map.by_bucket = self.buckets.iter().map(|bucket| bucket.owner).collect();
        let moving = (0..).zip(&self.buckets).filter(|(_, bucket)| !bucket.others.is_empty());
        map.moves = moving
            .map(|(at, bucket)| proto::OpenMove { bucket: at, others: bucket.others.clone() })
            .collect();
    }
}

fn move_to(bucket: &mut Bucket, next: u32) {
    bucket.others.retain(|other| *other != next);
    bucket.others.insert(0, bucket.owner);
    bucket.others.truncate(ADDRESSES_MAX);
    bucket.owner = next;
}

/// What a client knows of its flow.
#[derive(Debug, Clone, Copy)]
enum Client {
    /// It has sent a SYN; `isn` is of the first SYN/ACK that came.
    Opening {
        isn: Option<u32>,
    },
    Open {
        isn: u32,
        backend: usize,
    },
    Udp {
        backend: usize,
    },
}

struct World {
    balancers: [Machine; 2],
    /// Of the map that each has.
    generations: [u64; 2],
    controller: Controller,
    backends: Backends,
    clients: HashMap<Flow, Client>,
    /// By flow, its bucket.
    buckets: HashMap<Flow, u32>,
    random: Random,
    broken: u64,
    next_port: u16,
}

impl World {
    fn new(rules: Rules, seed: u64) -> World {
        let controller = Controller::new(rules);
        let balancers = [(); 2].map(|()| Machine::new(controller.message.clone(), 10));
        World {
            backends: Backends::new(&controller.message),
            generations: [controller.message.generation; 2],
            balancers,
            controller,
            clients: HashMap::new(),
            buckets: HashMap::new(),
            random: Random(seed),
            broken: 0,
            next_port: 1024,
        }
    }

    /// By either load balancer.
    fn send(&mut self, flow: Flow, packet: Packet) -> Answer {
        let balancer = &mut self.balancers[self.random.below(2) as usize];
        let (verdict, journey, sent) = balancer.forward(1, &frame(flow, packet));
        assert!(matches!(verdict, Verdict::Send(_)), "{verdict:?}");
        self.buckets.insert(flow, journey.slot.unwrap());
        self.backends.receive(&sent)
    }

    fn round(&mut self) {
        for _ in 0..200 {
            self.act();
        }
        for at in 0..2 {
            if self.random.one_in(2) {
                self.update(at);
            }
        }
        let generation = self.controller.message.generation;
        let is_acknowledged = self.generations.iter().all(|one| *one == generation);
        if is_acknowledged || self.controller.rules == Rules::WithoutAcknowledgement {
            self.forget_half_open();
            let lives = self.lives();
            self.controller.step(&mut self.random, &lives);
        }
    }

    fn update(&mut self, at: usize) {
        self.balancers[at].set(self.controller.message.clone());
        self.generations[at] = self.controller.message.generation;
    }

    /// One packet of a flow, or a new flow.
    fn act(&mut self) {
        let flows: Vec<Flow> = {
            let mut flows: Vec<Flow> = self.clients.keys().copied().collect();
            flows.sort_unstable();
            flows
        };
        if flows.len() < FLOWS_MAX && self.random.one_in(8) {
            return self.open();
        }
        if flows.is_empty() {
            return;
        }
        let flow = self.random.pick(&flows);
        match self.clients[&flow] {
            Client::Opening { isn: None } => self.send_syn(flow),
            // A copy of the SYN that comes late.
            Client::Opening { .. } if self.random.one_in(4) => self.send_syn(flow),
            Client::Opening { isn: Some(isn) } => {
                match self.send(flow, Packet::Data { ack: isn + 1 }) {
                    Answer::Taken { by } => {
                        self.clients.insert(flow, Client::Open { isn, backend: by });
                    }
                    _ => self.breaks(flow),
                }
            }
            Client::Open { isn, backend } => {
                let ends = self.random.one_in(16);
                let ack = isn + 1;
                let packet = if ends { Packet::Fin { ack } } else { Packet::Data { ack } };
                if self.send(flow, packet) != (Answer::Taken { by: backend }) {
                    return self.breaks(flow);
                }
                if ends {
                    self.clients.remove(&flow);
                }
            }
            Client::Udp { .. } if self.random.one_in(16) => self.forget(flow),
            Client::Udp { backend } => {
                if self.send(flow, Packet::Datagram) != (Answer::Taken { by: backend }) {
                    self.breaks(flow);
                }
            }
        }
    }

    fn open(&mut self) {
        let flow = (0xc000_0200 + self.random.below(256) as u32, self.next_port);
        self.next_port = self.next_port.checked_add(1).unwrap_or(1024);
        if self.random.one_in(3) {
            let Answer::Taken { by } = self.send(flow, Packet::Datagram) else {
                panic!("UDP is always taken")
            };
            self.clients.insert(flow, Client::Udp { backend: by });
        } else {
            self.clients.insert(flow, Client::Opening { isn: None });
            self.send_syn(flow);
        }
    }

    /// The SYN/ACK may be lost; the first that comes counts.
    fn send_syn(&mut self, flow: Flow) {
        let Answer::SynAck { isn } = self.send(flow, Packet::Syn) else { return };
        let is_lost = self.random.one_in(3);
        if let Some(Client::Opening { isn: known @ None }) = self.clients.get_mut(&flow)
            && !is_lost
        {
            *known = Some(isn);
        }
    }

    fn breaks(&mut self, flow: Flow) {
        self.broken += 1;
        self.forget(flow);
    }

    fn forget(&mut self, flow: Flow) {
        self.clients.remove(&flow);
        for sockets in &mut self.backends.sockets {
            sockets.remove(&flow);
        }
    }

    /// Kernels give up on connections whose SYN/ACK is not the one that counted.
    fn forget_half_open(&mut self) {
        for sockets in &mut self.backends.sockets {
            sockets.retain(|flow, socket| match (*socket, self.clients.get(flow)) {
                (Socket::SynReceived { isn }, Some(Client::Opening { isn: known })) => {
                    known.is_none_or(|known| known == isn)
                }
                (Socket::SynReceived { .. }, _) => false,
                _ => true,
            });
        }
    }

    /// By bucket, the backends that have flows of it.
    fn lives(&self) -> Vec<Vec<u32>> {
        let mut lives = vec![Vec::new(); BUCKETS];
        for (backend, sockets) in (0..).zip(&self.backends.sockets) {
            sockets.keys().for_each(|flow| lives[self.buckets[flow] as usize].push(backend));
        }
        lives
    }
}

fn run(rules: Rules, seed: u64) -> World {
    let mut world = World::new(rules, seed);
    for _ in 0..150 {
        world.round();
    }
    world
}

#[test]
fn nothing_breaks_between_load_balancers_a_generation_apart() {
    for seed in 0..4 {
        let world = run(Rules::All, seed);
        assert_eq!(world.broken, 0, "seed {seed}");
        let Controller { moved, longest, .. } = world.controller;
        assert!(moved > 500 && longest == ADDRESSES_MAX, "{moved} moves, chains up to {longest}");
        assert!(world.backends.passed_on > 1000, "{} passed on", world.backends.passed_on);
    }
}

/// So that the test above can fail.
#[test]
fn each_rule_is_needed() {
    for rules in [Rules::WithoutPrepared, Rules::WithoutAcknowledgement] {
        assert!(run(rules, 0).broken > 0, "{rules:?}");
    }
}
