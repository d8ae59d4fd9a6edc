//! TCP (RFC 9293): only the fields that a load balancer uses.

use crate::error::ParseError;

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;

/// The flags byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset.
    pub const RST: Flags = Flags(0x04);
    /// The acknowledgement field counts.
    pub const ACK: Flags = Flags(0x10);

    /// True if all of `flags` are set.
    #[inline]
    #[must_use]
    pub fn has(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// True if any of `flags` is set.
    #[inline]
    #[must_use]
    pub fn has_any(self, flags: Flags) -> bool {
        self.0 & flags.0 != 0
    }

    /// True for the packet that opens a connection: SYN without ACK.
    #[inline]
    #[must_use]
    pub fn opens(self) -> bool {
        self.0 & (Flags::SYN.0 | Flags::ACK.0) == Flags::SYN.0
    }
}

/// What we read of a header.
#[derive(Debug, Clone, Copy)]
pub struct Header {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Flags.
    pub flags: Flags,
}

/// Reads the header at the start of `segment`; the data offset must fit,
/// unless the segment is a first `fragment`, whose rest comes later.
#[inline]
pub fn parse(segment: &[u8], fragment: bool) -> Result<Header, ParseError> {
    let fixed = segment.first_chunk::<HEADER_BYTES>().ok_or(ParseError::TransportHeader)?;
    let header_bytes = usize::from(fixed[12] >> 4) * 4;
    if header_bytes < HEADER_BYTES || (header_bytes > segment.len() && !fragment) {
        return Err(ParseError::TransportHeader);
    }
    Ok(Header {
        source_port: u16::from_be_bytes([fixed[0], fixed[1]]),
        destination_port: u16::from_be_bytes([fixed[2], fixed[3]]),
        flags: Flags(fixed[13]),
    })
}
