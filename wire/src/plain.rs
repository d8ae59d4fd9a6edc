//! Plain packets: complete, TCP or UDP, without IP options or extension headers. Nearly all
//! packets are plain, and then nearly all that forwarding needs is at fixed places, so it is
//! read in one go. A packet that is unusual in any way is not plain: [`crate::headers`] reads
//! it, or reports what is wrong with it.
//!
//! A test checks that both agree on every plain frame.

use crate::flow::{BLOCK_BYTES, FlowKey, SocketV4, Target};
use crate::headers::PacketMeta;
use crate::ip::{Family, Protocol};
use crate::{checksum, ethernet, ipv4, ipv6, tcp, tunnel, udp};

/// A plain packet, whose headers are in the first `HEAD` bytes of its frame.
#[derive(Debug, Clone, Copy)]
pub struct Plain<'f, const HEAD: usize> {
    head: &'f [u8; HEAD],
    /// What later stages go by.
    pub meta: PacketMeta,
}

/// One of IPv4.
pub type PlainV4<'f> = Plain<'f, { TRANSPORT_V4 + tcp::HEADER_BYTES }>;

/// One of IPv6.
pub type PlainV6<'f> = Plain<'f, { TRANSPORT_V6 + tcp::HEADER_BYTES }>;

const IP: usize = ethernet::HEADER_BYTES;
const TRANSPORT_V4: usize = IP + ipv4::HEADER_BYTES;
const TRANSPORT_V6: usize = IP + ipv6::HEADER_BYTES;

/// Reads a frame with a plain IPv4 packet; None: it has none.
#[inline(always)]
#[must_use]
pub fn read_v4(frame: &[u8]) -> Option<PlainV4<'_>> {
    // EtherType, version, length without options; the traffic class is free.
    const START: u32 = 0x0800_4500;
    let head = frame.first_chunk()?;
    let ip: &[u8; ipv4::HEADER_BYTES] = head[IP..].first_chunk()?;
    let (start, packet_bytes) = (u32_at(head, 12), u16_at(head, IP + 2));
    let fragment = u16_at(head, IP + 6) & !ipv4::DONT_FRAGMENT;
    if start & 0xffff_ff00 != START || fragment != 0 || !checksum::is_valid(ip) {
        return None;
    }
    if frame.len() < IP + usize::from(packet_bytes) {
        return None;
    }
    let (protocol, transport) = (Protocol(ip[9]), head[TRANSPORT_V4..].first_chunk()?);
    let meta = PacketMeta {
        family: Family::V4,
        protocol,
        tcp_flags: flags(protocol, transport, ipv4::HEADER_BYTES, packet_bytes)?,
        traffic_class: start as u8,
        packet_bytes,
    };
    Some(Plain { head, meta })
}

/// Reads a frame with a plain IPv6 packet; None: it has none.
#[inline(always)]
#[must_use]
pub fn read_v6(frame: &[u8]) -> Option<PlainV6<'_>> {
    // EtherType and version.
    const START: u32 = 0x86dd_6000;
    let head = frame.first_chunk()?;
    let (start, payload_bytes) = (u32_at(head, 12), u16_at(head, IP + 4));
    let packet_bytes = u16::try_from(ipv6::HEADER_BYTES).ok()?.checked_add(payload_bytes)?;
    if start & 0xffff_f000 != START || frame.len() < IP + usize::from(packet_bytes) {
        return None;
    }
    let protocol = Protocol(head[IP + 6]);
    let transport = head[TRANSPORT_V6..].first_chunk()?;
    let meta = PacketMeta {
        family: Family::V6,
        protocol,
        tcp_flags: flags(protocol, transport, ipv6::HEADER_BYTES, packet_bytes)?,
        traffic_class: (start >> 4) as u8,
        packet_bytes,
    };
    Some(Plain { head, meta })
}

/// What the UDP datagram in a frame carries that was read before, where it lies if the
/// packet is plain; None: it is not, or no UDP.
#[inline]
#[must_use]
pub fn udp_payload(frame: &[u8], meta: PacketMeta) -> Option<&[u8]> {
    transport(frame, meta, Protocol::UDP)?.get(udp::HEADER_BYTES..)
}

/// The TCP segment in a frame that was read before, from its header on, where it lies if
/// the packet is plain; None: it is not, or no TCP.
#[inline]
#[must_use]
pub fn tcp_segment(frame: &[u8], meta: PacketMeta) -> Option<&[u8]> {
    transport(frame, meta, Protocol::TCP)
}

/// The five-tuple of such a TCP segment.
#[inline]
#[must_use]
pub fn tcp_flow(frame: &[u8], meta: PacketMeta) -> Option<FlowKey> {
    let ports = tcp_segment(frame, meta)?.first_chunk::<4>()?;
    let (source, destination) = match meta.family {
        Family::V4 => (u32_at(frame, IP + 12).into(), u32_at(frame, IP + 16).into()),
        Family::V6 => (u128_at(frame, IP + 8), u128_at(frame, IP + 24)),
    };
    let (source_port, destination_port) = (u16_at(ports, 0), u16_at(ports, 2));
    let (family, protocol) = (meta.family, Protocol::TCP);
    Some(FlowKey { family, protocol, source, destination, source_port, destination_port })
}

#[inline(always)]
fn transport(frame: &[u8], meta: PacketMeta, protocol: Protocol) -> Option<&[u8]> {
    let (is_plain, transport) = match meta.family {
        Family::V4 => (*frame.get(IP)? == 0x45 && *frame.get(IP + 9)? == protocol.0, TRANSPORT_V4),
        Family::V6 => (*frame.get(IP + 6)? == protocol.0, TRANSPORT_V6),
    };
    if !is_plain {
        return None;
    }
    frame.get(transport..IP + usize::from(meta.packet_bytes))
}

impl PlainV4<'_> {
    /// Where it is to.
    #[inline(always)]
    #[must_use]
    pub fn target(&self) -> SocketV4 {
        let tail = *self.head[IP + 16..].first_chunk().expect("the head is longer");
        SocketV4::of_packet(tail, self.meta.protocol)
    }

    /// The five-tuple as it is hashed (see [`crate::FlowKey`]).
    #[inline(always)]
    #[must_use]
    pub fn blocks(&self) -> [[u8; BLOCK_BYTES]; 1] {
        // From the header's checksum, which is not hashed, to behind the ports.
        let (first, last) = (u64_at(self.head, IP + 10), u64_at(self.head, IP + 18));
        let first = first & !0xffff | u64::from(self.meta.protocol.0) << 8 | 4;
        let block = u128::from(last & u64::MAX >> 16) << 64 | u128::from(first);
        [block.to_le_bytes()]
    }
}

impl PlainV6<'_> {
    /// Where it is to.
    #[inline(always)]
    #[must_use]
    pub fn target(&self) -> Target {
        Target {
            address: u128_at(self.head, IP + 24),
            family: Family::V6,
            protocol: self.meta.protocol,
            port: u16_at(self.head, TRANSPORT_V6 + 2),
        }
    }

    /// The five-tuple as it is hashed (see [`crate::FlowKey`]).
    #[inline(always)]
    #[must_use]
    pub fn blocks(&self) -> [[u8; BLOCK_BYTES]; 3] {
        // The addresses follow the next header and the hop limit.
        let start = 6u128 << 120 | u128::from(self.meta.protocol.0) << 112;
        let first = u128_at(self.head, IP + 6) & (u128::MAX >> 16) | start;
        let third = u128_at(self.head, IP + 38) & (u128::MAX << 80);
        [first, u128_at(self.head, IP + 22), third].map(u128::to_be_bytes)
    }
}

/// The TCP flags of a transport header behind `ip_bytes` of a packet; none of
/// UDP, whose tunnels are not plain. None: unusual.
#[inline(always)]
fn flags(
    protocol: Protocol,
    header: &[u8; tcp::HEADER_BYTES],
    ip_bytes: usize,
    packet_bytes: u16,
) -> Option<tcp::Flags> {
    let holds = |bytes: usize| ip_bytes + bytes <= usize::from(packet_bytes);
    match protocol {
        Protocol::TCP => {
            let header_bytes = usize::from(header[12] >> 4) * 4;
            let fits = header_bytes >= tcp::HEADER_BYTES && holds(header_bytes);
            fits.then_some(tcp::Flags(header[13]))
        }
        Protocol::UDP => {
            let (port, length) = (u16_at(header, 2), usize::from(u16_at(header, 4)));
            let fits = length >= udp::HEADER_BYTES && holds(length);
            let tunnelled = tunnel::is_port(port);
            (fits && !tunnelled).then_some(tcp::Flags::default())
        }
        _ => None,
    }
}

#[inline(always)]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(*bytes[at..].first_chunk().expect("the head is longer"))
}

#[inline(always)]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*bytes[at..].first_chunk().expect("the head is longer"))
}

/// In the order of the bytes, the first one lowest.
#[inline(always)]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("the head is longer"))
}

#[inline(always)]
fn u128_at(bytes: &[u8], at: usize) -> u128 {
    u128::from_be_bytes(*bytes[at..].first_chunk().expect("the head is longer"))
}
