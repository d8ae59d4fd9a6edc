//! ICMP (RFC 792) and ICMPv6 (RFC 4443): echo, errors and the packets that
//! errors quote.

use crate::checksum;
use crate::flow::FlowKey;
use crate::ip::{Family, Fragment, Protocol};
use crate::{ipv4, ipv6};

/// Bytes of the header that all messages we handle have.
pub const HEADER_BYTES: usize = 8;

/// What a message is to a load balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A request to be answered.
    EchoRequest,
    /// An error about a packet that it quotes.
    Error,
    /// Anything else.
    Other,
}

/// The kind of the message at the start of `message`; None if it is cut off.
#[must_use]
pub fn kind(family: Family, message: &[u8]) -> Option<Kind> {
    let header = message.first_chunk::<HEADER_BYTES>()?;
    Some(match (family, header[0]) {
        (Family::V4, 8) | (Family::V6, 128) => Kind::EchoRequest,
        // Unreachable, time exceeded, parameter problem. Source quench is
        // deprecated (RFC 6633), redirects are for hosts on the link.
        (Family::V4, 3 | 11 | 12) => Kind::Error,
        (Family::V6, 1..=4) => Kind::Error,
        _ => Kind::Other,
    })
}

/// Turns an echo request into its reply: another type, and the checksum
/// updated, so that a wrong checksum stays wrong.
pub fn echo_reply(family: Family, message: &mut [u8]) {
    let reply = match family {
        Family::V4 => 0,
        Family::V6 => 129,
    };
    let old = u16::from_be_bytes([message[0], message[1]]);
    message[0] = reply;
    let new = u16::from_be_bytes([message[0], message[1]]);
    let sum = checksum::update(u16::from_be_bytes([message[2], message[3]]), old, new);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

/// The MTU that a "fragmentation needed" or "packet too big" reports; None
/// for other messages. Zero from routers that predate RFC 1191.
#[must_use]
pub fn reported_mtu(family: Family, message: &[u8]) -> Option<u32> {
    let header = message.first_chunk::<HEADER_BYTES>()?;
    match (family, header[0], header[1]) {
        (Family::V4, 3, 4) => Some(u32::from(u16::from_be_bytes([header[6], header[7]]))),
        (Family::V6, 2, _) => {
            Some(u32::from_be_bytes([header[4], header[5], header[6], header[7]]))
        }
        _ => None,
    }
}

/// The header of "fragmentation needed" (RFC 1191) or "packet too big", whose
/// checksum is still zero.
#[must_use]
pub fn too_big(family: Family, mtu: u16) -> [u8; HEADER_BYTES] {
    let [high, low] = mtu.to_be_bytes();
    match family {
        Family::V4 => [3, 4, 0, 0, 0, 0, high, low],
        Family::V6 => [2, 0, 0, 0, 0, 0, high, low],
    }
}

/// The five-tuple of the packet that an error quotes, which is usually cut
/// off behind its first eight bytes of transport header. None if not even
/// those are there, or if the quote is a later fragment.
#[must_use]
pub fn quoted(family: Family, message: &[u8]) -> Option<FlowKey> {
    let packet = message.get(HEADER_BYTES..)?;
    let (header_bytes, protocol, source, destination) = match family {
        Family::V4 => quoted_v4(packet)?,
        Family::V6 => quoted_v6(packet)?,
    };
    let (source_port, destination_port) = match protocol {
        Protocol::TCP | Protocol::UDP => {
            let ports = packet.get(header_bytes..)?.first_chunk::<4>()?;
            (u16::from_be_bytes([ports[0], ports[1]]), u16::from_be_bytes([ports[2], ports[3]]))
        }
        _ => (0, 0),
    };
    Some(FlowKey { family, protocol, source, destination, source_port, destination_port })
}

type Quote = (usize, Protocol, u128, u128);

fn quoted_v4(packet: &[u8]) -> Option<Quote> {
    let header = packet.first_chunk::<{ ipv4::HEADER_BYTES }>()?;
    let header_bytes = usize::from(header[0] & 0x0f) * 4;
    let offset = u16::from_be_bytes([header[6], header[7]]) & ipv4::OFFSET_MASK;
    if header[0] >> 4 != 4 || header_bytes < ipv4::HEADER_BYTES || offset != 0 {
        return None;
    }
    let address = |at: usize| {
        u128::from(u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]))
    };
    Some((header_bytes, Protocol(header[9]), address(12), address(16)))
}

fn quoted_v6(packet: &[u8]) -> Option<Quote> {
    let header = ipv6::parse_quoted(packet)?;
    if matches!(header.fragment, Fragment::Later { .. }) {
        return None;
    }
    Some((header.header_bytes, header.protocol, header.source, header.destination))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_cut_to_eight_bytes_gives_the_five_tuple() {
        let header = ipv4::Emit {
            packet_bytes: 1500,
            traffic_class: 0,
            id: 7,
            flags: ipv4::DONT_FRAGMENT,
            ttl: 9,
            protocol: Protocol::TCP,
            source: 0xcb00_710a,
            destination: 0xc000_0201,
        };
        let mut message = too_big(Family::V4, 1400).to_vec();
        message.extend(header.to_bytes());
        message.extend([0, 80, 0x12, 0x34, 0, 0, 0, 1]);
        let key = quoted(Family::V4, &message).unwrap();
        assert_eq!((key.source, key.source_port, key.destination_port), (0xcb00_710a, 80, 0x1234));
        assert_eq!(reported_mtu(Family::V4, &message), Some(1400));
        for cut in 0..message.len() - 4 {
            assert_eq!(quoted(Family::V4, &message[..cut]), None);
        }
    }

    #[test]
    fn an_echo_reply_has_the_checksum_of_a_full_sum() {
        let mut message = [8, 0, 0, 0, 0x12, 0x34, 0, 1, b'h', b'i'];
        let sum = checksum::finish(checksum::sum(&message));
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        echo_reply(Family::V4, &mut message);
        assert_eq!(message[0], 0);
        assert!(checksum::is_valid(&message));
    }
}
