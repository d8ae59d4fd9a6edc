//! IPv6 (RFC 8200) and its extension headers.

use crate::error::ParseError;
use crate::ip::{Fragment, Protocol};

/// Bytes of the fixed header.
pub const HEADER_BYTES: usize = 40;
/// Bytes of a fragment header.
pub const FRAGMENT_HEADER_BYTES: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

/// The checked headers of a packet, extension headers walked.
#[derive(Debug, Clone, Copy)]
pub struct Header {
    /// Bytes of the fixed header and all extension headers.
    pub header_bytes: usize,
    /// Bytes of the packet, headers included.
    pub packet_bytes: usize,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Where the packet stands in its datagram.
    pub fragment: Fragment,
    /// Hop limit.
    pub hop_limit: u8,
    /// The upper-layer protocol behind the extension headers. Of a later
    /// fragment: the one its fragment header names.
    pub protocol: Protocol,
    /// Source address.
    pub source: u128,
    /// Destination address.
    pub destination: u128,
}

/// Checks and reads the headers at the start of `packet`, which may have
/// padding behind it. Jumbograms (payload length zero, RFC 2675) do not fit a
/// frame and are refused.
#[inline(always)]
pub fn parse(packet: &[u8]) -> Result<Header, ParseError> {
    let fixed = packet.first_chunk::<HEADER_BYTES>().ok_or(ParseError::IpHeader)?;
    if fixed[0] >> 4 != 6 {
        return Err(ParseError::IpVersion);
    }
    let packet_bytes = HEADER_BYTES + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    if packet_bytes > packet.len() {
        return Err(ParseError::IpLength);
    }
    let (_, addresses) = fixed.split_at(8);
    let (addresses, _) = addresses.as_chunks::<16>();
    let chain = match fixed[6] {
        // The two that nearly every packet has, without the walk.
        6 | 17 => Chain {
            header_bytes: HEADER_BYTES,
            fragment: Fragment::Whole,
            protocol: Protocol(fixed[6]),
        },
        next => walk(&packet[..packet_bytes], next)?,
    };
    Ok(Header {
        header_bytes: chain.header_bytes,
        packet_bytes,
        traffic_class: fixed[0] << 4 | fixed[1] >> 4,
        fragment: chain.fragment,
        hop_limit: fixed[7],
        protocol: chain.protocol,
        source: u128::from_be_bytes(addresses[0]),
        destination: u128::from_be_bytes(addresses[1]),
    })
}

/// Reads the headers of a packet that an ICMPv6 error quotes: it may be cut
/// off anywhere behind them.
#[must_use]
pub fn parse_quoted(packet: &[u8]) -> Option<Header> {
    let fixed = packet.first_chunk::<HEADER_BYTES>()?;
    if fixed[0] >> 4 != 6 {
        return None;
    }
    let (_, addresses) = fixed.split_at(8);
    let (addresses, _) = addresses.as_chunks::<16>();
    let chain = walk(packet, fixed[6]).ok()?;
    Some(Header {
        header_bytes: chain.header_bytes,
        packet_bytes: packet.len(),
        traffic_class: fixed[0] << 4 | fixed[1] >> 4,
        fragment: chain.fragment,
        hop_limit: fixed[7],
        protocol: chain.protocol,
        source: u128::from_be_bytes(addresses[0]),
        destination: u128::from_be_bytes(addresses[1]),
    })
}

/// Where the extension headers end.
struct Chain {
    header_bytes: usize,
    fragment: Fragment,
    protocol: Protocol,
}

/// Walks the extension headers up to the upper layer, or up to the fragment
/// header of a later fragment. Each is at least eight bytes, so the packet's
/// length bounds the walk.
fn walk(packet: &[u8], first: u8) -> Result<Chain, ParseError> {
    let mut chain =
        Chain { header_bytes: HEADER_BYTES, fragment: Fragment::Whole, protocol: Protocol(first) };
    let mut seen_fragment = false;
    loop {
        let rest = &packet[chain.header_bytes..];
        let length = match chain.protocol.0 {
            // RFC 8200 section 4.1: hop-by-hop options come first or not at all.
            HOP_BY_HOP if chain.header_bytes != HEADER_BYTES => {
                return Err(ParseError::IpExtension);
            }
            HOP_BY_HOP | DESTINATION_OPTIONS => check_options(rest)?,
            ROUTING | MOBILITY | HOST_IDENTITY | SHIM6 => extension_bytes(rest, 8)?,
            // RFC 4302: in units of four bytes, minus two.
            AUTHENTICATION => extension_bytes(rest, 4)?,
            // A second one is nothing that a sender may make, atomic ones included.
            FRAGMENT if seen_fragment => return Err(ParseError::IpExtension),
            FRAGMENT => {
                seen_fragment = true;
                chain.fragment = fragment(rest)?;
                FRAGMENT_HEADER_BYTES
            }
            _ => return Ok(chain),
        };
        chain.protocol = Protocol(rest[0]);
        chain.header_bytes += length;
        if matches!(chain.fragment, Fragment::Later { .. }) {
            return Ok(chain);
        }
    }
}

/// True for headers, extension headers included, that were walked before and
/// have a routing header with segments left.
#[must_use]
pub fn has_segments_left(headers: &[u8]) -> bool {
    let Some(mut next) = headers.get(6).copied() else { return false };
    let mut rest = headers.get(HEADER_BYTES..).unwrap_or_default();
    while let [following, length, _, segments_left, ..] = *rest {
        let bytes = match next {
            ROUTING if segments_left > 0 => return true,
            FRAGMENT => FRAGMENT_HEADER_BYTES,
            AUTHENTICATION => 8 + usize::from(length) * 4,
            _ => 8 + usize::from(length) * 8,
        };
        (next, rest) = (following, rest.get(bytes..).unwrap_or_default());
    }
    false
}

/// Bytes of an extension header whose second byte counts units beyond the
/// first eight bytes; refused if it runs past the packet.
fn extension_bytes(rest: &[u8], unit: usize) -> Result<usize, ParseError> {
    let length = 8 + usize::from(*rest.get(1).ok_or(ParseError::IpExtension)?) * unit;
    if length > rest.len() { Err(ParseError::IpExtension) } else { Ok(length) }
}

/// Checks the type-length-value options of a hop-by-hop or destination
/// options header; gives its bytes.
fn check_options(rest: &[u8]) -> Result<usize, ParseError> {
    const PAD_1: u8 = 0;
    let length = extension_bytes(rest, 8)?;
    let mut options = &rest[2..length];
    while let Some(&kind) = options.first() {
        let bytes = match kind {
            PAD_1 => 1,
            _ => 2 + usize::from(*options.get(1).ok_or(ParseError::IpExtension)?),
        };
        options = options.get(bytes..).ok_or(ParseError::IpExtension)?;
    }
    Ok(length)
}

/// Reads a fragment header. Offset zero and no more to come is RFC 6946's
/// atomic fragment: a whole datagram.
fn fragment(rest: &[u8]) -> Result<Fragment, ParseError> {
    let header = rest.first_chunk::<FRAGMENT_HEADER_BYTES>().ok_or(ParseError::IpExtension)?;
    let offset_and_more = u16::from_be_bytes([header[2], header[3]]);
    let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    Ok(match (offset_and_more >> 3, offset_and_more & 1) {
        (0, 0) => Fragment::Whole,
        (0, _) => Fragment::First { id },
        _ => Fragment::Later { id },
    })
}

/// The fields of a fixed header that we write.
#[derive(Debug, Clone, Copy)]
pub struct Emit {
    /// Bytes behind the fixed header.
    pub payload_bytes: u16,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits (RFC 6438 for tunnels).
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// What follows.
    pub protocol: Protocol,
    /// Source address.
    pub source: u128,
    /// Destination address.
    pub destination: u128,
}

impl Emit {
    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | (self.flow_label & 0xf_ffff);
        header[..4].copy_from_slice(&first.to_be_bytes());
        header[4..6].copy_from_slice(&self.payload_bytes.to_be_bytes());
        header[6] = self.protocol.0;
        header[7] = self.hop_limit;
        header[8..24].copy_from_slice(&self.source.to_be_bytes());
        header[24..].copy_from_slice(&self.destination.to_be_bytes());
        header
    }
}
