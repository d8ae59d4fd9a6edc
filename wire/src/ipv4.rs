//! IPv4 (RFC 791).

use crate::checksum;
use crate::error::ParseError;
use crate::ip::{Fragment, Protocol};

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;
/// Bytes of the longest header.
pub const HEADER_BYTES_MAX: usize = 60;
/// The flag "do not fragment", in the word of flags and offset.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// The flag "more fragments", in the word of flags and offset.
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// The fragment offset in units of eight bytes, in the same word.
pub const OFFSET_MASK: u16 = 0x1fff;

/// The checked header of a packet.
#[derive(Debug, Clone, Copy)]
pub struct Header {
    /// Bytes of the header with its options.
    pub header_bytes: usize,
    /// Bytes of the packet, header included.
    pub packet_bytes: usize,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// The "do not fragment" flag.
    pub dont_fragment: bool,
    /// Where the packet stands in its datagram.
    pub fragment: Fragment,
    /// Time to live.
    pub ttl: u8,
    /// What follows the header.
    pub protocol: Protocol,
    /// Source address.
    pub source: u32,
    /// Destination address.
    pub destination: u32,
}

/// Checks and reads the header at the start of `packet`, which may have
/// padding behind it. The header checksum is verified.
#[inline(always)]
pub fn parse(packet: &[u8]) -> Result<Header, ParseError> {
    let fixed = packet.first_chunk::<HEADER_BYTES>().ok_or(ParseError::IpHeader)?;
    if fixed[0] >> 4 != 4 {
        return Err(ParseError::IpVersion);
    }
    let header_bytes = usize::from(fixed[0] & 0x0f) * 4;
    if header_bytes < HEADER_BYTES || header_bytes > packet.len() {
        return Err(ParseError::IpHeader);
    }
    let packet_bytes = usize::from(word(fixed, 2));
    if packet_bytes < header_bytes || packet_bytes > packet.len() {
        return Err(ParseError::IpLength);
    }
    // Of constant length for nearly all: no loop.
    let valid = match header_bytes {
        HEADER_BYTES => checksum::is_valid(fixed),
        _ => checksum::is_valid(&packet[..header_bytes]),
    };
    if !valid {
        return Err(ParseError::IpChecksum);
    }
    if header_bytes > HEADER_BYTES {
        check_options(&packet[HEADER_BYTES..header_bytes])?;
    }
    let flags = word(fixed, 6);
    Ok(Header {
        header_bytes,
        packet_bytes,
        traffic_class: fixed[1],
        dont_fragment: flags & DONT_FRAGMENT != 0,
        fragment: fragment(flags, word(fixed, 4)),
        ttl: fixed[8],
        protocol: Protocol(fixed[9]),
        source: u32::from_be_bytes([fixed[12], fixed[13], fixed[14], fixed[15]]),
        destination: u32::from_be_bytes([fixed[16], fixed[17], fixed[18], fixed[19]]),
    })
}

#[inline]
fn word(header: &[u8; HEADER_BYTES], at: usize) -> u16 {
    u16::from_be_bytes([header[at], header[at + 1]])
}

#[inline]
fn fragment(flags: u16, id: u16) -> Fragment {
    let id = u32::from(id);
    match (flags & OFFSET_MASK, flags & MORE_FRAGMENTS) {
        (0, 0) => Fragment::Whole,
        (0, _) => Fragment::First { id },
        _ => Fragment::Later { id },
    }
}

/// Walks the options: end (0) stops, no-operation (1) is one byte, all others
/// carry their length.
fn check_options(mut options: &[u8]) -> Result<(), ParseError> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    while let Some(&kind) = options.first() {
        let length = match kind {
            END => return Ok(()),
            NO_OPERATION => 1,
            _ => usize::from(*options.get(1).ok_or(ParseError::IpOptions)?),
        };
        if length == 0 || (length < 2 && kind != NO_OPERATION) || length > options.len() {
            return Err(ParseError::IpOptions);
        }
        options = &options[length..];
    }
    Ok(())
}

/// True for a header, options included, with a loose or strict source route.
#[must_use]
pub fn has_source_route(header: &[u8]) -> bool {
    const LOOSE: u8 = 131;
    const STRICT: u8 = 137;
    const NO_OPERATION: u8 = 1;
    let mut options = header.get(HEADER_BYTES..).unwrap_or_default();
    while let [kind, rest @ ..] = options {
        options = match *kind {
            0 => return false,
            LOOSE | STRICT => return true,
            NO_OPERATION => rest,
            _ => {
                let bytes = rest.first().map_or(0, |bytes| usize::from(*bytes));
                options.get(bytes.max(2)..).unwrap_or_default()
            }
        };
    }
    false
}

/// The fields of a header that we write; the rest is fixed: no options, not
/// fragmented.
#[derive(Debug, Clone, Copy)]
pub struct Emit {
    /// Bytes of the packet, header included.
    pub packet_bytes: u16,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Identification; zero where "do not fragment" is set (RFC 6864).
    pub id: u16,
    /// Flags and fragment offset.
    pub flags: u16,
    /// Time to live.
    pub ttl: u8,
    /// What follows.
    pub protocol: Protocol,
    /// Source address.
    pub source: u32,
    /// Destination address.
    pub destination: u32,
}

impl Emit {
    /// The header's bytes with the checksum filled in.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0] = 0x45;
        header[1] = self.traffic_class;
        header[2..4].copy_from_slice(&self.packet_bytes.to_be_bytes());
        header[4..6].copy_from_slice(&self.id.to_be_bytes());
        header[6..8].copy_from_slice(&self.flags.to_be_bytes());
        header[8] = self.ttl;
        header[9] = self.protocol.0;
        header[12..16].copy_from_slice(&self.source.to_be_bytes());
        header[16..20].copy_from_slice(&self.destination.to_be_bytes());
        let sum = checksum::finish(checksum::sum(&header));
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }
}
