//! UDP (RFC 768).

use crate::error::ParseError;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;

/// What we read of a header.
#[derive(Debug, Clone, Copy)]
pub struct Header {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

/// Reads the header at the start of `datagram`; its length field must fit,
/// unless the datagram is a first `fragment`, whose rest comes later.
#[inline]
pub fn parse(datagram: &[u8], fragment: bool) -> Result<Header, ParseError> {
    let header = datagram.first_chunk::<HEADER_BYTES>().ok_or(ParseError::TransportHeader)?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if length < HEADER_BYTES || (length > datagram.len() && !fragment) {
        return Err(ParseError::TransportHeader);
    }
    Ok(Header {
        source_port: u16::from_be_bytes([header[0], header[1]]),
        destination_port: u16::from_be_bytes([header[2], header[3]]),
    })
}

/// A header's bytes. `checksum` zero means "none" (RFC 6935 for tunnels).
#[must_use]
pub fn emit(
    source_port: u16,
    destination_port: u16,
    datagram_bytes: u16,
    checksum: u16,
) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..2].copy_from_slice(&source_port.to_be_bytes());
    header[2..4].copy_from_slice(&destination_port.to_be_bytes());
    header[4..6].copy_from_slice(&datagram_bytes.to_be_bytes());
    header[6..].copy_from_slice(&checksum.to_be_bytes());
    header
}
