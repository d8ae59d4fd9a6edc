//! Where encapsulated packets go: for each backend its outer headers, all but
//! the fields that depend on the packet, and its next hops.

use std::net::IpAddr;

use plan::{BackendId, Plan, Service, ServiceId};
use wire::{EtherType, Family, FlowKey, MacAddress, ethernet};

use crate::decapsulate::Budget;
use crate::encapsulate::{Outer, Style, has_source};
use crate::send::Way;
use crate::verdict::DeviceIndex;

/// A neighbour on one of our devices, on the way to a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    /// The device to transmit on.
    pub device: DeviceIndex,
    /// Our address on it.
    pub source: MacAddress,
    /// The neighbour's address.
    pub destination: MacAddress,
    /// The longest IP packet that fits, in bytes.
    pub mtu: u16,
}

/// The tunnels to all backends of a plan, to its peers, and to the clusters
/// that its services spill to.
#[derive(Debug, Default)]
pub struct Egress {
    /// For each style that services have: by family of the inner packet, then
    /// by backend id.
    tunnels: Box<[Tunnel]>,
    /// Where the tunnels of a service's style begin, by service id.
    first_tunnels: Box<[usize]>,
    /// Backend ids there are, used or not.
    backend_ids: usize,
    hops: Box<[Hop]>,
    /// By index of the peer, then by family of the inner packet.
    peers: Box<[[Tunnel; 2]]>,
    /// By service id, then as the service lists them.
    spills: Box<[Box<[Hops]>]>,
}

/// The way to one backend: its outer headers and its next hops. Of the
/// shortest headers, GRE over IPv4, everything is in the first cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
pub(crate) struct Tunnel {
    hops: Hops,
    outer: Outer,
}

/// The next hops towards an address. None: it is not reached.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Hops {
    /// The first one: for most there is no other.
    only: Hop,
    count: u16,
    /// Where they begin in the list of all.
    first: u32,
}

/// A next hop as it is written in front of packets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hop {
    /// The longest IP packet that fits, in bytes.
    pub mtu: u16,
    /// The device to transmit on.
    pub device: DeviceIndex,
    /// The Ethernet header.
    pub ethernet: [u8; ethernet::HEADER_BYTES],
}

impl Egress {
    /// The tunnels of `plan`, whose next hops `resolve` names; none if it
    /// names none. It is asked for each of [`Plan::tunnel_targets`].
    #[must_use]
    pub fn new(plan: &Plan, resolve: impl FnMut(IpAddr) -> Vec<NextHop>) -> Egress {
        let mut building = Building { plan, resolve, hops: Vec::new() };
        let (tunnels, first_tunnels) = building.tunnels();
        let peers = plan.peers.iter().map(|peer| building.peer(&peer.addresses)).collect();
        let mut spills = vec![Box::default(); plan.service_ids()].into_boxed_slice();
        for service in plan.services() {
            spills[service.id.index()] =
                service.spill.iter().map(|spill| building.hops(spill.address)).collect();
        }
        let (hops, backend_ids) = (building.hops.into(), plan.backend_ids());
        Egress { tunnels, first_tunnels, backend_ids, hops, peers, spills }
    }

    /// The outer headers to a backend of a service for packets of that
    /// family, and the next hop for this flow; None if no next hop is known.
    #[inline]
    #[must_use]
    pub fn toward(
        &self,
        service: ServiceId,
        family: Family,
        backend: BackendId,
        hash: u64,
    ) -> Option<Way<'_>> {
        self.way(self.tunnel(service, family, backend)?, hash)
    }

    /// The tunnel to a backend; None: the plan has no such backend.
    #[inline]
    pub(crate) fn tunnel(
        &self,
        service: ServiceId,
        family: Family,
        backend: BackendId,
    ) -> Option<&Tunnel> {
        let first = self.first_tunnels.get(service.index())?;
        self.tunnels.get(first + family as usize * self.backend_ids + backend.index())
    }

    /// The way through a tunnel for this flow; None if no next hop is known.
    #[inline]
    pub(crate) fn way<'v>(&'v self, tunnel: &'v Tunnel, hash: u64) -> Option<Way<'v>> {
        Some(Way { outer: &tunnel.outer, hop: self.hop(&tunnel.hops, hash)? })
    }

    /// The way to a peer for this flow, if any of its addresses has a next
    /// hop.
    #[must_use]
    pub fn toward_peer(&self, peer: usize, family: Family, hash: u64) -> Option<Way<'_>> {
        self.way(&self.peers.get(peer)?[family as usize], hash)
    }

    /// The way to the address in another cluster that has the suffix of
    /// `destination`: the first of the service's spills whose family it has.
    #[must_use]
    pub fn toward_spill(
        &self,
        plan: &Plan,
        service: &Service,
        key: &FlowKey,
        hash: u64,
    ) -> Option<(Outer, &Hop)> {
        let index = service.spill.iter().position(|spill| spill.family == key.family)?;
        let spill = &service.spill[index];
        let hops = &self.spills.get(service.id.index())?[index];
        let there =
            wire::ip::address(key.family, spill.network | (key.destination & spill.host_mask));
        let outer = Outer::new(plan, there, Style::to_balancer(Budget::SPILLED), key.family)?;
        Some((outer, self.hop(hops, hash)?))
    }

    #[inline]
    fn hop<'v>(&'v self, hops: &'v Hops, hash: u64) -> Option<&'v Hop> {
        match hops.count {
            0 => None,
            1 => Some(&hops.only),
            // Bits between those of the connection table's bucket and tag
            // would do as well; any fixed choice keeps a flow on its path.
            count => {
                let which = ((hash & 0xffff) as u32 * u32::from(count)) >> 16;
                self.hops.get((hops.first + which) as usize)
            }
        }
    }
}

/// Tunnels being made.
struct Building<'p, R> {
    plan: &'p Plan,
    resolve: R,
    hops: Vec<Hop>,
}

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

impl<R: FnMut(IpAddr) -> Vec<NextHop>> Building<'_, R> {
    /// The tunnels to all backends, and where each service's begin. Services
    /// of one style share theirs.
    fn tunnels(&mut self) -> (Box<[Tunnel]>, Box<[usize]>) {
        let mut hops = vec![Hops::default(); self.plan.backend_ids()];
        for backend in self.plan.backends() {
            hops[backend.id.index()] = self.hops(backend.address);
        }
        let mut tunnels = Vec::new();
        let mut first_tunnels = vec![0; self.plan.service_ids()];
        let mut styles: Vec<(Style, usize)> = Vec::new();
        for service in self.plan.services() {
            let wanted = Style::to_backend(service);
            let known = styles.iter().find(|(style, _)| *style == wanted);
            let first = known.map_or(tunnels.len(), |(_, first)| *first);
            if known.is_none() {
                styles.push((wanted, first));
                for family in FAMILIES {
                    tunnels.extend(self.tunnels_of_style(wanted, family, &hops));
                }
            }
            first_tunnels[service.id.index()] = first;
        }
        (tunnels.into(), first_tunnels.into())
    }

    fn tunnels_of_style(&self, style: Style, family: Family, hops: &[Hops]) -> Vec<Tunnel> {
        let mut tunnels = vec![Tunnel::default(); hops.len()];
        for backend in self.plan.backends() {
            let index = backend.id.index();
            tunnels[index] = self.tunnel(backend.address, hops[index], style, family);
        }
        tunnels
    }

    fn tunnel(&self, address: IpAddr, hops: Hops, style: Style, family: Family) -> Tunnel {
        Outer::new(self.plan, address, style, family)
            .map_or(Tunnel::default(), |outer| Tunnel { hops, outer })
    }

    /// The next hops towards that address. Without an own address of its
    /// family there are none: decoding refuses that for backends, and peers
    /// and spills are then not reached.
    fn hops(&mut self, address: IpAddr) -> Hops {
        if !has_source(self.plan, address) {
            return Hops::default();
        }
        let ether_type = if address.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let first = self.hops.len();
        self.hops.extend((self.resolve)(address).iter().map(|hop| Hop::new(hop, ether_type)));
        let found = &self.hops[first..];
        Hops {
            only: found.first().copied().unwrap_or_default(),
            count: found.len().try_into().unwrap_or(u16::MAX),
            first: first as u32,
        }
    }

    /// The tunnels to the first of a peer's addresses that has a next hop.
    fn peer(&mut self, addresses: &[IpAddr]) -> [Tunnel; 2] {
        let reached = addresses.iter().find_map(|address| {
            let hops = self.hops(*address);
            (hops.count > 0).then_some((*address, hops))
        });
        let Some((address, hops)) = reached else { return [Tunnel::default(); 2] };
        let style = Style::to_balancer(Budget::REDIRECTED);
        FAMILIES.map(|family| self.tunnel(address, hops, style, family))
    }
}

impl Hop {
    fn new(hop: &NextHop, ether_type: EtherType) -> Hop {
        Hop {
            device: hop.device,
            mtu: hop.mtu,
            ethernet: ethernet::emit(hop.source, hop.destination, ether_type),
        }
    }
}
