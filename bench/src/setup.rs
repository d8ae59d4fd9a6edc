//! The set-up of a measurement: a plan and the flows through it, all from parameters.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use datapath::{Secret, View};
use plan::{Plan, Planner, proto};
use sim::view::next_hop;

use crate::worker::CLUSTER;

/// What a measurement is made with.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Services, each with one VIP.
    pub services: u32,
    /// Of these, the ones that see traffic: every so-many-th.
    pub busy_services: u32,
    /// Prefixes, in ten groups. If there are any, every other service is
    /// reached by a suffix under all prefixes of a group, not by an address.
    pub prefixes: u32,
    /// Sets of backends, of which services take one in turn.
    pub pools: u32,
    /// Backends, dealt to the pools in turn.
    pub backends: u32,
    /// Weights go from one up to this.
    pub weight_max: u32,
    /// Entries of a pool's table; zero: the default.
    pub table_size: u32,
    /// Flows, spread over the busy services.
    pub flows: u64,
    /// Connections the table is made for.
    pub connections: u64,
    /// Bytes of the inner IP packet.
    pub packet_bytes: usize,
    /// Inner and outer packet are IPv6.
    pub ipv6: bool,
    /// How packets travel.
    pub encap: proto::Encap,
    /// What decides.
    pub decides: Decides,
}

/// What decides which backend gets a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decides {
    /// The connection table.
    Tracking,
    /// Maglev hashing alone: the quota is used up.
    Maglev,
    /// Buckets: services are stateless.
    Buckets,
    /// QUIC connection ids: services are stateless, and every packet has an id that
    /// names a backend.
    ConnectionIds {
        /// By one block of AES.
        encrypted: bool,
    },
    /// The same, of services with Multipath TCP.
    Multipath,
}

/// The layout of connection ids, as without a word in the config.
const SERVER_ID_BYTES: u32 = 8;
const NONCE_BYTES: u32 = 8;
/// Bytes of a connection id: which config it is by, and both.
pub const CONNECTION_ID_BYTES: usize = 1 + (SERVER_ID_BYTES + NONCE_BYTES) as usize;

/// Buckets of a stateless service, as without a word in the config.
const BUCKETS: u32 = 4096;

/// Where a service is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Address,
    /// In this group of prefixes.
    Group(u32),
}

const GROUPS: u32 = 10;
/// Beyond every packet that fits a frame.
const MTU: u16 = 9000;
/// Members over all services: each takes some hundred bytes of the message.
const MEMBERS_MAX: u64 = 20_000_000;

impl Setup {
    /// The service of a flow. Of the busy ones every other has an odd number,
    /// as of all.
    #[must_use]
    pub fn service_of(&self, flow: u64) -> u32 {
        let busy = self.busy_services.clamp(1, self.services);
        let (number, step) = ((flow % u64::from(busy)) as u32, self.services / busy);
        number * step + if step.is_multiple_of(2) { number % 2 } else { 0 }
    }

    /// The client of a flow, numbered within its service.
    #[must_use]
    pub fn client_of(&self, flow: u64) -> u64 {
        flow / u64::from(self.busy_services.clamp(1, self.services))
    }

    /// The address that a client of the service sends to.
    #[must_use]
    pub fn destination_v4(&self, service: u32, client: u64) -> u32 {
        match self.place(service) {
            Place::Address => 0xcb00_0000 | service,
            Place::Group(group) => prefix_v4(self.prefix_of(group, client)) | suffix(service),
        }
    }

    /// The same for IPv6.
    #[must_use]
    pub fn destination_v6(&self, service: u32, client: u64) -> u128 {
        match self.place(service) {
            Place::Address => 0x2001_0db8_000a << 80 | u128::from(service),
            Place::Group(group) => {
                prefix_v6(self.prefix_of(group, client)) | u128::from(suffix(service))
            }
        }
    }

    /// What the services' packets are.
    #[must_use]
    pub fn protocol(&self) -> wire::Protocol {
        match self.decides {
            Decides::ConnectionIds { .. } => wire::Protocol::UDP,
            _ => wire::Protocol::TCP,
        }
    }

    /// The connection id of a flow: of any of its service's backends. What follows the
    /// first byte is encrypted by who sends it.
    #[must_use]
    pub fn connection_id(&self, flow: u64) -> [u8; CONNECTION_ID_BYTES] {
        let backends: Vec<u32> = self.backends_of(self.service_of(flow)).collect();
        let backend = backends[(flow % backends.len() as u64) as usize];
        let mut id = [0; CONNECTION_ID_BYTES];
        id[1..9].copy_from_slice(&server_id(backend).to_be_bytes());
        id[9..].copy_from_slice(&flow.to_be_bytes());
        id
    }

    fn place(&self, service: u32) -> Place {
        match self.prefixes > 0 && service % 2 == 1 {
            true => Place::Group(service / 2 % self.groups()),
            false => Place::Address,
        }
    }

    fn groups(&self) -> u32 {
        GROUPS.min(self.prefixes)
    }

    /// One of a group's prefixes: those whose number leaves the group's.
    fn prefix_of(&self, group: u32, client: u64) -> u32 {
        let groups = self.groups();
        let count = (self.prefixes - group).div_ceil(groups);
        group + (client % u64::from(count)) as u32 * groups
    }

    /// The plan.
    #[must_use]
    pub fn message(&self) -> proto::Plan {
        proto::Plan {
            generation: 1,
            machine: Some(proto::Machine {
                name: "bench".into(),
                addresses: vec!["10.0.0.1".into(), "2001:db8::1".into()],
                routers: Vec::new(),
            }),
            prefix_groups: (0..self.groups()).map(|group| self.prefix_group(group)).collect(),
            backends: (0..self.backends).map(|index| self.backend(index)).collect(),
            groups: (0..self.groups_of_members()).map(|index| self.group(index)).collect(),
            services: (0..self.services).map(|index| self.service(index)).collect(),
            ..Default::default()
        }
    }

    /// The plan, decoded.
    ///
    /// # Errors
    /// If the parameters make no valid plan: what is wrong with it.
    pub fn plan(&self) -> Result<Plan, String> {
        self.check()?;
        Planner::default()
            .plan(self.message())
            .map_err(|error| format!("these parameters make no valid plan: {error}"))
    }

    /// What that many workers forward by.
    ///
    /// # Errors
    /// As [`Setup::plan`].
    pub fn view(&self, workers: usize) -> Result<Arc<View>, String> {
        Ok(Arc::new(view(Arc::new(self.plan()?), workers)))
    }

    /// Refuses what would not fit into memory before it is tried.
    ///
    /// # Errors
    /// Which parameters, and what would do.
    pub fn check(&self) -> Result<(), String> {
        let (services, backends) = (u64::from(self.services), u64::from(self.backends));
        let members = services * backends.div_ceil(u64::from(self.pools.max(1)));
        if members > MEMBERS_MAX {
            return Err(format!(
                "{services} services with {backends} backends in {} pools are {members} members: at most {MEMBERS_MAX}",
                self.pools
            ));
        }
        Ok(())
    }

    fn prefix_group(&self, group: u32) -> proto::PrefixGroup {
        let numbers = (group..self.prefixes).step_by(self.groups() as usize);
        let prefix = |number| match self.ipv6 {
            true => format!("{}/64", Ipv6Addr::from_bits(prefix_v6(number))),
            false => format!("{}/16", Ipv4Addr::from_bits(prefix_v4(number))),
        };
        proto::PrefixGroup { name: group_name(group), prefixes: numbers.map(prefix).collect() }
    }

    fn backend(&self, index: u32) -> proto::Backend {
        let address = match self.ipv6 {
            true => Ipv6Addr::from_bits(0x2001_0db8_00be << 80 | u128::from(index)).to_string(),
            false => Ipv4Addr::from_bits(0x0a40_0000 | index).to_string(),
        };
        proto::Backend { name: backend_name(index), address }
    }

    fn service(&self, index: u32) -> proto::Service {
        proto::Service {
            name: format!("service-{index:05}"),
            vips: vec![proto::Vip {
                target: Some(self.target(index)),
                ports: vec![proto::PortRange { first: 80, last: 80 }],
                protocol: match self.decides {
                    Decides::ConnectionIds { .. } => proto::Protocol::Udp,
                    _ => proto::Protocol::Tcp,
                } as i32,
            }],
            quic_lb: self.quic_lb(index),
            group: pool_name(index % self.pools.max(1)),
            table_size: self.table_size,
            encap: self.encap as i32,
            fragments: proto::Fragments::On as i32,
            // The least there is: with one entry taken, all others are refused.
            connections_quota: u64::from(self.decides == Decides::Maglev),
            mode: self.mode() as i32,
            mptcp: (self.decides == Decides::Multipath).then_some(proto::Mptcp {}),
            bucket_map: (self.mode() == proto::Mode::Stateless).then(|| self.bucket_map(index)),
            ..Default::default()
        }
    }

    fn mode(&self) -> proto::Mode {
        match self.decides {
            Decides::Buckets | Decides::ConnectionIds { .. } | Decides::Multipath => {
                proto::Mode::Stateless
            }
            Decides::Tracking | Decides::Maglev => proto::Mode::Stateful,
        }
    }

    fn quic_lb(&self, service: u32) -> Option<proto::QuicLb> {
        let Decides::ConnectionIds { encrypted } = self.decides else { return None };
        let config = proto::QuicLbConfig {
            id: 0,
            encrypted,
            server_id_bytes: SERVER_ID_BYTES,
            nonce_bytes: NONCE_BYTES,
        };
        let server = |index| proto::QuicServer {
            backend: backend_name(index),
            server_id: format!("{:016x}", server_id(index)),
        };
        let servers = self.backends_of(service).map(server).collect();
        Some(proto::QuicLb { configs: vec![config], servers })
    }

    fn bucket_map(&self, service: u32) -> proto::BucketMap {
        let members = self.group(service % self.pools.max(1)).members;
        let count = members.len() as u32;
        proto::BucketMap {
            generation: 1,
            backends: members.into_iter().map(|member| member.backend).collect(),
            by_bucket: (0..BUCKETS).map(|bucket| bucket % count).collect(),
            moves: Vec::new(),
        }
    }

    /// A pool that no service has makes no group.
    fn groups_of_members(&self) -> u32 {
        self.pools.max(1).min(self.services)
    }

    fn backends_of(&self, service: u32) -> impl Iterator<Item = u32> {
        let pools = self.pools.max(1);
        (service % pools..self.backends).step_by(pools as usize)
    }

    fn group(&self, index: u32) -> proto::Group {
        let members = self.backends_of(index).map(|index| self.member(index)).collect();
        proto::Group { name: pool_name(index), members, ..Default::default() }
    }

    fn member(&self, index: u32) -> proto::Member {
        proto::Member {
            backend: backend_name(index),
            weight: 1 + index % self.weight_max.max(1),
            state: proto::BackendState::Active as i32,
        }
    }

    fn target(&self, service: u32) -> proto::vip::Target {
        let address = |v4: u32, v6: u128| match self.ipv6 {
            true => Ipv6Addr::from_bits(v6).to_string(),
            false => Ipv4Addr::from_bits(v4).to_string(),
        };
        match self.place(service) {
            Place::Address => proto::vip::Target::Address(address(
                self.destination_v4(service, 0),
                self.destination_v6(service, 0),
            )),
            Place::Group(group) => proto::vip::Target::PrefixSuffix(proto::PrefixSuffix {
                prefix_group: group_name(group),
                suffix: address(suffix(service), u128::from(suffix(service))),
                suffix_bits: 0,
            }),
        }
    }
}

/// What `workers` workers forward by under that plan.
#[must_use]
pub fn view(plan: Arc<Plan>, workers: usize) -> View {
    sim::view::view(plan, &Secret::derived(CLUSTER), workers, |_| vec![next_hop(MTU)])
}

fn pool_name(index: u32) -> String {
    format!("pool-{index:05}")
}

fn backend_name(index: u32) -> String {
    format!("backend-{index:05}")
}

/// As spread as digests are.
fn server_id(backend: u32) -> u64 {
    u64::from(backend + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn group_name(group: u32) -> String {
    format!("group-{group}")
}

/// 16.0.0.0/16 and the following.
fn prefix_v4(number: u32) -> u32 {
    0x1000_0000 + (number << 16)
}

fn prefix_v6(number: u32) -> u128 {
    0x2001_0db8_000b << 80 | u128::from(number) << 64
}

fn suffix(service: u32) -> u32 {
    service + 1
}

#[cfg(test)]
mod tests {
    use plan::Found;
    use wire::{Family, FlowKey, Protocol};

    use super::*;

    fn setup() -> Setup {
        Setup {
            services: 20,
            busy_services: 4,
            prefixes: 25,
            pools: 3,
            backends: 7,
            weight_max: 2,
            table_size: 101,
            flows: 1000,
            connections: 1000,
            packet_bytes: 46,
            ipv6: false,
            encap: proto::Encap::Gre,
            decides: Decides::Tracking,
        }
    }

    /// The names of the services that flows are for, by the plan.
    fn matched(setup: &Setup) -> std::collections::BTreeSet<String> {
        let plan = setup.plan().unwrap();
        let name = |flow| {
            let (service, client) = (setup.service_of(flow), setup.client_of(flow));
            let (family, destination) = match setup.ipv6 {
                false => (Family::V4, u128::from(setup.destination_v4(service, client))),
                true => (Family::V6, setup.destination_v6(service, client)),
            };
            let key = FlowKey {
                family,
                protocol: Protocol::TCP,
                source: 1,
                destination,
                source_port: 1,
                destination_port: 80,
            };
            let Found::Service(matched) = plan.vips.find(&key.target()) else { panic!("{key:?}") };
            let found = &plan.service_of(&matched).name;
            assert_eq!(*found, format!("service-{service:05}"));
            found.clone()
        };
        (0..setup.flows).map(name).collect()
    }

    #[test]
    fn every_flow_is_for_its_service_and_only_busy_ones_see_traffic() {
        for ipv6 in [false, true] {
            let names = matched(&Setup { ipv6, ..setup() });
            assert_eq!(names.len(), 4);
            assert_eq!(matched(&Setup { ipv6, busy_services: 20, ..setup() }).len(), 20);
            assert_eq!(matched(&Setup { ipv6, prefixes: 0, ..setup() }).len(), 4);
        }
    }

    #[test]
    fn pools_share_out_the_backends() {
        let message = setup().message();
        let sizes: Vec<usize> = message.groups.iter().map(|group| group.members.len()).collect();
        assert_eq!(sizes, [3, 2, 2]);
    }

    #[test]
    fn what_no_plan_can_be_is_said() {
        let error = Setup { services: 10_001, ..setup() }.plan().unwrap_err();
        assert!(error.contains("services: 10001 of them, at most 10000 fit"), "{error}");
        let error = Setup { services: 10_000, backends: 65_000, pools: 1, ..setup() }.plan();
        assert!(error.unwrap_err().contains("650000000 members"));
    }
}
