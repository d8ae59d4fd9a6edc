//! What is measured: a plan, its flows, and a worker that forwards by it.

use std::sync::Arc;

use datapath::table::{ConnectionTable, Identity, words_for};
use datapath::verdict::DeviceIndex;
use datapath::{Clock, Counters, Datapath, Egress, NextHop, Outbox, Secret, View};
use plan::{Planner, proto};
use wire::MacAddress;

/// What a measurement is made with. Everything is a parameter.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Services, each with one VIP.
    pub services: u32,
    /// Backends, all behind each service.
    pub backends: u32,
    /// Weights go from one up to this.
    pub weight_max: u32,
    /// Flows, spread over the services.
    pub flows: u64,
    /// Connections the table is made for.
    pub connections: u64,
    /// Bytes of the inner IP packet.
    pub packet_bytes: usize,
    /// Inner and outer packet are IPv6.
    pub ipv6: bool,
    /// How packets travel.
    pub encap: proto::Encap,
    /// No connection is tracked: Maglev hashing alone decides.
    pub hash_only: bool,
}

/// The VIP of a service.
#[must_use]
pub fn vip_v4(service: u32) -> u32 {
    0xcb00_0000 | service
}

/// The VIP of a service.
#[must_use]
pub fn vip_v6(service: u32) -> u128 {
    0x2001_0db8_000a << 80 | u128::from(service)
}

impl Setup {
    /// The plan.
    #[must_use]
    pub fn message(&self) -> proto::Plan {
        proto::Plan {
            generation: 1,
            machine: Some(proto::Machine {
                name: "bench".into(),
                addresses: vec!["10.0.0.1".into(), "2001:db8::1".into()],
            }),
            backends: (0..self.backends).map(|index| self.backend(index)).collect(),
            services: (0..self.services).map(|index| self.service(index)).collect(),
            ..Default::default()
        }
    }

    fn backend(&self, index: u32) -> proto::Backend {
        let address = if self.ipv6 {
            std::net::Ipv6Addr::from_bits(0x2001_0db8_00be << 80 | u128::from(index)).to_string()
        } else {
            std::net::Ipv4Addr::from_bits(0x0a40_0000 | index).to_string()
        };
        proto::Backend { name: backend_name(index), address }
    }

    fn service(&self, index: u32) -> proto::Service {
        let address = if self.ipv6 {
            std::net::Ipv6Addr::from_bits(vip_v6(index)).to_string()
        } else {
            std::net::Ipv4Addr::from_bits(vip_v4(index)).to_string()
        };
        proto::Service {
            name: format!("service-{index:05}"),
            vips: vec![proto::Vip {
                target: Some(proto::vip::Target::Address(address)),
                ports: vec![proto::PortRange { first: 80, last: 80 }],
                protocol: proto::Protocol::Tcp as i32,
            }],
            members: (0..self.backends)
                .map(|index| proto::Member {
                    backend: backend_name(index),
                    weight: 1 + index % self.weight_max,
                    state: proto::BackendState::Active as i32,
                })
                .collect(),
            encap: self.encap as i32,
            // The least there is: with one entry taken, all others are refused.
            connections_quota: u64::from(self.hash_only),
            ..Default::default()
        }
    }
}

fn backend_name(index: u32) -> String {
    format!("backend-{index:05}")
}

/// A worker and all it needs.
pub struct Worker {
    /// The plan and its next hops.
    pub view: View,
    /// The journey.
    pub datapath: Datapath<'static>,
    /// What it originates.
    pub outbox: Outbox<'static>,
    /// Its counters.
    pub counters: &'static Counters,
    /// Bytes of the connection table.
    pub table_bytes: usize,
    words: &'static [std::sync::atomic::AtomicU64],
}

impl Worker {
    /// A worker with an empty table.
    ///
    /// # Panics
    /// If memory is short: there is nothing to measure then.
    #[must_use]
    pub fn new(setup: &Setup) -> Worker {
        let plan = Planner::default().plan(setup.message()).expect("a valid plan");
        let plan = Arc::new(plan);
        let egress = Egress::new(&plan, |_| vec![next_hop()]);
        let words =
            nic::mapping::anonymous(words_for(setup.connections)).expect("memory for the table");
        let identity = Identity { key: 1, ids_epoch: 1, worker: 0, workers: 1 };
        let (table, _) = ConnectionTable::open(words, &identity);
        let counters: &Counters = Box::leak(Box::default());
        let secret = Secret::derived("bench");
        Worker {
            view: View::new(plan, egress, 1),
            datapath: Datapath::new(&secret, table, counters, Clock::default(), 0),
            outbox: Outbox::default(),
            counters,
            table_bytes: size_of_val(words),
            words,
        }
    }

    /// Forgets all connections. The header stays.
    pub fn clear(&self) {
        for word in &self.words[datapath::table::HEADER_WORDS..] {
            word.store(0, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

fn next_hop() -> NextHop {
    NextHop {
        device: DeviceIndex(0),
        source: MacAddress([2, 0, 0, 0, 0, 1]),
        destination: MacAddress([2, 0, 0, 0, 0, 0xfe]),
        mtu: 1600,
    }
}
