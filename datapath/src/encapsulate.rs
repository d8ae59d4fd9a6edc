//! The outer header: Ethernet, IP, tunnel. The inner packet is not changed.
//!
//! ```text
//!  before   |Ethernet|inner IP ...........|padding|
//!  after    |Ethernet|outer IP|tunnel|inner IP ...........|
//!  l2       |Ethernet|IP, a hop less .....|
//! ```
//!
//! Without a tunnel (`encap: l2`) the TTL or hop limit is decremented, so that a packet cannot
//! circulate between machines that send it to each other, and IPv4's checksum is updated.
//!
//! Everything that does not depend on the packet is prepared once for a plan (see
//! [`HeaderTemplate`]); for each packet there is a copy of constant length, and a few fields to
//! set.

use std::net::IpAddr;

use plan::{Dscp, Encap, Plan, TunnelProfile};
use wire::tunnel::{self, Inside, geneve};
use wire::{
    EtherType, Family, Frame, HEADROOM_BYTES, MacAddress, PacketMeta, Protocol, checksum, ethernet,
    ipv4, ipv6, udp,
};

use crate::flow_hash::FlowHash;
use crate::next_hop::NextHop;
use crate::recursion_limit::RecursionLimit;
use crate::verdict::DeviceIndex;

/// The outer TTL and hop limit (RFC 1700's default).
const TTL: u8 = 64;

/// Bytes of the longest headers in front of a packet.
pub(crate) const FRONT_BYTES_MAX: usize =
    ethernet::HEADER_BYTES + ipv6::HEADER_BYTES + tunnel::FRONT_BYTES_MAX;

/// How packets are encapsulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncapProfile {
    /// The tunnel protocol, the outer DSCP and the longest option.
    pub tunnel: TunnelProfile,
    /// GRE: how many further encapsulations are permitted (RFC 1701).
    pub recursion: u8,
}

impl EncapProfile {
    /// To a backend, which encapsulates no further.
    #[must_use]
    pub fn to_backend(tunnel: TunnelProfile) -> EncapProfile {
        EncapProfile { tunnel, recursion: RecursionLimit::TO_BACKEND.0 }
    }

    /// To another load balancer, which is `permitted` further encapsulations.
    #[must_use]
    pub fn to_balancer(permitted: RecursionLimit) -> EncapProfile {
        let tunnel = TunnelProfile { encap: Some(Encap::Gre), dscp: Dscp::Copy, option_bytes: 0 };
        EncapProfile { tunnel, recursion: permitted.0 }
    }
}

/// The headers in front of all packets of one family and profile to one address
/// by one next hop. Fields that depend on the packet are zero in it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct HeaderTemplate {
    /// IPv4: the sum of the header's words.
    sum: u32,
    /// IPv4: bits of the source address to take from the flow hash.
    source_host_mask: u32,
    /// The longest IP packet that fits the path, in bytes.
    mtu: u16,
    /// The device to transmit on.
    pub device: DeviceIndex,
    shape: Shape,
    udp: UdpHeader,
    /// The inner traffic class's bits that are kept ...
    class_mask: u8,
    /// ... and those that are set.
    class_bits: u8,
    /// From Ethernet on: of the packet itself, where there is no outer IP header.
    front: [u8; FRONT_BYTES_MAX],
    /// Bytes of the longest option that may stand behind it.
    option_bytes: u8,
    /// As the next hop has it.
    is_destination: bool,
}

/// How long the headers behind Ethernet are: the family of the outer one, and
/// words of 4 bytes between it and the inner packet; or that there are none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Shape(u8);

impl Shape {
    const V6: u8 = 1 << 3;
    /// More words than any tunnel has.
    const L2: u8 = 7;

    fn of(encap: Option<Encap>, outer: Family) -> Shape {
        let Some(encap) = encap else { return Shape(Shape::L2) };
        let words = (encap.front_bytes() / 4) as u8;
        Shape(if outer == Family::V6 { Shape::V6 | words } else { words })
    }

    /// Bytes of the headers behind Ethernet.
    fn bytes(self) -> usize {
        if self.0 == Shape::L2 {
            return 0;
        }
        let ip = if self.0 & Shape::V6 == 0 { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES };
        ip + usize::from(self.0 & !Shape::V6) * 4
    }
}

/// Whether there is a UDP header in front of the tunnel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UdpHeader {
    None,
    /// Its checksum is zero (RFC 6935).
    ZeroChecksum,
    /// Its checksum is computed (IPv6 only).
    Checksum,
}

impl Default for HeaderTemplate {
    fn default() -> HeaderTemplate {
        HeaderTemplate {
            sum: 0,
            source_host_mask: 0,
            mtu: 0,
            device: DeviceIndex::default(),
            shape: Shape::default(),
            class_mask: 0,
            class_bits: 0,
            udp: UdpHeader::None,
            front: [0; FRONT_BYTES_MAX],
            option_bytes: 0,
            is_destination: false,
        }
    }
}

/// True if the machine has an address to send from to `destination`.
#[must_use]
pub fn has_source(plan: &Plan, destination: IpAddr) -> bool {
    match destination {
        IpAddr::V4(_) => plan.source_v4.is_some(),
        IpAddr::V6(_) => plan.source_v6.is_some(),
    }
}

impl HeaderTemplate {
    /// The headers for packets of family `inner` to `destination`. None: the
    /// machine has no address of its family; or there is to be no tunnel, and the next hop
    /// is a gateway.
    #[must_use]
    pub fn new(
        plan: &Plan,
        hash: &FlowHash,
        destination: IpAddr,
        hop: &NextHop,
        profile: EncapProfile,
        inner: Family,
    ) -> Option<HeaderTemplate> {
        let TunnelProfile { encap, dscp, option_bytes } = profile.tunnel;
        let Some(encap) = encap else { return HeaderTemplate::of_link(hop, inner) };
        let (class_mask, class_bits) = traffic_class(dscp);
        let protocol = encap.protocol(inner);
        let mut template = HeaderTemplate {
            mtu: plan.tunnel.mtu_within(hop.mtu),
            device: hop.device,
            is_destination: hop.is_destination,
            shape: Shape::of(Some(encap), Family::of(destination)),
            option_bytes,
            class_mask,
            class_bits,
            udp: match protocol {
                Protocol::UDP if destination.is_ipv6() && plan.tunnel.udp6_checksum => {
                    UdpHeader::Checksum
                }
                Protocol::UDP => UdpHeader::ZeroChecksum,
                _ => UdpHeader::None,
            },
            ..HeaderTemplate::default()
        };
        let (link, packet) = template.front.split_at_mut(ethernet::HEADER_BYTES);
        let ether_type = EtherType::of(Family::of(destination));
        link.copy_from_slice(&ethernet::emit(hop.source, hop.destination, ether_type));
        let ip_bytes = match destination {
            IpAddr::V4(destination) => {
                let own = plan.source_v4?;
                let (source, source_host_mask) = plan.tunnel.source_prefix.unwrap_or((own, 0));
                let id = hash.outer_id(own, destination.to_bits());
                let header = header_v4((source, destination.to_bits()), id, protocol);
                template.sum = checksum::fold(checksum::sum(&header)).into();
                template.source_host_mask = source_host_mask;
                packet[..header.len()].copy_from_slice(&header);
                header.len()
            }
            IpAddr::V6(destination) => {
                let header = header_v6(plan.source_v6?, destination.to_bits(), protocol);
                packet[..header.len()].copy_from_slice(&header);
                header.len()
            }
        };
        let inside = Inside { family: inner, recursion: profile.recursion };
        encap.emit(&mut packet[ip_bytes..], inside);
        Some(template)
    }

    /// Ethernet's alone, which is the packet's own.
    fn of_link(hop: &NextHop, family: Family) -> Option<HeaderTemplate> {
        let mut template = HeaderTemplate {
            mtu: hop.mtu,
            device: hop.device,
            is_destination: hop.is_destination,
            shape: Shape(Shape::L2),
            ..HeaderTemplate::default()
        };
        let link = ethernet::emit(hop.source, hop.destination, EtherType::of(family));
        template.front[..link.len()].copy_from_slice(&link);
        hop.is_destination.then_some(template)
    }

    /// The next hop.
    #[must_use]
    pub fn next_hop(&self) -> NextHop {
        let address =
            |at: usize| MacAddress(*self.front[at..].first_chunk().expect("the header is longer"));
        NextHop {
            device: self.device,
            source: address(6),
            destination: address(0),
            mtu: self.mtu,
            is_destination: self.is_destination,
        }
    }

    /// A checksum over each packet is to be computed, which the kernel flow cache does not.
    pub(crate) fn has_udp_checksum(&self) -> bool {
        self.udp == UdpHeader::Checksum
    }

    /// The same for the kernel flow cache.
    pub(crate) fn for_kernel(&self) -> KernelTemplate {
        KernelTemplate {
            sum: self.sum as u16,
            source_host_mask: self.source_host_mask,
            inside_bytes_max: self.inside_bytes_max(),
            class_mask: self.class_mask,
            class_bits: self.class_bits,
            shape: self.shape.0,
            has_udp: self.udp != UdpHeader::None,
            front: self.front,
        }
    }

    /// The longest packet that is reported to fit: with its headers and the longest
    /// option, whether a packet carries one or not.
    fn inside_bytes_max(&self) -> u16 {
        let outer_bytes = self.shape.bytes() as u16 + u16::from(self.option_bytes);
        self.mtu.saturating_sub(outer_bytes)
    }
}

/// What the kernel flow cache's program needs of a [`HeaderTemplate`]; fields of the same
/// name mean the same.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelTemplate {
    pub(crate) sum: u16,
    pub(crate) source_host_mask: u32,
    /// The longest inner packet, in bytes.
    pub(crate) inside_bytes_max: u16,
    pub(crate) class_mask: u8,
    pub(crate) class_bits: u8,
    /// As [`Shape`] has it.
    pub(crate) shape: u8,
    /// The headers behind IP begin with that of UDP.
    pub(crate) has_udp: bool,
    pub(crate) front: [u8; FRONT_BYTES_MAX],
}

/// What every link carries of IPv6 (RFC 8200): no host sends less because of an answer.
pub const IPV6_BYTES_MIN: u16 = 1280;

/// Bytes of the outer IP header and of what stands between it and the inner
/// packet, with the longest option.
#[must_use]
pub fn overhead_bytes(tunnel: TunnelProfile, outer: Family) -> u16 {
    Shape::of(tunnel.encap, outer).bytes() as u16 + u16::from(tunnel.option_bytes)
}

/// The DSCP as configured; ECN copied, as RFC 6040's normal mode does on
/// the way in: the bits of the inner traffic class to keep, and those to set.
fn traffic_class(dscp: Dscp) -> (u8, u8) {
    const ECN: u8 = 0b11;
    match dscp {
        Dscp::Copy => (0xff, 0),
        Dscp::Set(dscp) => (ECN, dscp << 2),
    }
}

/// "Do not fragment": the identification means nothing to receivers (RFC 6864).
fn header_v4(
    (source, destination): (u32, u32),
    id: u16,
    protocol: Protocol,
) -> [u8; ipv4::HEADER_BYTES] {
    let header = ipv4::Emit {
        packet_bytes: 0,
        traffic_class: 0,
        id,
        flags: ipv4::DONT_FRAGMENT,
        ttl: TTL,
        protocol,
        source,
        destination,
    };
    let mut header = header.to_bytes();
    header[10..12].fill(0);
    header
}

fn header_v6(source: u128, destination: u128, protocol: Protocol) -> [u8; ipv6::HEADER_BYTES] {
    let header = ipv6::Emit {
        payload_bytes: 0,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: TTL,
        protocol,
        source,
        destination,
    };
    header.to_bytes()
}

/// Why a packet was not encapsulated; the frame is unchanged then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsendable {
    /// With its outer header it does not fit the path.
    TooBig {
        /// The longest inner packet that would fit.
        mtu: u16,
    },
    /// It may make no further hop, and would make one.
    HopLimit,
}

/// Puts the outer header in front of the packet and cuts padding off.
///
/// # Errors
/// See [`Unsendable`].
#[inline(always)]
pub fn encapsulate(
    frame: &mut Frame<'_>,
    meta: &PacketMeta,
    hash: u64,
    template: &HeaderTemplate,
) -> Result<(), Unsendable> {
    const V4: usize = ethernet::HEADER_BYTES + ipv4::HEADER_BYTES;
    const V6: usize = ethernet::HEADER_BYTES + ipv6::HEADER_BYTES;
    const { assert!(tunnel::FRONT_BYTES_MAX <= 4 * 4, "a shape is missing below") };
    match template.shape.0 {
        0 => wrap_v4::<V4>(frame, meta, hash, template),
        1 => wrap_v4::<{ V4 + 4 }>(frame, meta, hash, template),
        2 => wrap_v4::<{ V4 + 8 }>(frame, meta, hash, template),
        3 => wrap_v4::<{ V4 + 12 }>(frame, meta, hash, template),
        Shape::L2 => readdress(frame, *meta, template),
        4..Shape::V6 => wrap_v4::<{ V4 + 16 }>(frame, meta, hash, template),
        Shape::V6 => wrap_v6::<V6>(frame, meta, hash, template),
        9 => wrap_v6::<{ V6 + 4 }>(frame, meta, hash, template),
        10 => wrap_v6::<{ V6 + 8 }>(frame, meta, hash, template),
        11 => wrap_v6::<{ V6 + 12 }>(frame, meta, hash, template),
        _ => wrap_v6::<{ V6 + 16 }>(frame, meta, hash, template),
    }
}

/// The same with options behind the tunnel's header, which is Geneve: for the few
/// packets that carry such.
///
/// # Errors
/// See [`Unsendable`].
pub fn encapsulate_with_options(
    frame: &mut Frame<'_>,
    meta: &PacketMeta,
    hash: u64,
    template: &HeaderTemplate,
    options: &[u8],
) -> Result<(), Unsendable> {
    const { assert!(FRONT_BYTES_MAX + tunnel::OPTIONS_BYTES_MAX <= HEADROOM_BYTES) };
    let packet_bytes = meta.packet_bytes + options.len() as u16;
    if usize::from(packet_bytes) + template.shape.bytes() > usize::from(template.mtu) {
        return Err(Unsendable::TooBig { mtu: template.inside_bytes_max() });
    }
    frame.truncate(ethernet::HEADER_BYTES + usize::from(meta.packet_bytes));
    let front = frame.replace_front(ethernet::HEADER_BYTES, ethernet::HEADER_BYTES + options.len());
    let front = front.expect("the headroom holds the longest outer header");
    front[ethernet::HEADER_BYTES..].copy_from_slice(options);
    encapsulate(frame, &PacketMeta { packet_bytes, ..*meta }, hash, template)?;
    let outer = &mut frame.bytes_mut()[..ethernet::HEADER_BYTES + template.shape.bytes()];
    let tunnel = outer.last_chunk_mut().expect("it ends with Geneve's header");
    geneve::announce_critical_options(tunnel, options.len());
    if template.udp == UdpHeader::Checksum {
        fill_udp_checksum(&mut frame.bytes_mut()[ethernet::HEADER_BYTES..]);
    }
    Ok(())
}

/// Puts `FRONT` bytes of headers in front: Ethernet, IPv4, tunnel. The sum of
/// the constant words is known, so that the checksum is a matter of a few
/// additions.
#[inline(always)]
fn wrap_v4<const FRONT: usize>(
    frame: &mut Frame<'_>,
    meta: &PacketMeta,
    hash: u64,
    template: &HeaderTemplate,
) -> Result<(), Unsendable> {
    let (to, packet_bytes) = front::<FRONT>(frame, meta, template)?;
    let class = meta.traffic_class & template.class_mask | template.class_bits;
    let mut sum = template.sum + u32::from(class) + u32::from(packet_bytes);
    let host = hash as u32 & template.source_host_mask;
    if host != 0 {
        let network = u32::from_be_bytes([to[12], to[13], to[14], to[15]]);
        to[12..16].copy_from_slice(&(network | host).to_be_bytes());
        sum += (host >> 16) + (host & 0xffff);
    }
    to[1] = class;
    to[2..4].copy_from_slice(&packet_bytes.to_be_bytes());
    to[10..12].copy_from_slice(&checksum::finish(sum.into()).to_be_bytes());
    let datagram_bytes = packet_bytes - ipv4::HEADER_BYTES as u16;
    fill_udp(&mut to[ipv4::HEADER_BYTES..], template.udp, datagram_bytes, hash);
    Ok(())
}

/// The same with IPv6.
#[inline(always)]
fn wrap_v6<const FRONT: usize>(
    frame: &mut Frame<'_>,
    meta: &PacketMeta,
    hash: u64,
    template: &HeaderTemplate,
) -> Result<(), Unsendable> {
    let (to, packet_bytes) = front::<FRONT>(frame, meta, template)?;
    let class = meta.traffic_class & template.class_mask | template.class_bits;
    let payload_bytes = packet_bytes - ipv6::HEADER_BYTES as u16;
    // RFC 6438: the fabric spreads flows by the flow label.
    let first = 6 << 28 | u32::from(class) << 20 | (hash as u32 & 0xf_ffff);
    to[..4].copy_from_slice(&first.to_be_bytes());
    to[4..6].copy_from_slice(&payload_bytes.to_be_bytes());
    fill_udp(&mut to[ipv6::HEADER_BYTES..], template.udp, payload_bytes, hash);
    if template.udp == UdpHeader::Checksum {
        fill_udp_checksum(&mut frame.bytes_mut()[ethernet::HEADER_BYTES..]);
    }
    Ok(())
}

/// Ethernet's header, and what behind it ends with IPv4's checksum.
const LINK_AND_HOPS: usize = ethernet::HEADER_BYTES + 12;

/// Addresses the frame to the next hop, and takes a hop from its packet.
#[inline(always)]
fn readdress(
    frame: &mut Frame<'_>,
    meta: PacketMeta,
    template: &HeaderTemplate,
) -> Result<(), Unsendable> {
    let headers: &mut [u8; LINK_AND_HOPS] =
        frame.bytes_mut().first_chunk_mut().expect("no packet's headers are shorter");
    let (link, packet) = headers.split_at_mut(ethernet::HEADER_BYTES);
    let hops = match meta.family {
        Family::V4 => packet[8],
        Family::V6 => packet[7],
    };
    if hops <= 1 {
        return Err(Unsendable::HopLimit);
    }
    if meta.packet_bytes > template.mtu {
        return Err(Unsendable::TooBig { mtu: template.inside_bytes_max() });
    }
    link.copy_from_slice(&template.front[..ethernet::HEADER_BYTES]);
    // A tunnel in which it came may have marked it as having met congestion (RFC 6040).
    match meta.family {
        Family::V4 => {
            if packet[1] != meta.traffic_class {
                change_v4(packet, 0, [packet[0], meta.traffic_class]);
            }
            change_v4(packet, 8, [hops - 1, packet[9]]);
        }
        Family::V6 => {
            packet[7] = hops - 1;
            let [high, low] = [meta.traffic_class >> 4, meta.traffic_class << 4];
            packet[0] = 6 << 4 | high;
            packet[1] = packet[1] & 0xf | low;
        }
    }
    frame.truncate(ethernet::HEADER_BYTES + usize::from(meta.packet_bytes));
    Ok(())
}

/// Changes a word of an IPv4 header, and the checksum with it.
#[inline(always)]
fn change_v4(packet: &mut [u8], at: usize, after: [u8; 2]) {
    let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let sum = checksum::update(word(10), word(at), u16::from_be_bytes(after));
    packet[at..at + 2].copy_from_slice(&after);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Makes room in front of the inner packet if it fits, cuts padding off, and
/// writes what does not depend on the packet. Gives the headers behind
/// Ethernet, and the length of the whole packet. `FRONT`: with Ethernet.
#[inline(always)]
fn front<'f, const FRONT: usize>(
    frame: &'f mut Frame<'_>,
    meta: &PacketMeta,
    template: &HeaderTemplate,
) -> Result<(&'f mut [u8], u16), Unsendable> {
    let outer_bytes = FRONT - ethernet::HEADER_BYTES;
    let packet_bytes = usize::from(meta.packet_bytes) + outer_bytes;
    if packet_bytes > usize::from(template.mtu) {
        return Err(Unsendable::TooBig { mtu: template.inside_bytes_max() });
    }
    let front = frame
        .replace_ends::<FRONT>(ethernet::HEADER_BYTES, usize::from(meta.packet_bytes))
        .expect("the headroom holds the longest outer header");
    *front = *template.front.first_chunk().expect("the longest fits");
    Ok((&mut front[ethernet::HEADER_BYTES..], packet_bytes as u16))
}

/// Fills the UDP header that `headers` begin with, if they do. The source
/// port, by which the fabric spreads flows, is from the flow hash, in the dynamic
/// range (RFC 8085 section 5.1.1). No checksum (RFC 6935).
#[inline(always)]
fn fill_udp(headers: &mut [u8], udp: UdpHeader, datagram_bytes: u16, hash: u64) {
    const DYNAMIC: u16 = 0xc000;
    if headers.len() < udp::HEADER_BYTES || udp == UdpHeader::None {
        return;
    }
    let source_port = DYNAMIC | (hash as u16 & !DYNAMIC);
    headers[..2].copy_from_slice(&source_port.to_be_bytes());
    headers[4..6].copy_from_slice(&datagram_bytes.to_be_bytes());
}

/// The one case in which the payload is read: `udp6_checksum`.
#[cold]
fn fill_udp_checksum(packet: &mut [u8]) {
    let (ip, datagram) = packet.split_at_mut(ipv6::HEADER_BYTES);
    datagram[6..8].fill(0);
    let pseudo = checksum::pseudo_header(&ip[8..24], &ip[24..40], Protocol::UDP.0, datagram.len());
    let sum = match checksum::finish(pseudo + checksum::sum(datagram)) {
        0 => 0xffff,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
}
