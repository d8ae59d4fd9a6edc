//! Generic routing encapsulation (RFC 2784), with the recursion control of
//! RFC 1701 that only our own machines ever set (DESIGN, "Fragments").

use crate::ethernet::EtherType;

/// Bytes of a header without optional fields.
pub const HEADER_BYTES: usize = 4;

/// The bits of the first word.
const CHECKSUM_ROUTING_KEY_SEQUENCE: u16 = 0xf000;
const RECURSION_SHIFT: u32 = 8;
const RECURSION_MASK: u16 = 0x0700;
const VERSION_MASK: u16 = 0x0007;

/// A header without checksum, routing, key or sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// How many further encapsulations are permitted (RFC 1701), 0 to 7.
    pub recursion: u8,
    /// What is inside.
    pub ether_type: EtherType,
}

/// Reads the header at the start of `packet`; None if it is cut off or has
/// optional fields or another version.
#[must_use]
pub fn parse(packet: &[u8]) -> Option<Header> {
    let header = packet.first_chunk::<HEADER_BYTES>()?;
    let flags = u16::from_be_bytes([header[0], header[1]]);
    if flags & (CHECKSUM_ROUTING_KEY_SEQUENCE | VERSION_MASK) != 0 {
        return None;
    }
    Some(Header {
        recursion: ((flags & RECURSION_MASK) >> RECURSION_SHIFT) as u8,
        ether_type: EtherType(u16::from_be_bytes([header[2], header[3]])),
    })
}

impl Header {
    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let flags = u16::from(self.recursion & 7) << RECURSION_SHIFT;
        let [a, b] = flags.to_be_bytes();
        let [c, d] = self.ether_type.0.to_be_bytes();
        [a, b, c, d]
    }
}
