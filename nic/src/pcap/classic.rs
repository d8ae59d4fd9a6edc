//! The classic format: a 24-byte header, then records of 16 bytes and data.

use std::io::Read;

use super::source::Source;
use super::{LINKTYPE_ETHERNET, Order, Packet, Problem, RECORD_BYTES_MAX};

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;

/// What the file's header says about its records.
pub(super) struct Header {
    order: Order,
    ns_per_fraction: u64,
}

impl Header {
    /// Reads the header's rest behind its magic number.
    pub(super) fn begin<R: Read>(
        magic: [u8; 4],
        source: &mut Source<R>,
    ) -> Result<Header, Problem> {
        let (order, ns_per_fraction) = clock(magic)?;
        let rest: [u8; 20] = source.array("the file header")?;
        let (major, minor) = (order.u16([rest[0], rest[1]]), order.u16([rest[2], rest[3]]));
        if (major, minor) != (2, 4) {
            return Err(Problem::Version { format: "pcap", major, minor });
        }
        // The upper half says whether records end in a frame check sequence;
        // to us that is padding behind the IP packet.
        let link_type = order.u32([rest[16], rest[17], rest[18], rest[19]]) as u16;
        if link_type != LINKTYPE_ETHERNET {
            return Err(Problem::LinkType(link_type));
        }
        Ok(Header { order, ns_per_fraction })
    }

    /// The next packet, None at the end.
    pub(super) fn next<R: Read>(
        &mut self,
        source: &mut Source<R>,
    ) -> Result<Option<Packet>, Problem> {
        source.begin_record();
        let Some(record) = source.array_or_end::<16>("a packet's header")? else {
            return Ok(None);
        };
        let field = |at: usize| {
            self.order.u32([record[at], record[at + 1], record[at + 2], record[at + 3]])
        };
        let (seconds, fraction, captured_len, original_len) =
            (field(0), field(4), field(8), field(12));
        if captured_len > RECORD_BYTES_MAX {
            return Err(Problem::Length { what: "a packet", len: captured_len.into() });
        }
        let bytes = source.bytes(captured_len, "a packet")?;
        let timestamp_ns =
            u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * self.ns_per_fraction;
        Ok(Some(Packet { timestamp_ns, original_len, bytes }))
    }
}

fn clock(magic: [u8; 4]) -> Result<(Order, u64), Problem> {
    [Order::Little, Order::Big]
        .into_iter()
        .find_map(|order| match order.u32(magic) {
            MAGIC_MICROSECONDS => Some((order, 1000)),
            MAGIC_NANOSECONDS => Some((order, 1)),
            _ => None,
        })
        .ok_or(Problem::NotACapture(u32::from_be_bytes(magic)))
}
