//! A frame's headers, read once and used by every later stage.

use crate::error::ParseError;
use crate::ethernet::{self, EtherType};
use crate::flow::FlowKey;
use crate::ip::{Family, Fragment, Protocol};
use crate::{ipv4, ipv6, tcp, udp};

/// What the headers of an IP packet say.
#[derive(Debug, Clone, Copy)]
pub struct Headers {
    /// The five-tuple. A later fragment has no ports.
    pub key: FlowKey,
    /// Bytes of the IP packet by its own length field; Ethernet padding is
    /// not part of it.
    pub packet_bytes: u16,
    /// Offset of the transport header in the IP packet.
    pub transport_offset: u16,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// IPv4's "do not fragment"; always true for IPv6, whose routers never
    /// fragment.
    pub dont_fragment: bool,
    /// Where the packet stands in its datagram.
    pub fragment: Fragment,
    /// TCP's flags; none for other protocols and later fragments.
    pub tcp_flags: tcp::Flags,
}

/// What the stages behind the match need to know of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketMeta {
    /// Its family.
    pub family: Family,
    /// Transport protocol.
    pub protocol: Protocol,
    /// TCP's flags; none for other protocols and later fragments.
    pub tcp_flags: tcp::Flags,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Its length, Ethernet header and padding not counted.
    pub packet_bytes: u16,
}

impl Headers {
    /// What the stages behind the match need of this packet.
    #[inline]
    #[must_use]
    pub fn meta(&self) -> PacketMeta {
        PacketMeta {
            family: self.key.family,
            protocol: self.key.protocol,
            tcp_flags: self.tcp_flags,
            traffic_class: self.traffic_class,
            packet_bytes: self.packet_bytes,
        }
    }

    /// The TCP segment in the frame with these headers, from its header on; None: it is
    /// none, or a later fragment of one.
    #[inline]
    #[must_use]
    pub fn tcp_segment<'f>(&self, frame: &'f [u8]) -> Option<&'f [u8]> {
        if self.key.protocol != Protocol::TCP || matches!(self.fragment, Fragment::Later { .. }) {
            return None;
        }
        let packet = frame.get(ethernet::HEADER_BYTES..)?.get(..self.packet_bytes.into())?;
        packet.get(usize::from(self.transport_offset)..)
    }

    /// What the UDP datagram in the frame with these headers carries; None: it is no
    /// whole datagram.
    #[inline]
    #[must_use]
    pub fn udp_payload<'f>(&self, frame: &'f [u8]) -> Option<&'f [u8]> {
        if self.key.protocol != Protocol::UDP || self.fragment != Fragment::Whole {
            return None;
        }
        let packet = frame.get(ethernet::HEADER_BYTES..)?.get(..self.packet_bytes.into())?;
        packet.get(usize::from(self.transport_offset) + udp::HEADER_BYTES..)
    }
}

/// Reads the headers of an Ethernet frame. `Ok(None)`: not an untagged IP
/// packet (ARP, VLAN, ...), so nothing for us.
// Inlined wherever it is hot: returned through memory, the headers' copies
// cost more than reading them.
#[inline(always)]
pub fn parse(frame: &[u8]) -> Result<Option<Headers>, ParseError> {
    let ether_type = ethernet::ether_type(frame).ok_or(ParseError::EthernetHeader)?;
    let packet = &frame[ethernet::HEADER_BYTES..];
    match ether_type {
        EtherType::IPV4 => parse_v4(packet).map(Some),
        EtherType::IPV6 => parse_v6(packet).map(Some),
        _ => Ok(None),
    }
}

/// Reads the headers of an IPv4 packet.
#[inline(always)]
pub fn parse_v4(packet: &[u8]) -> Result<Headers, ParseError> {
    let ip = ipv4::parse(packet)?;
    let payload = &packet[ip.header_bytes..ip.packet_bytes];
    let transport = Transport::parse(ip.protocol, payload, ip.fragment)?;
    Ok(Headers {
        key: transport.key(
            Family::V4,
            ip.protocol,
            u128::from(ip.source),
            u128::from(ip.destination),
        ),
        packet_bytes: ip.packet_bytes as u16,
        transport_offset: ip.header_bytes as u16,
        traffic_class: ip.traffic_class,
        dont_fragment: ip.dont_fragment,
        fragment: ip.fragment,
        tcp_flags: transport.tcp_flags,
    })
}

/// Reads the headers of an IPv6 packet.
#[inline(always)]
pub fn parse_v6(packet: &[u8]) -> Result<Headers, ParseError> {
    let ip = ipv6::parse(packet)?;
    // 40 + 65,535 bytes do not fit the field; no frame is that long.
    let packet_bytes = u16::try_from(ip.packet_bytes).map_err(|_| ParseError::IpLength)?;
    let payload = &packet[ip.header_bytes..ip.packet_bytes];
    let transport = Transport::parse(ip.protocol, payload, ip.fragment)?;
    Ok(Headers {
        key: transport.key(Family::V6, ip.protocol, ip.source, ip.destination),
        packet_bytes,
        transport_offset: ip.header_bytes as u16,
        traffic_class: ip.traffic_class,
        dont_fragment: true,
        fragment: ip.fragment,
        tcp_flags: transport.tcp_flags,
    })
}

/// What we need of a transport header, whatever the protocol.
#[derive(Default)]
struct Transport {
    source_port: u16,
    destination_port: u16,
    tcp_flags: tcp::Flags,
}

impl Transport {
    #[inline(always)]
    fn parse(
        protocol: Protocol,
        payload: &[u8],
        fragment: Fragment,
    ) -> Result<Transport, ParseError> {
        if matches!(fragment, Fragment::Later { .. }) {
            return Ok(Transport::default());
        }
        let cut = fragment != Fragment::Whole;
        match protocol {
            Protocol::TCP => tcp::parse(payload, cut).map(|tcp| Transport {
                source_port: tcp.source_port,
                destination_port: tcp.destination_port,
                tcp_flags: tcp.flags,
            }),
            Protocol::UDP => udp::parse(payload, cut).map(|udp| Transport {
                source_port: udp.source_port,
                destination_port: udp.destination_port,
                tcp_flags: tcp::Flags::default(),
            }),
            _ => Ok(Transport::default()),
        }
    }

    #[inline]
    fn key(&self, family: Family, protocol: Protocol, source: u128, destination: u128) -> FlowKey {
        FlowKey {
            family,
            protocol,
            source,
            destination,
            source_port: self.source_port,
            destination_port: self.destination_port,
        }
    }
}
