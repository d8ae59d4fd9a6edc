//! The fields of a target by which the kernel sends packets, word by word.
//!
//! ```text
//!  target     two cache lines; of IPv4 in GRE, IPIP over IPv4 all is in the first
//!  word 0     63 ...... 56 55 ....... 48 47 ....... 32 31 .... 12 11 ..... 0
//!             class bits   class mask    packet bytes  sequence   generation; zero:
//!                                                                 not valid
//!  word 1     63 ............... 32 31 ... 24 23 .. 16 15 ............ 0
//!             mask of the source    egress    shape    sum of the IPv4 header
//!  word 2-10  the headers from Ethernet on, and zeros
//!  word 11-15 zero
//!
//!  shape      7 .. 5  4        3             2 ..................... 0
//!             zero    UDP      IPv6 outside  words between IP and the inner packet;
//!                                 7: no outer IP, but the packet's own Ethernet header
//! ```
//!
//! *Egress* is zero if packets leave by the device that they arrived on; otherwise it is the
//! next hop's device, as its index in the filter's map of devices plus one. *Packet bytes* is
//! the length of the longest inner packet that fits the path. The UDP header, if there is one,
//! follows the outer IP header. [`crate::encapsulate::HeaderTemplate`] explains the other
//! fields.

use super::LINE_WORDS;
use crate::encapsulate::{FRONT_BYTES_MAX, KernelTemplate};

/// Words of a target.
pub const TARGET_WORDS: usize = 2 * LINE_WORDS;

/// Words of the headers.
const FRONT_WORDS: usize = FRONT_BYTES_MAX.div_ceil(8);
/// Where they begin.
const FRONT_AT: usize = 2;
const _: () = assert!(FRONT_AT + FRONT_WORDS <= TARGET_WORDS, "the headers are too long");

const SHAPE_UDP: u8 = 1 << 4;

/// A target's words; of word 0 without its state.
pub(super) type TargetFields = [u64; TARGET_WORDS];

const EGRESS_SHIFT: u32 = 24;

/// The same with that egress.
pub(super) fn with_egress(fields: &TargetFields, egress: u8) -> TargetFields {
    let mut fields = *fields;
    fields[1] |= u64::from(egress) << EGRESS_SHIFT;
    fields
}

/// Without an egress.
pub(super) fn fields_of(template: &KernelTemplate) -> TargetFields {
    let mut front = [0; 8 * FRONT_WORDS];
    front[..FRONT_BYTES_MAX].copy_from_slice(&template.front);
    let shape = template.shape | if template.has_udp { SHAPE_UDP } else { 0 };
    let mut fields = [0; TARGET_WORDS];
    fields[0] = u64::from(template.class_bits) << 56
        | u64::from(template.class_mask) << 48
        | u64::from(template.inside_bytes_max) << 32;
    fields[1] = u64::from(template.source_host_mask) << 32
        | u64::from(shape) << 16
        | u64::from(template.sum);
    for (word, bytes) in fields[FRONT_AT..].iter_mut().zip(front.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    fields
}
