//! Where encapsulated packets go: for each backend its outer header, all but
//! the fields that depend on the packet, and its next hops.

use std::net::IpAddr;

use plan::{BackendId, Plan, Service};
use wire::{EtherType, FlowKey, MacAddress, Protocol, checksum, ethernet, ipv4, ipv6};

use crate::prefetch::prefetch;
use crate::verdict::DeviceIndex;

/// The outer TTL and hop limit (RFC 1700's default).
const TTL: u8 = 64;

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

/// The tunnels to all backends of a plan, by backend id; to its peers, and to
/// the clusters that its services spill to.
#[derive(Debug, Default)]
pub struct Egress {
    tunnels: Box<[Option<Tunnel>]>,
    hops: Box<[Hop]>,
    /// By index of the peer.
    peers: Box<[Option<Tunnel>]>,
    /// By service id, then as the service lists them.
    spills: Box<[Box<[Tunnel]>]>,
}

/// The way to one backend: one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub struct Tunnel {
    /// The outer IP header without lengths, traffic class, flow label and
    /// checksum.
    pub outer: Outer,
    /// Compute the UDP checksum (IPv6 only).
    pub udp_checksum: bool,
    first_hop: u32,
    hops: u32,
}

/// The part of an outer IP header that is the same for all packets.
#[derive(Debug, Clone, Copy)]
pub enum Outer {
    /// IPv4, with the sum of the constant words.
    V4 {
        /// The header with the variable fields zero.
        header: [u8; ipv4::HEADER_BYTES],
        /// The sum of its words.
        sum: u64,
        /// Bits of the source address to take from the flow hash.
        source_host_mask: u32,
    },
    /// IPv6.
    V6 {
        /// The header with the variable fields zero.
        header: [u8; ipv6::HEADER_BYTES],
    },
}

/// A next hop as it is written in front of packets.
#[derive(Debug, Clone, Copy)]
pub struct Hop {
    /// The device to transmit on.
    pub device: DeviceIndex,
    /// The longest IP packet that fits, in bytes.
    pub mtu: u16,
    /// The Ethernet header.
    pub ethernet: [u8; ethernet::HEADER_BYTES],
}

impl Egress {
    /// The tunnels of `plan`, whose next hops `resolve` names; none if it
    /// names none. It is asked for each of [`Plan::tunnel_targets`].
    #[must_use]
    pub fn new(plan: &Plan, resolve: impl FnMut(IpAddr) -> Vec<NextHop>) -> Egress {
        let mut building = Building { plan, resolve, hops: Vec::new() };
        let mut tunnels = vec![None; plan.backend_ids()].into_boxed_slice();
        for backend in plan.backends() {
            tunnels[backend.id.index()] = Some(building.tunnel(backend.address));
        }
        let peers = plan.peers.iter().map(|peer| building.peer(&peer.addresses)).collect();
        let mut spills = vec![Box::default(); plan.service_ids()].into_boxed_slice();
        for service in plan.services() {
            spills[service.id.index()] =
                service.spill.iter().map(|spill| building.tunnel(spill.address)).collect();
        }
        Egress { tunnels, hops: building.hops.into(), peers, spills }
    }

    /// The tunnel to a backend of the plan, and the next hop for this flow;
    /// None if no next hop is known.
    #[inline]
    #[must_use]
    pub fn toward(&self, backend: BackendId, hash: u64) -> Option<(&Tunnel, &Hop)> {
        let tunnel = self.tunnels.get(backend.index())?.as_ref()?;
        Some((tunnel, self.hop(tunnel, hash)?))
    }

    /// Asks for the tunnel to a backend, which will be needed soon.
    #[inline]
    pub(crate) fn prefetch(&self, backend: BackendId) {
        if let Some(there) = self.tunnels.get(backend.index()) {
            prefetch(there);
        }
    }

    /// The tunnel to a peer, and the next hop for this flow.
    #[must_use]
    pub fn toward_peer(&self, peer: usize, hash: u64) -> Option<(&Tunnel, &Hop)> {
        let tunnel = self.peers.get(peer)?.as_ref()?;
        Some((tunnel, self.hop(tunnel, hash)?))
    }

    /// The tunnel to the address in another cluster that has the suffix of
    /// `destination`: the first of the service's spills whose family it has.
    #[must_use]
    pub fn toward_spill(
        &self,
        plan: &Plan,
        service: &Service,
        key: &FlowKey,
        hash: u64,
    ) -> Option<(Tunnel, &Hop)> {
        let index = service.spill.iter().position(|spill| spill.family == key.family)?;
        let spill = &service.spill[index];
        let tunnel = &self.spills.get(service.id.index())?[index];
        let there =
            wire::ip::address(key.family, spill.network | (key.destination & spill.host_mask));
        let tunnel = Tunnel { outer: outer(plan, there)?, ..*tunnel };
        Some((tunnel, self.hop(&tunnel, hash)?))
    }

    #[inline]
    fn hop(&self, tunnel: &Tunnel, hash: u64) -> Option<&Hop> {
        let which = match tunnel.hops {
            0 => return None,
            1 => 0,
            // Bits between those of the connection table's bucket and tag
            // would do as well; any fixed choice keeps a flow on its path.
            count => ((hash & 0xffff) as u32 * count) >> 16,
        };
        self.hops.get((tunnel.first_hop + which) as usize)
    }
}

/// Tunnels being made.
struct Building<'p, R> {
    plan: &'p Plan,
    resolve: R,
    hops: Vec<Hop>,
}

impl<R: FnMut(IpAddr) -> Vec<NextHop>> Building<'_, R> {
    /// The tunnel to that address. Without an own address of its family it
    /// has no next hops: decoding refuses that for backends, and peers and
    /// spills are then not reached.
    fn tunnel(&mut self, address: IpAddr) -> Tunnel {
        let ether_type = if address.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let first_hop = self.hops.len() as u32;
        let outer = outer(self.plan, address);
        if outer.is_some() {
            self.hops.extend((self.resolve)(address).iter().map(|hop| Hop::new(hop, ether_type)));
        }
        Tunnel {
            outer: outer.unwrap_or(Outer::V6 { header: [0; ipv6::HEADER_BYTES] }),
            udp_checksum: self.plan.tunnel.udp6_checksum && address.is_ipv6(),
            first_hop,
            hops: self.hops.len() as u32 - first_hop,
        }
    }

    /// The tunnel to the first of a peer's addresses that has a next hop.
    fn peer(&mut self, addresses: &[IpAddr]) -> Option<Tunnel> {
        let tunnels: Vec<Tunnel> = addresses.iter().map(|address| self.tunnel(*address)).collect();
        tunnels.iter().find(|tunnel| tunnel.hops > 0).or(tunnels.first()).copied()
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

/// "Do not fragment" with identification zero: an atomic datagram (RFC 6864).
/// None: the machine has no address of that family.
fn outer(plan: &Plan, destination: IpAddr) -> Option<Outer> {
    Some(match destination {
        IpAddr::V4(destination) => {
            let own = plan.source_v4?;
            let (source, source_host_mask) = plan.tunnel.source_prefix.unwrap_or((own, 0));
            let header = ipv4::Emit {
                packet_bytes: 0,
                traffic_class: 0,
                id: 0,
                flags: ipv4::DONT_FRAGMENT,
                ttl: TTL,
                protocol: Protocol(0),
                source,
                destination: destination.to_bits(),
            };
            let mut header = header.to_bytes();
            header[10..12].fill(0);
            Outer::V4 { header, sum: checksum::sum(&header), source_host_mask }
        }
        IpAddr::V6(destination) => {
            let header = ipv6::Emit {
                payload_bytes: 0,
                traffic_class: 0,
                flow_label: 0,
                hop_limit: TTL,
                protocol: Protocol(0),
                source: plan.source_v6?,
                destination: destination.to_bits(),
            };
            Outer::V6 { header: header.to_bytes() }
        }
    })
}
