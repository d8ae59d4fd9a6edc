//! Code shared by the tests: plans, packets and a load balancer that forwards one packet at a
//! time.

pub mod agents;

use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use datapath::{DropReason, Egress, FlowHash, Journey, NextHop, Secret, Verdict, View};
use etherparse::{IpHeaders, PacketBuilder, PacketBuilderStep};
use plan::{Planner, proto};
use sim::{LoadBalancer, OriginatedFrame, Path, Setup};

/// A plan with the service `web` on 203.0.113.10 (any protocol and port) and
/// backends b1 … bn, all active.
pub fn message(backends: usize) -> proto::Plan {
    let names: Vec<String> = (1..=backends).map(|i| format!("b{i:03}")).collect();
    proto::Plan {
        generation: 1,
        machine: Some(proto::Machine {
            name: "lb-1".into(),
            addresses: vec!["10.0.0.1".into(), "2001:db8::1".into()],
            routers: Vec::new(),
        }),
        backends: (1..=backends)
            .map(|i| proto::Backend {
                name: format!("b{i:03}"),
                address: format!("10.1.{}.{}", i / 256, i % 256),
            })
            .collect(),
        services: vec![proto::Service {
            name: "web".into(),
            vips: vec![vip("203.0.113.10"), vip("2001:db8:f::10")],
            group: "web".into(),
            table_size: 1009,
            ..Default::default()
        }],
        groups: vec![proto::Group {
            name: "web".into(),
            members: names
                .into_iter()
                .map(|backend| proto::Member {
                    backend,
                    weight: 1,
                    state: proto::BackendState::Active as i32,
                })
                .collect(),
            earlier: Vec::new(),
        }],
        ..Default::default()
    }
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Writes the checksum of an IPv4 header without options, after a change.
pub fn sum_v4(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = wire::checksum::finish(wire::checksum::sum(&frame[14..34]));
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Makes the first service stateless: by bucket, the index of a member of its
/// group.
pub fn make_stateless(message: &mut proto::Plan, by_bucket: &[u32]) {
    let members = &message.groups[0].members;
    let map = proto::BucketMap {
        generation: 1,
        backends: members.iter().map(|member| member.backend.clone()).collect(),
        by_bucket: by_bucket.to_vec(),
        moves: Vec::new(),
    };
    let service = &mut message.services[0];
    service.set_mode(proto::Mode::Stateless);
    service.set_encap(proto::Encap::Geneve);
    service.bucket_map = Some(map);
}

pub fn vip(address: &str) -> proto::Vip {
    proto::Vip { target: Some(proto::vip::Target::Address(address.into())), ..Default::default() }
}

/// More than any test has next hops on.
const DEVICES: usize = 8;

/// A load balancer of one worker, by the specification.
pub struct Machine {
    planner: Planner,
    balancer: LoadBalancer,
    /// What was originated since this was emptied, in order.
    pub originated: Vec<OriginatedFrame>,
    pub now_ms: u32,
}

impl Machine {
    pub fn new(message: proto::Plan, connections: u64) -> Machine {
        Machine::with_secret(message, connections, secret())
    }

    pub fn with_secret(message: proto::Plan, connections: u64, secret: Secret) -> Machine {
        let mut planner = Planner::default();
        let view = view(&mut planner, message);
        let path = Path::Specification;
        let setup = Setup { workers: 0..1, devices: DEVICES, connections, secret, path };
        let balancer = LoadBalancer::new(view, setup).unwrap();
        Machine { planner, balancer, originated: Vec::new(), now_ms: 0 }
    }

    pub fn set(&mut self, message: proto::Plan) {
        self.view = view(&mut self.planner, message);
    }

    /// From now on these are the next hops towards each address.
    pub fn set_next_hops(&mut self, resolve: impl FnMut(IpAddr) -> Vec<NextHop>) {
        let egress = Egress::new(&self.view.plan, &hash(), resolve);
        self.view = Arc::new(self.view.with_egress(egress));
    }

    /// Lets time pass, and the table be swept.
    pub fn wait(&mut self, after_ms: u32) {
        self.now_ms += after_ms;
        let now_ms = self.now_ms.into();
        self.set_time(now_ms);
    }

    /// Forwards one packet `after_ms` later; gives verdict and journey.
    pub fn forward(&mut self, after_ms: u32, bytes: &[u8]) -> (Verdict, Journey, Vec<u8>) {
        self.wait(after_ms);
        let outcome = self.balancer.forward(0, 0, &[bytes]).remove(0);
        self.originated.extend(outcome.originated);
        (outcome.verdict, outcome.journey, outcome.frame)
    }

    /// The backend's name that a packet goes to.
    pub fn backend(&mut self, after_ms: u32, bytes: &[u8]) -> Result<String, DropReason> {
        match self.forward(after_ms, bytes) {
            (Verdict::Send(_), journey, _) => {
                Ok(self.view.plan.backend(journey.backend.unwrap()).unwrap().name.clone())
            }
            (Verdict::Drop(reason), ..) => Err(reason),
            (other, ..) => panic!("{other:?}"),
        }
    }
}

impl Deref for Machine {
    type Target = LoadBalancer;

    fn deref(&self) -> &LoadBalancer {
        &self.balancer
    }
}

impl DerefMut for Machine {
    fn deref_mut(&mut self) -> &mut LoadBalancer {
        &mut self.balancer
    }
}

fn view(planner: &mut Planner, message: proto::Plan) -> Arc<View> {
    let plan = Arc::new(planner.plan(message).unwrap());
    Arc::new(sim::view::view(plan, &secret(), 1, |_| vec![hop(1600)]))
}

pub fn secret() -> Secret {
    Secret::derived("test")
}

pub fn hash() -> FlowHash {
    FlowHash::new(&secret())
}

pub use sim::view::next_hop as hop;

#[derive(Debug, Clone, Copy)]
pub enum Tcp {
    Syn,
    Ack,
    Fin,
    Rst,
}

pub const CLIENT: [u8; 4] = [192, 0, 2, 1];
pub const VIP: [u8; 4] = [203, 0, 113, 10];

pub fn tcp(client: u32, port: u16, kind: Tcp) -> Vec<u8> {
    tcp_to(VIP, client, port, kind)
}

pub fn tcp_to(vip: [u8; 4], client: u32, port: u16, kind: Tcp) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2([1; 6], [2; 6]);
    tcp_in(ethernet.ipv4(client.to_be_bytes(), vip, 60), port, kind)
}

fn tcp_in(ip: PacketBuilderStep<IpHeaders>, port: u16, kind: Tcp) -> Vec<u8> {
    let builder = ip.tcp(port, 80, 7, 1024);
    let builder = match kind {
        Tcp::Syn => builder.syn(),
        Tcp::Ack => builder.ack(1),
        Tcp::Fin => builder.ack(1).fin(),
        Tcp::Rst => builder.rst(),
    };
    let mut frame = Vec::new();
    builder.write(&mut frame, b"x").unwrap();
    frame
}

pub fn udp(client: u32, port: u16) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2([1; 6], [2; 6]);
    udp_in(ethernet.ipv4(client.to_be_bytes(), VIP, 60), port)
}

fn udp_in(ip: PacketBuilderStep<IpHeaders>, port: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    ip.udp(port, 53).write(&mut frame, b"question").unwrap();
    frame
}

pub const CLIENT_V6: u128 = 0x2001_0db8_000c << 80 | 1;
pub const VIP_V6: u128 = 0x2001_0db8_000f << 80 | 0x10;

pub fn tcp_v6(client: u128, port: u16, kind: Tcp) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2([1; 6], [2; 6]);
    tcp_in(ethernet.ipv6(client.to_be_bytes(), VIP_V6.to_be_bytes(), 60), port, kind)
}

pub fn udp_v6(client: u128, port: u16) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2([1; 6], [2; 6]);
    udp_in(ethernet.ipv6(client.to_be_bytes(), VIP_V6.to_be_bytes(), 60), port)
}
