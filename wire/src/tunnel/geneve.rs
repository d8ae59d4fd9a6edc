//! Geneve (RFC 8926).

use super::{Carrier, Description, Parsed, no_checksum};
use crate::ethernet::EtherType;

/// The tunnel.
pub const DESCRIPTION: Description = Description {
    name: "geneve",
    carrier: Carrier::Udp { port: PORT },
    header_bytes: HEADER_BYTES,
    recursion_control: false,
    emit: |to, inside| to.copy_from_slice(&emit(EtherType::of(inside.family))),
    parse: |_, datagram| {
        let (inner, header_bytes) = parse(datagram)?;
        Some(Parsed { header_bytes, inner, recursion: 0 })
    },
    is_checksum_valid: no_checksum,
};

/// Bytes of the header without options.
pub const HEADER_BYTES: usize = 8;
/// The destination port (IANA: geneve).
pub const PORT: u16 = 6081;

/// A header's bytes: version 0, no options, network identifier 0.
#[must_use]
pub fn emit(inner: EtherType) -> [u8; HEADER_BYTES] {
    let [high, low] = inner.0.to_be_bytes();
    [0, 0, high, low, 0, 0, 0, 0]
}

/// What is inside and the bytes of the header with its options; None for
/// control messages, other versions, critical options (we know none), or a
/// header cut off.
#[must_use]
pub fn parse(datagram: &[u8]) -> Option<(EtherType, usize)> {
    const CONTROL_AND_CRITICAL: u8 = 0b1100_0000;
    let header = datagram.first_chunk::<HEADER_BYTES>()?;
    let bytes = HEADER_BYTES + usize::from(header[0] & 0x3f) * 4;
    let known =
        header[0] >> 6 == 0 && header[1] & CONTROL_AND_CRITICAL == 0 && bytes <= datagram.len();
    known.then_some((EtherType(u16::from_be_bytes([header[2], header[3]])), bytes))
}
