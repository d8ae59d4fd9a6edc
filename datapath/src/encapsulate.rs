//! The outer header: Ethernet, IP, tunnel. The inner packet is not changed
//! by a single bit.
//!
//! ```text
//!  before   |Ethernet|inner IP ...........|padding|
//!  gre      |Ethernet|outer IP|GRE|inner IP ...........|
//!  ipip     |Ethernet|outer IP|inner IP ...........|
//!  gue      |Ethernet|outer IP|UDP|GUE|inner IP ...........|
//!  geneve   |Ethernet|outer IP|UDP|Geneve|inner IP ...........|
//! ```

use plan::{Dscp, Encap, Service};
use wire::{EtherType, Family, Frame, Headers, Protocol, checksum, ethernet, geneve, gre, gue, ipv4, ipv6, udp};

use crate::decapsulate::Budget;
use crate::egress::{Hop, Outer, Tunnel};

/// The longest tunnel header: UDP and Geneve.
const TUNNEL_BYTES_MAX: usize = udp::HEADER_BYTES + geneve::HEADER_BYTES;

/// What encapsulation needs to know of a packet.
#[derive(Debug, Clone, Copy)]
pub struct Inner {
    /// Its family.
    pub family: Family,
    /// Its length without Ethernet header and padding.
    pub packet_bytes: u16,
    /// Its DSCP and ECN.
    pub traffic_class: u8,
    /// The flow hash.
    pub hash: u64,
}

impl Inner {
    /// Of a parsed packet.
    #[inline]
    #[must_use]
    pub fn new(headers: &Headers, hash: u64) -> Inner {
        Inner {
            family: headers.key.family,
            packet_bytes: headers.packet_bytes,
            traffic_class: headers.traffic_class,
            hash,
        }
    }
}

/// How a service's packets are encapsulated.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// The tunnel protocol.
    pub encap: Encap,
    /// The outer DSCP.
    pub dscp: Dscp,
    /// GRE: how many further encapsulations are permitted (RFC 1701).
    pub recursion: u8,
}

impl Style {
    /// To a backend, which encapsulates no further.
    #[inline]
    #[must_use]
    pub fn to_backend(service: &Service) -> Style {
        Style { encap: service.encap, dscp: service.dscp, recursion: Budget::TO_BACKEND.0 }
    }

    /// To another load balancer, which may encapsulate so many times more.
    #[inline]
    #[must_use]
    pub fn to_balancer(permitted: Budget) -> Style {
        Style { encap: Encap::Gre, dscp: Dscp::Copy, recursion: permitted.0 }
    }
}

/// The packet with its outer header does not fit the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Misfit {
    /// The longest inner packet that would fit.
    pub mtu: u16,
}

/// Puts the outer header in front of the packet and cuts padding off.
///
/// # Errors
/// If the result does not fit the next hop's MTU; the frame is unchanged
/// then.
#[inline]
pub fn encapsulate(
    frame: &mut Frame<'_>,
    inner: &Inner,
    style: Style,
    tunnel: &Tunnel,
    hop: &Hop,
) -> Result<(), Misfit> {
    let (header, header_bytes) = tunnel_header(inner, style.encap, style.recursion);
    let outer_bytes = tunnel.outer.header_bytes() + header_bytes;
    let packet_bytes = usize::from(inner.packet_bytes) + outer_bytes;
    if packet_bytes > usize::from(hop.mtu) {
        return Err(Misfit { mtu: hop.mtu.saturating_sub(outer_bytes as u16) });
    }
    frame.truncate(ethernet::HEADER_BYTES + usize::from(inner.packet_bytes));
    let front = frame
        .replace_front(ethernet::HEADER_BYTES, ethernet::HEADER_BYTES + outer_bytes)
        .expect("the headroom holds the longest outer header");
    let (link, rest) = front.split_at_mut(ethernet::HEADER_BYTES);
    link.copy_from_slice(&hop.ethernet);
    let (ip, tunnel_bytes) = rest.split_at_mut(tunnel.outer.header_bytes());
    let protocol = outer_protocol(inner.family, style.encap);
    tunnel.outer.write(ip, packet_bytes as u16, traffic_class(inner, style.dscp), protocol, inner.hash);
    tunnel_bytes.copy_from_slice(&header[..header_bytes]);
    if tunnel.udp_checksum && protocol == Protocol::UDP {
        fill_udp_checksum(&mut frame.bytes_mut()[ethernet::HEADER_BYTES..]);
    }
    Ok(())
}

#[inline]
fn outer_protocol(inner: Family, encap: Encap) -> Protocol {
    match (encap, inner) {
        (Encap::Gre, _) => Protocol::GRE,
        (Encap::Ipip, Family::V4) => Protocol::IPIP,
        (Encap::Ipip, Family::V6) => Protocol::IPV6,
        (Encap::Gue | Encap::Geneve, _) => Protocol::UDP,
    }
}

/// The tunnel header's bytes, and how many of them count.
#[inline]
fn tunnel_header(inner: &Inner, encap: Encap, recursion: u8) -> ([u8; TUNNEL_BYTES_MAX], usize) {
    let mut bytes = [0; TUNNEL_BYTES_MAX];
    let header_bytes = match encap {
        Encap::Gre => {
            let header = gre::Header { recursion, ether_type: inner_type(inner.family) };
            bytes[..gre::HEADER_BYTES].copy_from_slice(&header.to_bytes());
            gre::HEADER_BYTES
        }
        Encap::Ipip => 0,
        Encap::Gue => {
            let bytes_after_udp = gue::HEADER_BYTES as u16 + inner.packet_bytes;
            bytes[..8].copy_from_slice(&udp_header(inner, gue::PORT, bytes_after_udp));
            bytes[8..12].copy_from_slice(&gue::emit(outer_protocol(inner.family, Encap::Ipip)));
            udp::HEADER_BYTES + gue::HEADER_BYTES
        }
        Encap::Geneve => {
            let bytes_after_udp = geneve::HEADER_BYTES as u16 + inner.packet_bytes;
            bytes[..8].copy_from_slice(&udp_header(inner, geneve::PORT, bytes_after_udp));
            bytes[8..16].copy_from_slice(&geneve::emit(inner_type(inner.family)));
            udp::HEADER_BYTES + geneve::HEADER_BYTES
        }
    };
    (bytes, header_bytes)
}

/// The source port tells flows apart in the fabric: from the flow hash, in
/// the dynamic range (RFC 8085 section 5.1.1). No checksum (RFC 6935).
#[inline]
fn udp_header(inner: &Inner, port: u16, payload_bytes: u16) -> [u8; udp::HEADER_BYTES] {
    const DYNAMIC: u16 = 0xc000;
    udp::emit(DYNAMIC | (inner.hash as u16 & !DYNAMIC), port, udp::HEADER_BYTES as u16 + payload_bytes, 0)
}

/// The one case in which the payload is read: `udp6_checksum`.
#[cold]
fn fill_udp_checksum(packet: &mut [u8]) {
    let (ip, datagram) = packet.split_at_mut(ipv6::HEADER_BYTES);
    let pseudo = checksum::pseudo_header(&ip[8..24], &ip[24..40], Protocol::UDP.0, datagram.len());
    let sum = match checksum::finish(pseudo + checksum::sum(datagram)) {
        0 => 0xffff,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
}

/// The DSCP as configured; ECN copied, as RFC 6040's normal mode does on
/// the way in.
#[inline]
fn traffic_class(inner: &Inner, dscp: Dscp) -> u8 {
    const ECN: u8 = 0b11;
    match dscp {
        Dscp::Copy => inner.traffic_class,
        Dscp::Set(dscp) => dscp << 2 | (inner.traffic_class & ECN),
    }
}

#[inline]
fn inner_type(family: Family) -> EtherType {
    match family {
        Family::V4 => EtherType::IPV4,
        Family::V6 => EtherType::IPV6,
    }
}

impl Outer {
    /// Bytes of the header.
    #[inline]
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        match self {
            Outer::V4 { .. } => ipv4::HEADER_BYTES,
            Outer::V6 { .. } => ipv6::HEADER_BYTES,
        }
    }

    /// Writes the header for a packet of `packet_bytes` bytes, itself
    /// included.
    #[inline]
    fn write(&self, to: &mut [u8], packet_bytes: u16, traffic_class: u8, protocol: Protocol, hash: u64) {
        match self {
            Outer::V4 { header, sum, source_host_mask } => {
                let host = hash as u32 & source_host_mask;
                let sum = sum + u64::from(traffic_class) + u64::from(packet_bytes) + u64::from(protocol.0) + u64::from(host);
                to.copy_from_slice(header);
                to[1] = traffic_class;
                to[2..4].copy_from_slice(&packet_bytes.to_be_bytes());
                to[9] = protocol.0;
                to[10..12].copy_from_slice(&checksum::finish(sum).to_be_bytes());
                if *source_host_mask != 0 {
                    let network = u32::from_be_bytes([header[12], header[13], header[14], header[15]]);
                    to[12..16].copy_from_slice(&(network | host).to_be_bytes());
                }
            }
            Outer::V6 { header } => {
                to.copy_from_slice(header);
                // RFC 6438: the flow label tells flows apart in the fabric.
                let first = 6 << 28 | u32::from(traffic_class) << 20 | (hash as u32 & 0xf_ffff);
                to[..4].copy_from_slice(&first.to_be_bytes());
                to[4..6].copy_from_slice(&(packet_bytes - ipv6::HEADER_BYTES as u16).to_be_bytes());
                to[6] = protocol.0;
            }
        }
    }
}
