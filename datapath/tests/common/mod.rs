//! What the tests of the datapath share: plans, packets and a datapath that
//! forwards one packet at a time.
#![allow(dead_code)]

use std::sync::Arc;

use datapath::verdict::DeviceIndex;
use datapath::{
    Clock, ConnectionTable, Counters, Datapath, DropReason, Egress, FlowHash, Journey, NextHop,
    Outbox, Secret, SlowPath, TableReader, Verdict, View,
};
use etherparse::PacketBuilder;
use plan::{Planner, proto};
use wire::{CHUNK_BYTES, Frame, MacAddress};

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
        }],
        ..Default::default()
    }
}

pub fn vip(address: &str) -> proto::Vip {
    proto::Vip { target: Some(proto::vip::Target::Address(address.into())), ..Default::default() }
}

/// One worker on one device.
pub struct Machine {
    planner: Planner,
    pub view: View,
    pub datapath: Datapath<'static>,
    pub slow: SlowPath<'static>,
    pub outbox: Outbox<'static>,
    pub readers: Vec<TableReader<'static>>,
    pub counters: &'static Counters,
    pub now_ms: u32,
}

impl Machine {
    pub fn new(message: proto::Plan, connections: u64) -> Machine {
        let counters: &Counters = Box::leak(Box::default());
        let (table, reader) = ConnectionTable::in_memory(connections);
        let secret = secret();
        let mut planner = Planner::default();
        let view = view(&mut planner, message);
        Machine {
            planner,
            view,
            readers: vec![reader],
            slow: SlowPath::new(&secret, vec![reader], counters, Clock::default()),
            datapath: Datapath::new(&secret, table, counters, Clock::default(), 0),
            outbox: Outbox::default(),
            counters,
            now_ms: 0,
        }
    }

    pub fn set(&mut self, message: proto::Plan) {
        self.view = view(&mut self.planner, message);
    }

    /// Forwards one packet `after_ms` later; gives verdict and journey.
    pub fn forward(&mut self, after_ms: u32, bytes: &[u8]) -> (Verdict, Journey, Vec<u8>) {
        self.now_ms += after_ms;
        self.datapath.begin(self.now_ms, &self.view);
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut frame = Frame::copy_of(&mut chunk, bytes).unwrap();
        let mut journey = Journey::default();
        while !self.outbox.chunks.is_full() {
            self.outbox.chunks.push(Vec::leak(vec![0; CHUNK_BYTES]));
        }
        let mut verdict =
            self.datapath.forward(&self.view, &mut frame, &mut self.outbox, &mut journey);
        self.slow.begin(self.now_ms);
        if let Verdict::Slow(recursion_limit) = verdict {
            verdict = self.slow.forward(
                &self.view,
                &mut frame,
                recursion_limit,
                &mut self.outbox,
                &mut journey,
            );
        }
        self.counters.count(verdict);
        let bytes = frame.bytes().to_vec();
        (verdict, journey, bytes)
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

fn view(planner: &mut Planner, message: proto::Plan) -> View {
    let plan = Arc::new(planner.plan(message).unwrap());
    let egress = Egress::new(&plan, &hash(), |_| vec![hop(1600)]);
    View::new(plan, egress, 1)
}

pub fn secret() -> Secret {
    Secret::derived("test")
}

pub fn hash() -> FlowHash {
    FlowHash::new(&secret())
}

pub fn hop(mtu: u16) -> NextHop {
    NextHop {
        device: DeviceIndex(0),
        source: MacAddress([2, 0, 0, 0, 0, 1]),
        destination: MacAddress([2, 0, 0, 0, 0, 0xfe]),
        mtu,
        path_mtu: None,
    }
}

#[derive(Clone, Copy)]
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
    let builder = PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(client.to_be_bytes(), vip, 60)
        .tcp(port, 80, 7, 1024);
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
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(client.to_be_bytes(), VIP, 60)
        .udp(port, 53)
        .write(&mut frame, b"question")
        .unwrap();
    frame
}
