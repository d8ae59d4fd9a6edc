//! The Plan itself, as decoded.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use wire::Family;
use wire::ip::AddressBits;

use crate::group::Group;
use crate::ids::{BackendId, ServiceId};
use crate::matching::{Matched, Ports, Vips};
use crate::peers::{Ingress, Peer};
use crate::probing::Probing;
use crate::proto;
use crate::service::{Backend, Service, TunnelProfile};
use crate::text::{is_v6, parse_prefix};

/// What a forwarder forwards by. Immutable.
#[derive(Debug)]
pub struct Plan {
    /// Another for each plan that the process decodes; never zero.
    pub serial: u64,
    /// Counts plans; never goes back.
    pub generation: u64,
    /// Name of the cluster; the flow hash of a cluster without a secret is
    /// derived from it.
    pub cluster: String,
    /// `derived`, or the id of the cluster key.
    pub key_id: String,
    /// Name of this machine.
    pub machine: String,
    /// Outer source address for IPv4 backends.
    pub source_v4: Option<u32>,
    /// Outer source address for IPv6 backends.
    pub source_v6: Option<u128>,
    /// Routers that packets come from.
    pub routers: Vec<IpAddr>,
    /// Options of the outer headers.
    pub tunnel: TunnelOptions,
    /// The other load balancers.
    pub peers: Vec<Peer>,
    /// Whose tunnelled packets are accepted.
    pub ingress: Ingress,
    /// Which service a packet is for.
    pub vips: Vips,
    /// One for each matched index: whose it is and what it matches.
    pub matches: Vec<Match>,
    /// Services as the plan lists them.
    pub(crate) services: Box<[Service]>,
    /// By service id: where the service is listed.
    pub(crate) listed: Box<[Option<u16>]>,
    /// Backends by id.
    pub(crate) backends: Box<[Option<Backend>]>,
    /// Members over all that count apart, groups or services: the size of
    /// counters with a place for each.
    pub members: u32,
    /// The ways to encapsulate that services have, each once.
    pub profiles: Vec<TunnelProfile>,
    /// The groups that services have, each once.
    pub groups: Vec<Arc<Group>>,
    /// Which tunnels the controller's probes take; None: they take none.
    pub probing: Option<Probing>,
    /// The message this was decoded from.
    pub message: proto::Plan,
}

/// Options of the outer headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TunnelOptions {
    /// Compute the UDP checksum over IPv6.
    pub udp6_checksum: bool,
    /// Draw outer IPv4 sources from this network; and the mask of the bits
    /// that the flow hash fills.
    pub source_prefix: Option<(u32, u32)>,
    /// The longest packet with its outer headers, whatever the egress link carries.
    pub mtu: Option<u16>,
}

impl TunnelOptions {
    /// What fits by way of an egress link, or a route, of that MTU.
    #[must_use]
    pub fn mtu_within(&self, link: u16) -> u16 {
        self.mtu.map_or(link, |mtu| mtu.min(link))
    }
}

/// One Vip with one protocol and port range, as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// What its packets go by, wherever it was found.
    pub matched: Matched,
    /// Index of the Vip in the service.
    pub vip: u32,
    /// The family of its packets.
    pub family: Family,
    /// Address, or group and suffix.
    pub target: String,
    /// tcp, udp or any.
    pub protocol: &'static str,
    /// `80`, `8000-8100` or `all`.
    pub ports: String,
    /// The address that all of its packets are to, and the ports; None: there are several.
    pub only: Option<(AddressBits, Ports)>,
}

impl Plan {
    /// The service with that id.
    #[inline]
    #[must_use]
    pub fn service(&self, id: ServiceId) -> Option<&Service> {
        let listed = (*self.listed.get(id.index())?)?;
        Some(&self.services[usize::from(listed)])
    }

    /// The service of a match of this plan.
    #[inline(always)]
    #[must_use]
    pub fn service_of(&self, matched: &Matched) -> &Service {
        &self.services[usize::from(matched.listed)]
    }

    /// The members of that service.
    #[inline(always)]
    #[must_use]
    pub fn group_of(&self, matched: &Matched) -> &Group {
        &self.groups[matched.group as usize]
    }

    /// Services as the plan lists them.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.iter()
    }

    /// The backend with that id.
    #[inline]
    #[must_use]
    pub fn backend(&self, id: BackendId) -> Option<&Backend> {
        self.backends.get(id.index())?.as_ref()
    }

    /// Services that have an IPv6 VIP, or one in a group with IPv6 prefixes.
    pub fn ipv6_services(&self) -> impl Iterator<Item = &Service> {
        let groups: BTreeMap<&str, bool> = self
            .message
            .prefix_groups
            .iter()
            .map(|group| (group.name.as_str(), group.prefixes.iter().any(|text| is_v6(text))))
            .collect();
        let has_v6 = move |vip: &proto::Vip| match &vip.target {
            Some(proto::vip::Target::Address(address)) => is_v6(address),
            Some(proto::vip::Target::PrefixSuffix(target)) => {
                is_v6(&target.suffix) && groups.get(target.prefix_group.as_str()) == Some(&true)
            }
            None => false,
        };
        let listed = self.services().zip(&self.message.services);
        listed
            .filter(move |(_, message)| message.vips.iter().any(&has_v6))
            .map(|(service, _)| service)
    }

    /// Backends by id.
    pub fn backends(&self) -> impl Iterator<Item = &Backend> {
        self.backends.iter().flatten()
    }

    /// One more than the highest backend id: the size of arrays by id.
    #[must_use]
    pub fn backend_ids(&self) -> usize {
        self.backends.len()
    }

    /// One more than the highest service id: the size of arrays by id.
    #[must_use]
    pub fn service_ids(&self) -> usize {
        self.listed.len()
    }

    /// Every address that packets are tunnelled to: backends, peers, and
    /// one in each prefix that services spill to.
    #[must_use]
    pub fn tunnel_targets(&self) -> Vec<IpAddr> {
        let backends = self.backends().map(|backend| backend.address);
        let peers = self.peers.iter().flat_map(|peer| peer.addresses.iter().copied());
        let spills =
            self.services().flat_map(|service| service.spill.iter().map(|spill| spill.address));
        let all: std::collections::BTreeSet<IpAddr> = backends.chain(peers).chain(spills).collect();
        all.into_iter().collect()
    }

    /// Every prefix that may hold a VIP: what devices must let through.
    #[must_use]
    pub fn vip_prefixes(&self) -> Vec<(IpAddr, u8)> {
        let groups: HashMap<&str, &proto::PrefixGroup> =
            self.message.prefix_groups.iter().map(|group| (group.name.as_str(), group)).collect();
        let mut prefixes = std::collections::BTreeSet::new();
        for target in self
            .message
            .services
            .iter()
            .flat_map(|service| &service.vips)
            .filter_map(|vip| vip.target.as_ref())
        {
            match target {
                proto::vip::Target::Address(address) => {
                    let address: IpAddr = address.parse().expect("checked when decoded");
                    prefixes.insert((address, Family::of(address).address_bits() as u8));
                }
                proto::vip::Target::PrefixSuffix(suffix) => {
                    let group = groups[suffix.prefix_group.as_str()];
                    prefixes.extend(
                        group
                            .prefixes
                            .iter()
                            .map(|prefix| parse_prefix(prefix).expect("checked when decoded")),
                    );
                }
            }
        }
        prefixes.into_iter().collect()
    }
}
