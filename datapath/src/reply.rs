//! Answers from a VIP: echo replies, and "too big" with the MTU that fits (RFC 1191, RFC 8201).
//! The received frame is turned into the answer in place and returned to its sender: the router
//! that a client's packet came from knows the route to the client. A packet that arrived in a
//! tunnel came from another load balancer, which is no router, so its answer goes to one of our
//! routers ([`ReturnPaths`]).

use wire::{
    EtherType, Family, Frame, Headers, MacAddress, Protocol, checksum, ethernet, icmp, ip, ipv4,
    ipv6,
};

use crate::next_hop::NextHop;
use crate::verdict::{DeviceIndex, Verdict};

/// TTL and hop limit of our answers.
const TTL: u8 = 64;

/// An ICMP error quotes as much of the packet as fits 576 bytes (RFC 1812,
/// section 4.3.2.3).
const ERROR_BYTES_MAX_V4: usize = 576;
/// The same for ICMPv6: the minimum MTU (RFC 4443 section 2.4).
const ERROR_BYTES_MAX_V6: usize = 1280;

/// Link addresses of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyLink {
    /// Ours.
    pub source: MacAddress,
    /// Whom to answer.
    pub destination: MacAddress,
}

/// Where what we answer and report on goes, found once for all packets.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReturnPaths {
    /// Everything's; None: as below.
    pub all: Option<ReplyLink>,
    /// To IPv4 addresses, of what came in a tunnel; None: not known.
    pub v4: Option<NextHop>,
    /// The same to IPv6 addresses.
    pub v6: Option<NextHop>,
}

/// The way back of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReturnPath {
    /// Where to transmit; None: where the packet came from.
    pub device: Option<DeviceIndex>,
    /// Link addresses; None: those of the packet, exchanged.
    pub link: Option<ReplyLink>,
}

impl ReturnPaths {
    /// The way of what a frame caused, to an address of that family.
    #[must_use]
    pub fn of(&self, frame: &Frame<'_>, family: Family) -> ReturnPath {
        let hop = match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        };
        match hop {
            Some(hop) if self.all.is_none() && frame.is_tunnelled() => ReturnPath {
                device: Some(hop.device),
                link: Some(ReplyLink { source: hop.source, destination: hop.destination }),
            },
            _ => ReturnPath { device: None, link: self.all },
        }
    }
}

impl ReturnPath {
    /// The verdict on a frame that was made an answer.
    #[must_use]
    pub fn verdict(self) -> Verdict {
        self.device.map_or(Verdict::Reply, Verdict::ReplyBy)
    }
}

/// Turns an echo request into its reply. Without a `link` the frame's link
/// addresses are exchanged.
///
/// The reply has no IPv4 options and no IPv6 extension headers. RFC 1122 section
/// 3.2.2.6 would have it go back along a source route, and record the one that
/// it takes; RFC 7126 has since said that networks drop both.
pub fn echo(frame: &mut Frame<'_>, headers: &Headers, link: Option<ReplyLink>) {
    frame.truncate(ethernet::HEADER_BYTES + usize::from(headers.packet_bytes));
    write_link(frame.bytes_mut(), link);
    let transport = strip_options(frame, headers);
    let packet = &mut frame.bytes_mut()[ethernet::HEADER_BYTES..];
    match headers.key.family {
        Family::V4 => {
            let (source, destination) = packet[12..20].split_at_mut(4);
            source.swap_with_slice(destination);
            packet[8] = TTL;
            packet[10..12].fill(0);
            let sum = checksum::finish(checksum::sum(&packet[..transport]));
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        Family::V6 => {
            let (source, destination) = packet[8..40].split_at_mut(16);
            source.swap_with_slice(destination);
            packet[7] = TTL;
        }
    }
    icmp::echo_reply(headers.key.family, &mut packet[transport..]);
}

/// Cuts IPv4 options or IPv6 extension headers out. Gives the bytes of the IP
/// header that is left.
fn strip_options(frame: &mut Frame<'_>, headers: &Headers) -> usize {
    const LONGEST: usize = ethernet::HEADER_BYTES + ipv6::HEADER_BYTES;
    let fixed = match headers.key.family {
        Family::V4 => ipv4::HEADER_BYTES,
        Family::V6 => ipv6::HEADER_BYTES,
    };
    let transport = usize::from(headers.transport_offset);
    if transport == fixed {
        return fixed;
    }
    let kept = ethernet::HEADER_BYTES + fixed;
    let mut start = [0; LONGEST];
    start[..kept].copy_from_slice(&frame.bytes()[..kept]);
    let ip = &mut start[ethernet::HEADER_BYTES..kept];
    let packet_bytes = headers.packet_bytes - (transport - fixed) as u16;
    match headers.key.family {
        Family::V4 => {
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&packet_bytes.to_be_bytes());
        }
        Family::V6 => {
            ip[4..6].copy_from_slice(&(packet_bytes - fixed as u16).to_be_bytes());
            ip[6] = Protocol::ICMPV6.0;
        }
    }
    let front = frame.replace_front(ethernet::HEADER_BYTES + transport, kept);
    front.expect("less than was there").copy_from_slice(&start[..kept]);
    fixed
}

/// True for a packet with a source route: IPv4's loose or strict option, or an
/// IPv6 routing header with segments left.
#[must_use]
pub fn is_source_routed(frame: &Frame<'_>, headers: &Headers) -> bool {
    let packet = &frame.bytes()[ethernet::HEADER_BYTES..];
    let header = &packet[..usize::from(headers.transport_offset)];
    match headers.key.family {
        Family::V4 => ipv4::has_source_route(header),
        Family::V6 => ipv6::has_segments_left(header),
    }
}

/// Turns a packet into the error that says which MTU would fit. False, and
/// nothing changed, if the headroom is too small. `link` as for [`echo`].
pub fn too_big(
    frame: &mut Frame<'_>,
    headers: &Headers,
    mtu: u16,
    link: Option<ReplyLink>,
) -> bool {
    let family = headers.key.family;
    let (header_bytes, bytes_max) = match family {
        Family::V4 => (ipv4::HEADER_BYTES, ERROR_BYTES_MAX_V4),
        Family::V6 => (ipv6::HEADER_BYTES, ERROR_BYTES_MAX_V6),
    };
    let added = header_bytes + icmp::HEADER_BYTES;
    let link_header = link_header(frame.bytes(), link, family);
    let quoted = usize::from(headers.packet_bytes).min(bytes_max - added);
    frame.truncate(ethernet::HEADER_BYTES + quoted);
    if frame.replace_front(ethernet::HEADER_BYTES, ethernet::HEADER_BYTES + added).is_none() {
        return false;
    }
    let (link, packet) = frame.bytes_mut().split_at_mut(ethernet::HEADER_BYTES);
    link.copy_from_slice(&link_header);
    let (ip, message) = packet.split_at_mut(header_bytes);
    write_ip(ip, headers, message.len());
    message[..icmp::HEADER_BYTES].copy_from_slice(&icmp::too_big(family, mtu));
    let pseudo = match family {
        Family::V4 => 0,
        Family::V6 => {
            checksum::pseudo_header(&ip[8..24], &ip[24..40], Protocol::ICMPV6.0, message.len())
        }
    };
    let sum = checksum::finish(pseudo + checksum::sum(message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    true
}

/// From the VIP to whom the packet came from.
fn write_ip(to: &mut [u8], headers: &Headers, payload_bytes: usize) {
    let (source, destination) = (headers.key.destination, headers.key.source);
    match headers.key.family {
        Family::V4 => {
            let header = ipv4::Emit {
                packet_bytes: (ipv4::HEADER_BYTES + payload_bytes) as u16,
                traffic_class: 0,
                id: 0,
                flags: ipv4::DONT_FRAGMENT,
                ttl: TTL,
                protocol: Protocol::ICMP,
                source: source as u32,
                destination: destination as u32,
            };
            to.copy_from_slice(&header.to_bytes());
        }
        Family::V6 => {
            let header = ipv6::Emit {
                payload_bytes: payload_bytes as u16,
                traffic_class: 0,
                flow_label: 0,
                hop_limit: TTL,
                protocol: Protocol::ICMPV6,
                source,
                destination,
            };
            to.copy_from_slice(&header.to_bytes());
        }
    }
}

/// True if anything may be sent because of that source at all (RFC 1122
/// section 3.2.2, RFC 4443 section 2.4): not to groups, and not where no host
/// is (RFC 1812 section 5.3.7 calls such sources martian).
#[must_use]
pub fn may_answer(headers: &Headers) -> bool {
    headers.key.source != headers.key.destination
        && match ip::address(headers.key.family, headers.key.source) {
            std::net::IpAddr::V4(source) => {
                // 0/8 is "this network", 240/4 reserved; broadcast is in it.
                !matches!(source.octets()[0], 0 | 127 | 224..)
            }
            std::net::IpAddr::V6(source) => {
                !source.is_multicast()
                    && !source.is_unspecified()
                    && !source.is_loopback()
                    && source.to_ipv4_mapped().is_none()
            }
        }
}

fn write_link(frame: &mut [u8], link: Option<ReplyLink>) {
    match link {
        Some(link) => {
            frame[..6].copy_from_slice(&link.destination.0);
            frame[6..12].copy_from_slice(&link.source.0);
        }
        None => {
            let (destination, source) = frame[..12].split_at_mut(6);
            destination.swap_with_slice(source);
        }
    }
}

fn link_header(
    frame: &[u8],
    link: Option<ReplyLink>,
    family: Family,
) -> [u8; ethernet::HEADER_BYTES] {
    let ether_type = match family {
        Family::V4 => EtherType::IPV4,
        Family::V6 => EtherType::IPV6,
    };
    let mut header = ethernet::emit(MacAddress::default(), MacAddress::default(), ether_type);
    header[..12].copy_from_slice(&frame[..12]);
    write_link(&mut header, link);
    header
}
