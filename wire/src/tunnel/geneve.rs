//! Geneve (RFC 8926).
//!
//! ```text
//!  0                   1                   2                   3
//! |Ver|Opt Len (6)|O|C|  reserved |         protocol type         |
//! |          network identifier, 24 bits          |   reserved    |
//! |         option class          |C|    type     | rsv |Len (5)  |   each option:
//! |  Len x 4 bytes of body ...                                    |
//! ```

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
/// Bytes in front of an option's body.
pub const OPTION_HEADER_BYTES: usize = 4;

/// In the header's second byte: not for the packet inside, but for the tunnel's end.
const CONTROL: u8 = 0b1000_0000;
/// There: an option is critical.
const HAS_CRITICAL: u8 = 0b0100_0000;
/// In an option's type: who does not know it drops the packet.
const IS_CRITICAL: u8 = 0b1000_0000;

/// A header's bytes: version 0, no options, network identifier 0.
#[must_use]
pub fn emit(inner: EtherType) -> [u8; HEADER_BYTES] {
    let [high, low] = inner.0.to_be_bytes();
    [0, 0, high, low, 0, 0, 0, 0]
}

/// Changes a header that was emitted: `option_bytes` of options follow, a
/// critical one among them. They are a multiple of four, up to 252.
pub fn announce_critical_options(header: &mut [u8; HEADER_BYTES], option_bytes: usize) {
    debug_assert!(option_bytes.is_multiple_of(4) && option_bytes <= 252);
    header[0] = (option_bytes / 4) as u8;
    header[1] |= HAS_CRITICAL;
}

/// What is inside and the bytes of the header with its options; None for
/// control messages, other versions, critical options (which are for agents
/// only), or a header cut off.
#[must_use]
pub fn parse(datagram: &[u8]) -> Option<(EtherType, usize)> {
    let Header { inner, has_critical, options } = parse_with_options(datagram)?;
    (!has_critical).then_some((inner, HEADER_BYTES + options.len()))
}

/// A header that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'p> {
    /// What is inside.
    pub inner: EtherType,
    /// The header says that an option is critical.
    pub has_critical: bool,
    /// The options: see [`options`].
    pub options: &'p [u8],
}

/// Reads a header; None for control messages, other versions, or a header cut
/// off.
#[must_use]
pub fn parse_with_options(datagram: &[u8]) -> Option<Header<'_>> {
    let (header, rest) = datagram.split_first_chunk::<HEADER_BYTES>()?;
    let options = rest.get(..usize::from(header[0] & 0x3f) * 4)?;
    (header[0] >> 6 == 0 && header[1] & CONTROL == 0).then_some(Header {
        inner: EtherType(u16::from_be_bytes([header[2], header[3]])),
        has_critical: header[1] & HAS_CRITICAL != 0,
        options,
    })
}

/// One option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GeneveOption<'p> {
    /// Whose it is.
    pub class: u16,
    /// Which of theirs, with the bit for critical ones.
    pub kind: u8,
    /// A multiple of four bytes, up to 124.
    pub body: &'p [u8],
}

impl GeneveOption<'_> {
    /// Whether a packet with it is dropped where it is unknown.
    #[must_use]
    pub fn is_critical(&self) -> bool {
        self.kind & IS_CRITICAL != 0
    }
}

/// The first bytes of an option with a body of that length, a multiple of four
/// up to 124.
#[must_use]
pub fn emit_option_header(class: u16, kind: u8, body_bytes: usize) -> [u8; OPTION_HEADER_BYTES] {
    debug_assert!(body_bytes.is_multiple_of(4) && body_bytes <= 124);
    let [high, low] = class.to_be_bytes();
    [high, low, kind, (body_bytes / 4) as u8]
}

/// The options of a header, in their order. None in place of one that is cut
/// off, which is the last.
pub fn options(mut bytes: &[u8]) -> impl Iterator<Item = Option<GeneveOption<'_>>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let option = split_option(bytes);
        bytes = option.map_or(&[], |(_, rest)| rest);
        Some(option.map(|(option, _)| option))
    })
}

fn split_option(bytes: &[u8]) -> Option<(GeneveOption<'_>, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<OPTION_HEADER_BYTES>()?;
    let (body, rest) = rest.split_at_checked(usize::from(header[3] & 0x1f) * 4)?;
    let class = u16::from_be_bytes([header[0], header[1]]);
    Some((GeneveOption { class, kind: header[2], body }, rest))
}
