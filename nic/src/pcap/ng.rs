//! pcapng: sections of blocks (draft-ietf-opsawg-pcapng).
//!
//! ```text
//!  section header | interface 0 | interface 1 | packet | ... | section header | ...
//!  each block: type(4) length(4) body length(4)
//! ```
//!
//! Blocks that hold no packet and describe no interface are passed over.

use std::io::Read;

use super::source::Source;
use super::{LINKTYPE_ETHERNET, Order, Packet, Problem, RECORD_BYTES_MAX};

/// The section header's block type reads the same in both byte orders.
pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

const OPTION_END: u16 = 0;
const OPTION_TIMESTAMP_RESOLUTION: u16 = 9;
const OPTION_TIMESTAMP_OFFSET: u16 = 14;

/// Type, length and length again: what every block has.
const BLOCK_FRAME_BYTES: u32 = 12;

/// The section being read: its byte order and interfaces.
pub(super) struct Section {
    order: Order,
    interfaces: Vec<Interface>,
    timestamp_ns: u64,
}

/// An interface that packets were captured on.
struct Interface {
    link_type: u16,
    snap_len: u32,
    ticks_per_second: u128,
    offset_seconds: i64,
}

impl Section {
    /// Reads a section header behind its block type.
    pub(super) fn begin<R: Read>(source: &mut Source<R>) -> Result<Section, Problem> {
        const WHAT: &str = "a section header";
        let head: [u8; 8] = source.array(WHAT)?;
        let magic = [head[4], head[5], head[6], head[7]];
        let order = [Order::Little, Order::Big]
            .into_iter()
            .find(|order| order.u32(magic) == BYTE_ORDER_MAGIC)
            .ok_or(Problem::ByteOrder(u32::from_be_bytes(magic)))?;
        let len = block_len(order.u32([head[0], head[1], head[2], head[3]]), 28)?;
        let version: [u8; 4] = source.array(WHAT)?;
        let (major, minor) =
            (order.u16([version[0], version[1]]), order.u16([version[2], version[3]]));
        // 1.2 is written by some tools and means the same as 1.0.
        if major != 1 || !(minor == 0 || minor == 2) {
            return Err(Problem::Version { format: "pcapng", major, minor });
        }
        // Ahead: the section's length, which streams leave unset, and options.
        source.skip(len - 20, WHAT)?;
        end_of_block(order, len, source)?;
        Ok(Section { order, interfaces: Vec::new(), timestamp_ns: 0 })
    }

    /// The next packet, None at the end of the file.
    pub(super) fn next<R: Read>(
        &mut self,
        source: &mut Source<R>,
    ) -> Result<Option<Packet>, Problem> {
        loop {
            source.begin_record();
            let Some(kind) = source.array_or_end::<4>("a block's type")? else {
                return Ok(None);
            };
            let kind = self.order.u32(kind);
            if kind == SECTION_HEADER {
                *self = Section { timestamp_ns: self.timestamp_ns, ..Section::begin(source)? };
                continue;
            }
            if let Some(packet) = self.block(kind, source)? {
                self.timestamp_ns = packet.timestamp_ns;
                return Ok(Some(packet));
            }
        }
    }

    /// One block behind its type; a packet if it holds one.
    fn block<R: Read>(
        &mut self,
        kind: u32,
        source: &mut Source<R>,
    ) -> Result<Option<Packet>, Problem> {
        const WHAT: &str = "a block";
        let len = block_len(self.order.u32(source.array(WHAT)?), BLOCK_FRAME_BYTES)?;
        let body_len = len - BLOCK_FRAME_BYTES;
        let wanted = matches!(
            kind,
            INTERFACE_DESCRIPTION | OBSOLETE_PACKET | SIMPLE_PACKET | ENHANCED_PACKET
        );
        if !wanted {
            source.skip(body_len, WHAT)?;
            end_of_block(self.order, len, source)?;
            return Ok(None);
        }
        if body_len > RECORD_BYTES_MAX {
            return Err(Problem::Length { what: WHAT, len: len.into() });
        }
        let bytes = source.bytes(body_len, WHAT)?;
        end_of_block(self.order, len, source)?;
        let body = Body { order: self.order, bytes: &bytes };
        match kind {
            INTERFACE_DESCRIPTION => {
                self.interfaces.push(Interface::parse(&body)?);
                Ok(None)
            }
            SIMPLE_PACKET => self.simple_packet(&body).map(Some),
            OBSOLETE_PACKET => self.timed_packet(u32::from(body.u16(0)?), &body).map(Some),
            _ => self.timed_packet(body.u32(0)?, &body).map(Some),
        }
    }

    /// Enhanced and obsolete packets differ in the interface's field only.
    fn timed_packet(&self, interface: u32, body: &Body) -> Result<Packet, Problem> {
        let interface = self.interface(interface)?;
        let ticks = u64::from(body.u32(4)?) << 32 | u64::from(body.u32(8)?);
        let (captured_len, original_len) = (body.u32(12)?, body.u32(16)?);
        let bytes = body.data(20, captured_len)?;
        Ok(Packet { timestamp_ns: interface.nanoseconds(ticks), original_len, bytes })
    }

    /// A simple packet belongs to the first interface; how much of it was
    /// captured follows from the interface's limit.
    fn simple_packet(&self, body: &Body) -> Result<Packet, Problem> {
        let interface = self.interface(0)?;
        let original_len = body.u32(0)?;
        let limit = if interface.snap_len == 0 { u32::MAX } else { interface.snap_len };
        let bytes = body.data(4, original_len.min(limit))?;
        Ok(Packet { timestamp_ns: self.timestamp_ns, original_len, bytes })
    }

    fn interface(&self, index: u32) -> Result<&Interface, Problem> {
        let interface =
            self.interfaces.get(index as usize).ok_or(Problem::UnknownInterface(index))?;
        // Asked here and not where the interface is described: captures list
        // interfaces that nothing was captured on.
        if interface.link_type != LINKTYPE_ETHERNET {
            return Err(Problem::LinkType(interface.link_type));
        }
        Ok(interface)
    }
}

impl Interface {
    fn parse(body: &Body) -> Result<Interface, Problem> {
        let mut interface = Interface {
            link_type: body.u16(0)?,
            snap_len: body.u32(4)?,
            ticks_per_second: 1_000_000,
            offset_seconds: 0,
        };
        let mut at = 8;
        while at < body.bytes.len() {
            let (code, len) = (body.u16(at)?, body.u16(at + 2)?);
            let value = body.get(at + 4, usize::from(len))?;
            match (code, value) {
                (OPTION_END, _) => break,
                (OPTION_TIMESTAMP_RESOLUTION, &[resolution]) => {
                    interface.ticks_per_second = ticks_per_second(resolution)?;
                }
                (OPTION_TIMESTAMP_OFFSET, &[a, b, c, d, e, f, g, h]) => {
                    interface.offset_seconds = body.order.i64([a, b, c, d, e, f, g, h]);
                }
                _ => {}
            }
            at += 4 + usize::from(len).next_multiple_of(4);
        }
        Ok(interface)
    }

    /// Nanoseconds since 1970, kept within what a u64 can say.
    fn nanoseconds(&self, ticks: u64) -> u64 {
        let since_offset = u128::from(ticks) * 1_000_000_000 / self.ticks_per_second;
        let offset = i128::from(self.offset_seconds) * 1_000_000_000;
        // At most 2^94 and 2^93: the sum cannot overflow.
        (since_offset as i128 + offset).clamp(0, i128::from(u64::MAX)) as u64
    }
}

/// if_tsresol: a power of ten, or of two with the highest bit set.
fn ticks_per_second(resolution: u8) -> Result<u128, Problem> {
    let exponent = u32::from(resolution & 0x7f);
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    base.checked_pow(exponent).ok_or(Problem::Resolution(resolution))
}

fn block_len(len: u32, least: u32) -> Result<u32, Problem> {
    if len < least || !len.is_multiple_of(4) {
        return Err(Problem::Length { what: "a block", len: len.into() });
    }
    Ok(len)
}

fn end_of_block<R: Read>(order: Order, len: u32, source: &mut Source<R>) -> Result<(), Problem> {
    let repeated = order.u32(source.array("a block's end")?);
    if repeated != len {
        return Err(Problem::Length { what: "a block's repeated length", len: repeated.into() });
    }
    Ok(())
}

/// A block's body in its byte order.
struct Body<'b> {
    order: Order,
    bytes: &'b [u8],
}

impl Body<'_> {
    fn get(&self, at: usize, len: usize) -> Result<&[u8], Problem> {
        let wrong = Problem::Length { what: "a field in a block", len: len as u64 };
        at.checked_add(len).and_then(|end| self.bytes.get(at..end)).ok_or(wrong)
    }

    fn u16(&self, at: usize) -> Result<u16, Problem> {
        self.get(at, 2).map(|b| self.order.u16([b[0], b[1]]))
    }

    fn u32(&self, at: usize) -> Result<u32, Problem> {
        self.get(at, 4).map(|b| self.order.u32([b[0], b[1], b[2], b[3]]))
    }

    fn data(&self, at: usize, len: u32) -> Result<Vec<u8>, Problem> {
        self.get(at, len as usize).map(<[u8]>::to_vec)
    }
}
