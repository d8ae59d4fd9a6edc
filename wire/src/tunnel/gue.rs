//! Generic UDP encapsulation, variant 0 without extensions
//! (draft-ietf-intarea-gue).

use super::{Carrier, Description, Parsed, ipip, no_checksum};
use crate::ip::Protocol;

/// The tunnel.
pub const DESCRIPTION: Description = Description {
    name: "gue",
    carrier: Carrier::Udp { port: PORT },
    header_bytes: HEADER_BYTES,
    recursion_control: false,
    emit: |to, inside| {
        to.copy_from_slice(&emit(super::Encap::Ipip.protocol(inside.family)));
    },
    parse: |_, datagram| {
        let (protocol, header_bytes) = parse(datagram)?;
        Some(Parsed { header_bytes, inner: ipip::inner(protocol)?, recursion: 0 })
    },
    is_checksum_valid: no_checksum,
};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 4;
/// The destination port (IANA: gue).
pub const PORT: u16 = 6080;

/// A header's bytes: version, flags and length zero, then what is inside.
#[must_use]
pub fn emit(protocol: Protocol) -> [u8; HEADER_BYTES] {
    [0, protocol.0, 0, 0]
}

/// The protocol inside and the bytes of the header with its optional fields;
/// None for control messages, other variants, or a header cut off.
#[must_use]
pub fn parse(datagram: &[u8]) -> Option<(Protocol, usize)> {
    const VARIANT_AND_CONTROL: u8 = 0b1110_0000;
    let header = datagram.first_chunk::<HEADER_BYTES>()?;
    let bytes = HEADER_BYTES + usize::from(header[0] & 0x1f) * 4;
    (header[0] & VARIANT_AND_CONTROL == 0 && bytes <= datagram.len())
        .then_some((Protocol(header[1]), bytes))
}
