//! Where encapsulated packets go: for each backend its outer header, all but
//! the fields that depend on the packet, and its next hops.

use std::net::IpAddr;

use plan::{BackendId, Plan};
use wire::{EtherType, MacAddress, Protocol, checksum, ethernet, ipv4, ipv6};

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

/// The tunnels to all backends of a plan, by backend id.
#[derive(Debug, Default)]
pub struct Egress {
    tunnels: Box<[Option<Tunnel>]>,
    hops: Box<[Hop]>,
}

/// The way to one backend.
#[derive(Debug, Clone, Copy)]
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
    /// names none.
    #[must_use]
    pub fn new(plan: &Plan, mut resolve: impl FnMut(BackendId, IpAddr) -> Vec<NextHop>) -> Egress {
        let mut hops: Vec<Hop> = Vec::new();
        let mut tunnels = vec![None; plan.backend_ids()].into_boxed_slice();
        for backend in plan.backends() {
            let next = resolve(backend.id, backend.address);
            let ether_type = if backend.address.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
            let first_hop = hops.len() as u32;
            hops.extend(next.iter().map(|hop| Hop::new(hop, ether_type)));
            let outer = outer(plan, backend.address);
            let udp_checksum = plan.tunnel.udp6_checksum && backend.address.is_ipv6();
            tunnels[backend.id.index()] = Some(Tunnel { outer, udp_checksum, first_hop, hops: next.len() as u32 });
        }
        Egress { tunnels, hops: hops.into() }
    }

    /// The tunnel to a backend of the plan, and the next hop for this flow;
    /// None if no next hop is known.
    #[inline]
    #[must_use]
    pub fn toward(&self, backend: BackendId, hash: u64) -> Option<(&Tunnel, &Hop)> {
        let tunnel = self.tunnels.get(backend.index())?.as_ref()?;
        let which = match tunnel.hops {
            0 => return None,
            1 => 0,
            // Bits between those of the connection table's bucket and tag
            // would do as well; any fixed choice keeps a flow on its path.
            count => ((hash & 0xffff) as u32 * count) >> 16,
        };
        Some((tunnel, &self.hops[(tunnel.first_hop + which) as usize]))
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
fn outer(plan: &Plan, destination: IpAddr) -> Outer {
    match destination {
        IpAddr::V4(destination) => {
            let own = plan.source_v4.expect("decoding checked that IPv4 backends have a source");
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
                source: plan.source_v6.expect("decoding checked that IPv6 backends have a source"),
                destination: destination.to_bits(),
            };
            Outer::V6 { header: header.to_bytes() }
        }
    }
}
