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
use wire::{
    EtherType, Family, Frame, Headers, Protocol, checksum, ethernet, geneve, gre, gue, ipv4, ipv6,
    udp,
};

use crate::decapsulate::Budget;
use crate::egress::{Hop, Outer, Tunnel};

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
// Inlined with everything it calls: then each combination of headers is a
// few copies of constant length.
#[inline(always)]
pub fn encapsulate(
    frame: &mut Frame<'_>,
    inner: &Inner,
    style: Style,
    tunnel: &Tunnel,
    hop: &Hop,
) -> Result<(), Misfit> {
    match style.encap {
        Encap::Gre => {
            let header =
                gre::Header { recursion: style.recursion, ether_type: inner_type(inner.family) };
            wrap(frame, inner, style, tunnel, hop, header.to_bytes())
        }
        Encap::Ipip => wrap(frame, inner, style, tunnel, hop, []),
        Encap::Gue => {
            let header = gue::emit(outer_protocol(inner.family, Encap::Ipip));
            wrap(frame, inner, style, tunnel, hop, behind_udp::<4, 12>(inner, gue::PORT, header))
        }
        Encap::Geneve => {
            let header = geneve::emit(inner_type(inner.family));
            wrap(frame, inner, style, tunnel, hop, behind_udp::<8, 16>(inner, geneve::PORT, header))
        }
    }
}

/// Puts link, outer IP and this tunnel header in front.
#[inline(always)]
fn wrap<const TUNNEL: usize>(
    frame: &mut Frame<'_>,
    inner: &Inner,
    style: Style,
    tunnel: &Tunnel,
    hop: &Hop,
    header: [u8; TUNNEL],
) -> Result<(), Misfit> {
    let class = traffic_class(inner, style.dscp);
    let protocol = outer_protocol(inner.family, style.encap);
    match &tunnel.outer {
        Outer::V4 { header: outer, sum, source_host_mask } => {
            let front = front::<{ ipv4::HEADER_BYTES }, TUNNEL>(frame, inner, hop)?;
            let host = inner.hash as u32 & source_host_mask;
            write_v4(front.ip, (outer, *sum), front.packet_bytes, class, protocol, host);
            *front.tunnel = header;
        }
        Outer::V6 { header: outer } => {
            let front = front::<{ ipv6::HEADER_BYTES }, TUNNEL>(frame, inner, hop)?;
            write_v6(front.ip, outer, front.packet_bytes, class, protocol, inner.hash);
            *front.tunnel = header;
            if tunnel.udp_checksum && protocol == Protocol::UDP {
                fill_udp_checksum(&mut frame.bytes_mut()[ethernet::HEADER_BYTES..]);
            }
        }
    }
    Ok(())
}

/// The room in front of the inner packet.
struct Front<'f, const IP: usize, const TUNNEL: usize> {
    ip: &'f mut [u8; IP],
    tunnel: &'f mut [u8; TUNNEL],
    packet_bytes: u16,
}

/// Makes room in front of the inner packet if it fits, cuts padding off, and
/// writes the link header.
#[inline(always)]
fn front<'f, const IP: usize, const TUNNEL: usize>(
    frame: &'f mut Frame<'_>,
    inner: &Inner,
    hop: &Hop,
) -> Result<Front<'f, IP, TUNNEL>, Misfit> {
    let packet_bytes = usize::from(inner.packet_bytes) + IP + TUNNEL;
    if packet_bytes > usize::from(hop.mtu) {
        return Err(Misfit { mtu: hop.mtu.saturating_sub((IP + TUNNEL) as u16) });
    }
    frame.truncate(ethernet::HEADER_BYTES + usize::from(inner.packet_bytes));
    let front = frame
        .replace_front(ethernet::HEADER_BYTES, ethernet::HEADER_BYTES + IP + TUNNEL)
        .expect("the headroom holds the longest outer header");
    let (link, rest) = front.split_first_chunk_mut().expect("it has this length");
    *link = hop.ethernet;
    let (ip, rest) = rest.split_first_chunk_mut().expect("it has this length");
    let tunnel = rest.first_chunk_mut().expect("it has this length");
    Ok(Front { ip, tunnel, packet_bytes: packet_bytes as u16 })
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

/// A tunnel header of `HEADER` bytes behind a UDP header: `BOTH` bytes.
#[inline(always)]
fn behind_udp<const HEADER: usize, const BOTH: usize>(
    inner: &Inner,
    port: u16,
    header: [u8; HEADER],
) -> [u8; BOTH] {
    let mut both = [0; BOTH];
    let udp = udp_header(inner, port, HEADER as u16 + inner.packet_bytes);
    both[..udp::HEADER_BYTES].copy_from_slice(&udp);
    both[udp::HEADER_BYTES..].copy_from_slice(&header);
    both
}

/// The source port tells flows apart in the fabric: from the flow hash, in
/// the dynamic range (RFC 8085 section 5.1.1). No checksum (RFC 6935).
#[inline]
fn udp_header(inner: &Inner, port: u16, payload_bytes: u16) -> [u8; udp::HEADER_BYTES] {
    const DYNAMIC: u16 = 0xc000;
    udp::emit(
        DYNAMIC | (inner.hash as u16 & !DYNAMIC),
        port,
        udp::HEADER_BYTES as u16 + payload_bytes,
        0,
    )
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
}

/// Writes the header for a packet of `packet_bytes` bytes, itself included.
/// `outer` has the sum of its constant words beside it, so that the checksum
/// is a matter of a few additions; `host` fills the source's free bits.
#[inline(always)]
fn write_v4(
    to: &mut [u8; ipv4::HEADER_BYTES],
    (outer, sum): (&[u8; ipv4::HEADER_BYTES], u64),
    packet_bytes: u16,
    traffic_class: u8,
    protocol: Protocol,
    host: u32,
) {
    let sum = sum
        + u64::from(traffic_class)
        + u64::from(packet_bytes)
        + u64::from(protocol.0)
        + u64::from(host);
    let network = u32::from_be_bytes([outer[12], outer[13], outer[14], outer[15]]);
    *to = *outer;
    to[1] = traffic_class;
    to[2..4].copy_from_slice(&packet_bytes.to_be_bytes());
    to[9] = protocol.0;
    to[10..12].copy_from_slice(&checksum::finish(sum).to_be_bytes());
    to[12..16].copy_from_slice(&(network | host).to_be_bytes());
}

/// The same for IPv6.
#[inline(always)]
fn write_v6(
    to: &mut [u8; ipv6::HEADER_BYTES],
    outer: &[u8; ipv6::HEADER_BYTES],
    packet_bytes: u16,
    traffic_class: u8,
    protocol: Protocol,
    hash: u64,
) {
    *to = *outer;
    // RFC 6438: the flow label tells flows apart in the fabric.
    let first = 6 << 28 | u32::from(traffic_class) << 20 | (hash as u32 & 0xf_ffff);
    to[..4].copy_from_slice(&first.to_be_bytes());
    to[4..6].copy_from_slice(&(packet_bytes - ipv6::HEADER_BYTES as u16).to_be_bytes());
    to[6] = protocol.0;
}
