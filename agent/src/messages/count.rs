//! Counts the sockets in each bucket, for the services that a controller names, with the
//! forwarder's own code.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use datapath::{BucketHash, multipath};
use plan::{Found, Plan, Planner, Tracking, proto as plan_proto};
use prost::Message;
use sha2::{Digest, Sha256};
use wire::{FlowKey, Target};

use super::Served;
use super::proto;
use crate::config::Keys;
use crate::datagram;
use crate::records::mapped;
use crate::responses::Latest;

/// The backend of the plan that services are read by: nothing is forwarded by it.
const BACKEND: &str = "here";

/// Of the fields of a `ServiceSockets` beside its buckets and sockets: its own tag and
/// length, the index, both lists' tags and lengths; and of a `StatePart` the digest.
const OVERHEAD_BYTES: usize = 32;

/// The most that a bucket takes: a difference below 8192 and a count, as varints.
const ENTRY_BYTES: usize = 2 + 5;

/// By index of a service, its buckets that have sockets.
pub type Counts = BTreeMap<u32, BTreeMap<u32, u32>>;

/// Counts by the services of one controller.
pub struct Counting {
    digest: u64,
    plan: Plan,
    hash: BucketHash,
    body_bytes_max: usize,
    served: Vec<Served>,
    vips: BTreeSet<IpAddr>,
}

impl Counting {
    /// For services as a controller sends them.
    pub fn new(keys: &Keys, digest: u64, services: &[u8]) -> Result<Counting, String> {
        let services = proto::Services::decode(services)
            .map_err(|error| format!("its services cannot be read: {error}"))?;
        let (served, vips) = (served(&services), addresses(&services).collect());
        let plan = Planner::default().plan(plan_of(services));
        Ok(Counting {
            digest,
            plan: plan.map_err(|error| format!("its services are refused: {error}"))?,
            hash: BucketHash::from_key(keys.bucket),
            body_bytes_max: datagram::body_bytes_max(keys),
            served,
            vips,
        })
    }

    /// Where clients reach the services here.
    pub fn served(&self) -> &[Served] {
        &self.served
    }

    /// The VIPs that are addresses.
    pub fn vips(&self) -> &BTreeSet<IpAddr> {
        &self.vips
    }

    /// How many of the flows are in each bucket, and how many they are. One whose
    /// timestamps have bits has packets in their bucket, too.
    pub fn count(&self, flows: &[(FlowKey, Option<u16>)]) -> (Counts, u64) {
        let (mut counts, mut connections) = (Counts::new(), 0);
        for (flow, bits) in flows {
            let Some((service, bucket, buckets)) = self.bucket(flow) else { continue };
            let by_bits = bits.map(|bits| multipath::bucket(bits.into(), buckets));
            let other = by_bits.filter(|other| *other != bucket);
            for bucket in [Some(bucket), other].into_iter().flatten() {
                let sockets = counts.entry(service).or_default().entry(bucket).or_default();
                *sockets = sockets.saturating_add(1);
            }
            connections += 1;
        }
        (counts, connections)
    }

    /// Index of the stateless service and the bucket that a flow from a client is in, and
    /// how many buckets there are.
    fn bucket(&self, flow: &FlowKey) -> Option<(u32, u32, u32)> {
        let target = Target {
            address: flow.destination,
            family: flow.family,
            protocol: flow.protocol,
            port: flow.destination_port,
        };
        let Found::Service(matched) = self.plan.vips.find(&target) else { return None };
        let service = self.plan.service_of(&matched);
        if service.tracking != Tracking::Stateless {
            return None;
        }
        let hash = self.hash.selector(service.affinity, flow);
        let selector = self.plan.group_of(&matched).selector()?;
        let buckets = u32::try_from(selector.entries().len()).ok()?;
        Some((matched.listed.into(), selector.slot(hash), buckets))
    }

    /// The bodies of a state with these counts.
    pub fn bodies(&self, said: &Said, counts: &Counts) -> Vec<Vec<u8>> {
        let mut parts = Parts {
            digest: self.digest,
            room: self.body_bytes_max,
            parts: said.parts(self.digest),
        };
        for (service, buckets) in counts {
            // What comes behind may still have to say that it was left out.
            if parts.parts.len() < datagram::PARTS_MAX / 2 {
                parts.add(*service, buckets);
            } else {
                let uncounted = true;
                let sockets =
                    proto::ServiceSockets { service: *service, uncounted, ..Default::default() };
                parts.push(sockets);
            }
        }
        if parts.parts.len() > datagram::PARTS_MAX {
            return said.bodies(0);
        }
        parts.bodies()
    }

    /// The bodies of a state without counts.
    pub fn uncounted(&self, said: &Said) -> Vec<Vec<u8>> {
        said.bodies(self.digest)
    }
}

/// The addresses and ports of services that have both, one of each.
fn served(services: &proto::Services) -> Vec<Served> {
    use plan_proto::vip::Target::Address;
    let mut served = Vec::new();
    for vip in services.services.iter().flat_map(|service| &service.vips) {
        let Some(Address(address)) = &vip.target else { continue };
        let Ok(address) = address.parse() else { continue };
        let protocol = match vip.protocol() {
            plan_proto::Protocol::Tcp => "tcp",
            plan_proto::Protocol::Udp => "udp",
            plan_proto::Protocol::Any => continue,
        };
        for ports in vip.ports.iter().filter(|ports| ports.first == ports.last) {
            let Ok(port) = u16::try_from(ports.first) else { continue };
            served.push(Served { address, protocol: protocol.to_string(), port });
        }
    }
    served
}

/// The VIPs that are addresses.
fn addresses(services: &proto::Services) -> impl Iterator<Item = IpAddr> {
    use plan_proto::vip::Target::Address;
    services.services.iter().flat_map(|service| &service.vips).filter_map(|vip| match &vip.target {
        Some(Address(address)) => address.parse().ok(),
        _ => None,
    })
}

/// Bytes of an agent's address, as those that accept its packets say it: the first of its
/// digest.
const ADDRESS_BYTES: usize = 4;

/// Addresses in a part of a state: the first has what else is said, too.
const ADDRESSES_MAX: usize = 170;

/// What a state says of the agent itself, beside its connections.
#[derive(Debug, Clone, Default)]
pub struct Said {
    /// Packets come out of tunnels here.
    pub serves: bool,
    /// How long ago the connections were listed; None: they are not counted.
    pub counted: Option<Duration>,
    /// VIPs of services here that the config lacks.
    pub vips_lacking: u32,
    /// How the services here answer, where that is measured.
    pub answers: Option<Latest>,
    /// This agent's addresses.
    pub own: Vec<[u8; ADDRESS_BYTES]>,
    /// Other agents, whose packets are taken.
    pub accepts: Vec<[u8; ADDRESS_BYTES]>,
}

impl Said {
    /// The parts of a state that say it: at least one.
    fn parts(&self, services: u64) -> Vec<proto::StatePart> {
        let counted_ms_ago = self.counted.map(|ago| ago.as_millis() as u32);
        let standing = Some(proto::Standing {
            serves: self.serves,
            counted_ms_ago,
            own: self.own.concat(),
            vips_lacking: self.vips_lacking,
            answers: self.answers.as_ref().map(answers),
        });
        let mut parts: Vec<proto::StatePart> = self
            .accepts
            .chunks(ADDRESSES_MAX)
            .map(|chunk| proto::StatePart {
                services,
                accepts: chunk.concat(),
                ..Default::default()
            })
            .collect();
        if parts.is_empty() {
            parts.push(proto::StatePart { services, ..Default::default() });
        }
        parts[0].standing = standing;
        parts
    }

    /// The bodies of a state without counts, by the services of that digest; 0: the agent
    /// has none.
    pub fn bodies(&self, services: u64) -> Vec<Vec<u8>> {
        self.parts(services).iter().map(Message::encode_to_vec).collect()
    }
}

fn answers(Latest { counted, open, sockets }: &Latest) -> proto::Answers {
    let within = |share| counted.quantile(share).unwrap_or_default().as_micros() as u64;
    proto::Answers {
        measured: counted.answers(),
        p50_us: within(0.5),
        p99_us: within(0.99),
        open_thousandths: (open * 1e3) as u64,
        resets: counted.resets,
        connections: sockets.connections,
        accept_queue: sockets.accept_queue,
    }
}

/// An agent's address, as those that accept its packets say it.
pub fn brief(address: IpAddr) -> [u8; ADDRESS_BYTES] {
    *Sha256::digest(mapped(address)).first_chunk().expect("a digest is longer")
}

/// Counts on their way into parts of a state.
struct Parts {
    digest: u64,
    room: usize,
    parts: Vec<proto::StatePart>,
}

impl Parts {
    fn add(&mut self, service: u32, buckets: &BTreeMap<u32, u32>) {
        let entries: Vec<(u32, u32)> = buckets.iter().map(|(bucket, n)| (*bucket, *n)).collect();
        for entries in entries.chunks((self.room - OVERHEAD_BYTES) / ENTRY_BYTES) {
            let mut former = 0;
            let steps =
                entries.iter().map(|(bucket, _)| bucket - std::mem::replace(&mut former, *bucket));
            self.push(proto::ServiceSockets {
                service,
                buckets: steps.collect(),
                sockets: entries.iter().map(|(_, sockets)| *sockets).collect(),
                uncounted: false,
            });
        }
    }

    /// Into the last part, or a new one if that has no room.
    fn push(&mut self, sockets: proto::ServiceSockets) {
        if let Some(last) = self.parts.last_mut()
            && last.encoded_len() + sockets.encoded_len() + OVERHEAD_BYTES <= self.room
        {
            return last.counts.push(sockets);
        }
        self.parts.push(proto::StatePart {
            services: self.digest,
            counts: vec![sockets],
            ..Default::default()
        });
    }

    fn bodies(&self) -> Vec<Vec<u8>> {
        self.parts.iter().map(Message::encode_to_vec).collect()
    }
}

/// A plan of these services, which the forwarder's code can match flows by.
fn plan_of(services: proto::Services) -> plan_proto::Plan {
    use plan_proto::{BackendState, BucketMap, Encap, Group, Mode};
    let service = |service: proto::Service| {
        let is_stateless = service.buckets > 0;
        let by_bucket = vec![0; service.buckets as usize % (plan::limits::BUCKETS_MAX + 1)];
        let backends = vec![BACKEND.to_string()];
        plan_proto::Service {
            name: service.name,
            vips: service.vips,
            affinity: service.affinity,
            group: BACKEND.to_string(),
            encap: Encap::Geneve.into(),
            mode: if is_stateless { Mode::Stateless } else { Mode::Stateful }.into(),
            bucket_map: is_stateless.then(|| BucketMap {
                generation: 1,
                backends,
                by_bucket,
                moves: Vec::new(),
            }),
            ..Default::default()
        }
    };
    let member = plan_proto::Member {
        backend: BACKEND.to_string(),
        weight: 1,
        state: BackendState::Active.into(),
    };
    plan_proto::Plan {
        generation: 1,
        machine: Some(plan_proto::Machine {
            name: BACKEND.to_string(),
            addresses: vec!["192.0.2.1".to_string()],
            routers: Vec::new(),
        }),
        backends: vec![plan_proto::Backend {
            name: BACKEND.to_string(),
            address: "192.0.2.2".to_string(),
        }],
        groups: vec![Group {
            name: BACKEND.to_string(),
            members: vec![member],
            earlier: Vec::new(),
        }],
        prefix_groups: services.prefix_groups,
        services: services.services.into_iter().map(service).collect(),
        ..Default::default()
    }
}

#[cfg(test)]
#[path = "count_tests.rs"]
mod tests;
