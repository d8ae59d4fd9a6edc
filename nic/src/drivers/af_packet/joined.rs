//! Completes what the kernel left to a device: fills in checksums, and cuts segments that GRO
//! or TSO joined into those that the sender's TCP or UDP would have sent.
//!
//! ```text
//!  | Ethernet | IP | TCP |    payload: 64 KiB at most     |
//!  | Ethernet | IP | TCP | size |
//!  | Ethernet | IP | TCP |      | size |          each with lengths, sequence number,
//!  | Ethernet | IP | TCP |             | rest |   flags and checksums of its own
//! ```

use wire::{Frame, HEADROOM_BYTES, checksum, ipv4, ipv6, tcp, udp};

use crate::memory::Chunk;

/// struct virtio_net_hdr: what the kernel has left undone of a frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Undone {
    pub flags: u8,
    pub gso_type: u8,
    /// A hint that says nothing reliable.
    pub header_bytes: u16,
    pub gso_size: u16,
    pub checksum_start: u16,
    pub checksum_offset: u16,
}

pub(super) const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP: u8 = 5;
/// A flag: the first segment reports congestion, which TCP's flag CWR says, too.
const GSO_ECN: u8 = 0x80;

/// Segments that one frame is cut to at most: as many as 64 KiB have of the smallest MSS
/// that kernels send. Else a guest could have us send 65,000 packets of a byte for one.
const SEGMENTS_MAX: usize = 1024;

const ETHERNET_BYTES: usize = wire::ethernet::HEADER_BYTES;
const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_FLAGS_AT: usize = 13;
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

impl Undone {
    /// True if the frame is several packets.
    pub(super) fn is_joined(&self) -> bool {
        self.gso_type != GSO_NONE
    }

    /// Completes the checksum: the field holds the sum over the pseudo header, the rest of
    /// the packet is added to it. None: it lies outside the frame.
    pub(super) fn complete_checksum(&self, frame: &mut [u8]) -> Option<()> {
        if self.flags & NEEDS_CHECKSUM == 0 {
            return Some(());
        }
        let (start, offset) = (self.checksum_start.into(), usize::from(self.checksum_offset));
        let sum = checksum::finish(checksum::sum(frame.get(start..)?));
        put_checksum(frame, start + offset, sum)
    }
}

/// In UDP zero means "none", and all ones is the same number.
fn put_checksum(frame: &mut [u8], at: usize, checksum: u16) -> Option<()> {
    let checksum = if checksum == 0 { 0xffff } else { checksum };
    frame.get_mut(at..at + 2)?.copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

/// A joined frame's headers, as each of its segments has them, and where its payload is.
#[derive(Debug)]
pub(super) struct Joined {
    is_v6: bool,
    is_tcp: bool,
    /// Where the header of TCP or UDP begins.
    transport_at: usize,
    /// Where the payload begins.
    payload_at: usize,
    /// The payload of each segment but the last.
    size: usize,
    /// Of the whole frame.
    end: usize,
    /// The payload that was cut already ends here.
    next: usize,
}

/// The bytes of a frame: what fits a chunk, and what is behind that.
pub(super) struct Bytes<'b> {
    pub front: &'b [u8],
    pub rest: &'b [u8],
}

impl Joined {
    /// None: it is nothing that can be cut to what it was before.
    pub(super) fn new(undone: Undone, front: &[u8], end: usize) -> Option<Joined> {
        let (is_tcp, protocol) = match undone.gso_type & !GSO_ECN {
            GSO_TCPV4 | GSO_TCPV6 => (true, TCP),
            GSO_UDP => (false, UDP),
            _ => return None,
        };
        let (is_v6, found, transport_at) =
            match front.get(12..ETHERNET_BYTES + ipv4::HEADER_BYTES)? {
                [0x08, 0x00, version, ..] => {
                    let ip_bytes = usize::from(version & 0xf) * 4;
                    let is_whole = version >> 4 == 4 && ip_bytes >= ipv4::HEADER_BYTES;
                    (false, is_whole.then(|| front[ETHERNET_BYTES + 9])?, ETHERNET_BYTES + ip_bytes)
                }
                [0x86, 0xdd, ..] => {
                    (true, front[ETHERNET_BYTES + 6], ETHERNET_BYTES + ipv6::HEADER_BYTES)
                }
                _ => return None,
            };
        let header = front.get(transport_at..)?;
        let header_bytes =
            if is_tcp { usize::from(header.get(12)? >> 4) * 4 } else { udp::HEADER_BYTES };
        let payload_at = transport_at + header_bytes;
        let is_whole = !is_tcp || header_bytes >= tcp::HEADER_BYTES;
        let size = usize::from(undone.gso_size);
        let fits = payload_at + size <= wire::FRAME_BYTES_MAX && payload_at <= front.len();
        let is_right = found == protocol && is_whole && fits && size > 0 && payload_at < end;
        let joined =
            Joined { is_v6, is_tcp, transport_at, payload_at, size, end, next: payload_at };
        (is_right && joined.left() <= SEGMENTS_MAX).then_some(joined)
    }

    /// How many segments are still to be cut.
    pub(super) fn left(&self) -> usize {
        (self.end - self.next).div_ceil(self.size)
    }

    /// The next segment, in a chunk of its own. There must be one left.
    pub(super) fn cut(&mut self, bytes: &Bytes<'_>, chunk: Chunk) -> Frame<'static> {
        let payload = self.next..(self.next + self.size).min(self.end);
        let frame_bytes = self.payload_at + payload.len();
        let mut frame = Frame::new(chunk, HEADROOM_BYTES, HEADROOM_BYTES + frame_bytes);
        let into = frame.bytes_mut();
        into[..self.payload_at].copy_from_slice(&bytes.front[..self.payload_at]);
        bytes.copy(payload.start, &mut into[self.payload_at..]);
        self.next = payload.end;
        self.number(into, payload.start - self.payload_at, payload.end == self.end);
        frame
    }

    /// Writes what a segment has of its own, whose payload begins there in all of it.
    fn number(&self, frame: &mut [u8], offset: usize, is_last: bool) {
        if self.is_tcp {
            self.number_tcp(&mut frame[self.transport_at..], offset, is_last);
        } else {
            let datagram_bytes = (frame.len() - self.transport_at) as u16;
            frame[self.transport_at + 4..][..2].copy_from_slice(&datagram_bytes.to_be_bytes());
        }
        let ip = &mut frame[ETHERNET_BYTES..];
        if self.is_v6 {
            let payload_bytes = (ip.len() - ipv6::HEADER_BYTES) as u16;
            ip[4..6].copy_from_slice(&payload_bytes.to_be_bytes());
        } else {
            let ip_bytes = self.transport_at - ETHERNET_BYTES;
            number_v4(ip, ip_bytes, (offset / self.size) as u16);
        }
        self.sum(frame);
    }

    fn number_tcp(&self, segment: &mut [u8], offset: usize, is_last: bool) {
        let sequence = u32::from_be_bytes([segment[4], segment[5], segment[6], segment[7]]);
        let sequence = sequence.wrapping_add(offset as u32);
        segment[4..8].copy_from_slice(&sequence.to_be_bytes());
        if !is_last {
            segment[TCP_FLAGS_AT] &= !FIN_PSH;
        }
        if offset > 0 {
            segment[TCP_FLAGS_AT] &= !CWR;
        }
    }

    fn sum(&self, frame: &mut [u8]) {
        let (addresses, checksum_at, protocol) = (
            if self.is_v6 { 22..54 } else { 26..34 },
            self.transport_at + if self.is_tcp { 16 } else { 6 },
            if self.is_tcp { TCP } else { UDP },
        );
        frame[checksum_at..][..2].fill(0);
        let segment = &frame[self.transport_at..];
        let (source, destination) = frame[addresses].split_at(if self.is_v6 { 16 } else { 4 });
        let pseudo = checksum::pseudo_header(source, destination, protocol, segment.len());
        let checksum = checksum::finish(pseudo + checksum::sum(segment));
        put_checksum(frame, checksum_at, checksum).expect("the header is in the frame");
    }
}

/// Length, identification (which matters to fragments only) and checksum of the header.
fn number_v4(packet: &mut [u8], header_bytes: usize, number: u16) {
    let bytes = packet.len() as u16;
    let identification = u16::from_be_bytes([packet[4], packet[5]]).wrapping_add(number);
    packet[2..4].copy_from_slice(&bytes.to_be_bytes());
    packet[4..6].copy_from_slice(&identification.to_be_bytes());
    packet[10..12].fill(0);
    let checksum = checksum::finish(checksum::sum(&packet[..header_bytes]));
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
}

impl Bytes<'_> {
    /// Copies those from `at` on.
    fn copy(&self, at: usize, into: &mut [u8]) {
        let in_front = self.front.get(at..).unwrap_or_default();
        let count = in_front.len().min(into.len());
        let (first, second) = into.split_at_mut(count);
        first.copy_from_slice(&in_front[..count]);
        if !second.is_empty() {
            let behind = at + count - self.front.len();
            second.copy_from_slice(&self.rest[behind..][..second.len()]);
        }
    }
}

#[cfg(test)]
mod tests;
