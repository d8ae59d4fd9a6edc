//! Generic routing encapsulation (RFC 2784, keys and sequence numbers by
//! RFC 2890), with the recursion control of RFC 1701 that only our own machines
//! ever set (datapath/src/decapsulate.rs).

use super::{Carrier, Description, Parsed};
use crate::checksum;
use crate::ethernet::EtherType;
use crate::ip::Protocol;

/// The tunnel.
pub const DESCRIPTION: Description = Description {
    name: "gre",
    carrier: Carrier::Ip { v4: Protocol::GRE, v6: Protocol::GRE },
    header_bytes: HEADER_BYTES,
    recursion_control: true,
    emit: |to, inside| {
        let ether_type = EtherType::of(inside.family);
        to.copy_from_slice(&Header { recursion: inside.recursion, ether_type }.to_bytes());
    },
    parse: |_, payload| {
        let (Header { recursion, ether_type }, header_bytes) = parse(payload)?;
        Some(Parsed { header_bytes, inner: ether_type, recursion })
    },
    is_checksum_valid,
};

/// Bytes of a header without optional fields.
pub const HEADER_BYTES: usize = 4;

/// The bits of the first word.
const CHECKSUM: u16 = 0x8000;
const ROUTING: u16 = 0x4000;
const KEY: u16 = 0x2000;
const SEQUENCE: u16 = 0x1000;
/// Of each optional field: the checksum's with two bytes that are reserved.
const OPTION_BYTES: usize = 4;
const RECURSION_SHIFT: u32 = 8;
const RECURSION_MASK: u16 = 0x0700;
const VERSION_MASK: u16 = 0x0007;

/// What a header says of what follows; written without optional fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// How many further encapsulations are permitted (RFC 1701), 0 to 7.
    pub recursion: u8,
    /// What is inside.
    pub ether_type: EtherType,
}

/// Reads the header at the start of `packet`, and says how many bytes it has;
/// None if it is cut off, is source-routed or has another version. Keys and
/// sequence numbers are skipped, the checksum is for [`is_checksum_valid`].
#[must_use]
pub fn parse(packet: &[u8]) -> Option<(Header, usize)> {
    let header = packet.first_chunk::<HEADER_BYTES>()?;
    let flags = u16::from_be_bytes([header[0], header[1]]);
    let options = (flags & (CHECKSUM | KEY | SEQUENCE)).count_ones() as usize;
    let bytes = HEADER_BYTES + options * OPTION_BYTES;
    if flags & (ROUTING | VERSION_MASK) != 0 || packet.len() < bytes {
        return None;
    }
    let header = Header {
        recursion: ((flags & RECURSION_MASK) >> RECURSION_SHIFT) as u8,
        ether_type: EtherType(u16::from_be_bytes([header[2], header[3]])),
    };
    Some((header, bytes))
}

/// False if `packet`, from the GRE header to its end, has a checksum and it is
/// wrong.
#[must_use]
pub fn is_checksum_valid(packet: &[u8]) -> bool {
    let has_checksum = packet.first().is_some_and(|flags| u16::from(*flags) << 8 & CHECKSUM != 0);
    !has_checksum || checksum::is_valid(packet)
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
