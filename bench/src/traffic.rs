//! Packets to forward: frames of numbered flows, written again before each measurement.

use aes::Aes128;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use datapath::Secret;
use wire::{
    BATCH_MAX, Batch, FRAME_BYTES_MAX, Family, FlowKey, Frame, HEADROOM_BYTES, Protocol, checksum,
    ethernet, ipv4, ipv6, tcp, udp,
};

use crate::random::Random;
use crate::setup::{CONNECTION_ID_BYTES, Decides, Setup};
use crate::worker::CLUSTER;

/// Clients are 100.0.0.0 and the following.
const CLIENTS_V4: u32 = 0x6400_0000;
const CLIENTS_V6: u128 = 0x2001_0db8_00c1 << 80;
/// The services' port.
const PORT: u16 = 80;

/// What kind of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Data of flows picked at random.
    Data,
    /// A SYN of another flow each time.
    Syn,
    /// Datagrams in two fragments (IPv4), the first one first.
    Fragments,
    /// Segments of Multipath TCP, of another flow each time.
    Multipath(Segment),
}

/// A segment to a service with Multipath TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    /// A SYN without options.
    Syn,
    /// MP_CAPABLE of version 0, with the client's key.
    SynV0,
    /// MP_CAPABLE of version 1.
    SynV1,
    /// MP_JOIN, with any token.
    Join,
    /// Data that echoes a timestamp, with any bits, where kernels put it.
    Timestamp,
    /// The same with a data sequence signal behind it, as in connections of Multipath TCP.
    TimestampFirst,
    /// Timestamps behind as many NOPs as there may be.
    TimestampLast,
    /// A data sequence signal without timestamps.
    NoTimestamp,
}

impl Segment {
    /// Bytes of the longest options.
    pub const OPTION_BYTES_MAX: usize = 40;

    /// The TCP header's.
    #[must_use]
    pub fn flags(self) -> tcp::Flags {
        match self {
            Segment::Timestamp
            | Segment::TimestampFirst
            | Segment::TimestampLast
            | Segment::NoTimestamp => tcp::Flags::ACK,
            Segment::Syn | Segment::SynV0 | Segment::SynV1 | Segment::Join => tcp::Flags::SYN,
        }
    }

    /// Bytes of the TCP header and its options.
    #[must_use]
    pub fn header_bytes(self) -> usize {
        tcp::HEADER_BYTES + self.options(0).1
    }

    /// The TCP options of a segment of that flow, and how many of the bytes they are.
    #[must_use]
    pub fn options(self, flow: u64) -> ([u8; Segment::OPTION_BYTES_MAX], usize) {
        const NO_OPERATION: u8 = 1;
        // Neighbouring flows are to differ in all bits.
        let [b0, b1, b2, b3, ..] = flow.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let timestamps = [8, 10, 0, 0, 0, 7, b0, b1, b2, b3 | 1];
        // With a checksum: RFC 8684, section 3.3.
        let signal = [30, 20, 0x20, 0x05, b3, b2, b1, b0, b0, b1, b2, b3, 0, 0, 0, 1, 0, 0, 9, 9];
        let parts: [&[u8]; 3] = match self {
            Segment::Syn => [&[], &[], &[]],
            Segment::SynV0 => [&[30, 12, 0x00, 0x81, 1, 2, 3, 4], &[b0, b1, b2, b3], &[]],
            Segment::SynV1 => [&[30, 4, 0x01, 0x01], &[], &[]],
            Segment::Join => [&[30, 12, 0x10, 2], &[b0, b1, b2, b3], &[9, 9, 9, 9]],
            Segment::Timestamp => [&[NO_OPERATION; 2], &timestamps, &[]],
            Segment::TimestampFirst => [&[NO_OPERATION; 2], &timestamps, &signal],
            Segment::TimestampLast => [&[NO_OPERATION; 30], &timestamps, &[]],
            Segment::NoTimestamp => [&signal, &[], &[]],
        };
        let (mut options, mut bytes) = ([0; Segment::OPTION_BYTES_MAX], 0);
        for part in parts {
            options[bytes..][..part.len()].copy_from_slice(part);
            bytes += part.len();
        }
        (options, bytes)
    }
}

/// Writes frames.
#[derive(Debug)]
pub struct Traffic {
    setup: Setup,
    kind: Kind,
    random: Random,
    next: u64,
    /// Encrypts connection ids.
    cipher: Aes128,
}

/// Frames of whole batches.
pub struct Frames {
    /// Ready to be forwarded.
    pub batches: Vec<Batch<'static>>,
}

impl Frames {
    /// Memory for `count` frames, rounded up to batches.
    ///
    /// # Errors
    /// If memory is short.
    pub fn new(count: usize) -> Result<Frames, String> {
        let count = count.max(1).next_multiple_of(BATCH_MAX);
        let mut pool =
            nic::Pool::new(count).map_err(|error| format!("memory for {count} frames: {error}"))?;
        let mut frame = || Frame::new(pool.take()?, HEADROOM_BYTES, HEADROOM_BYTES).into();
        let batches =
            (0..count / BATCH_MAX).map(|_| (0..BATCH_MAX).map_while(|_| frame()).collect());
        Ok(Frames { batches: batches.collect() })
    }

    /// How many.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is at least a batch")]
    pub fn len(&self) -> usize {
        self.batches.len() * BATCH_MAX
    }

    /// Replaces every frame by the one that `write` makes of its chunk.
    pub fn rewrite(&mut self, mut write: impl FnMut(&'static mut [u8]) -> Frame<'static>) {
        for batch in &mut self.batches {
            let fresh = std::mem::take(batch).into_iter().map(|frame| write(frame.into_chunk()));
            *batch = fresh.collect();
        }
    }
}

impl Traffic {
    /// Traffic of a set-up.
    ///
    /// # Errors
    /// If packets of that length cannot be.
    pub fn new(setup: &Setup, kind: Kind) -> Result<Traffic, String> {
        let ip_bytes = if setup.ipv6 { ipv6::HEADER_BYTES } else { ipv4::HEADER_BYTES };
        let least = ip_bytes
            + match setup.protocol() {
                Protocol::UDP => udp::HEADER_BYTES + 1 + CONNECTION_ID_BYTES,
                _ => tcp::HEADER_BYTES,
            };
        // The outer headers take the headroom, not the frame.
        let most = FRAME_BYTES_MAX - ethernet::HEADER_BYTES;
        if !(least..=most).contains(&setup.packet_bytes) {
            return Err(format!(
                "packets of {} bytes: from {least} (IP and TCP headers, or those of QUIC) to {most} (what a frame holds)",
                setup.packet_bytes
            ));
        }
        if let Kind::Multipath(segment) = kind
            && setup.packet_bytes < ip_bytes + segment.header_bytes()
        {
            return Err(format!(
                "packets of {} bytes: {segment:?} has headers of {}",
                setup.packet_bytes,
                ip_bytes + segment.header_bytes()
            ));
        }
        if setup.flows == 0 {
            return Err("no flows: at least one".to_owned());
        }
        let cipher = Aes128::new(&Secret::derived(CLUSTER).connection_id_key(0).into());
        let random = Random::new(0x7261_6e64);
        Ok(Traffic { setup: setup.clone(), kind, random, next: 0, cipher })
    }

    /// The five-tuple of a flow.
    #[must_use]
    pub fn key(&self, flow: u64) -> FlowKey {
        let (service, client) = (self.setup.service_of(flow), self.setup.client_of(flow));
        let (address, source_port) = self.client(flow);
        let (family, source, destination) = match self.setup.ipv6 {
            false => (
                Family::V4,
                u128::from(CLIENTS_V4 | address),
                u128::from(self.setup.destination_v4(service, client)),
            ),
            true => (
                Family::V6,
                CLIENTS_V6 | u128::from(address),
                self.setup.destination_v6(service, client),
            ),
        };
        let protocol = self.setup.protocol();
        FlowKey { family, protocol, source, destination, source_port, destination_port: PORT }
    }

    /// Fills all frames with the next packets.
    pub fn fill(&mut self, frames: &mut Frames) {
        frames.rewrite(|chunk| self.packet(chunk));
    }

    /// Fills all frames with the packets of flows in their order, from
    /// `first` on; all flows are done when the last is.
    pub fn fill_in_order(&self, frames: &mut Frames, first: u64, flags: tcp::Flags) {
        let mut flow = first;
        frames.rewrite(|chunk| {
            let written = self.write(chunk, flow.min(self.setup.flows - 1), flags);
            flow += 1;
            written
        });
    }

    /// The next packet.
    pub fn packet(&mut self, chunk: &'static mut [u8]) -> Frame<'static> {
        let number = self.next;
        self.next += 1;
        match self.kind {
            Kind::Data => {
                let flow = self.random.below(self.setup.flows);
                self.write(chunk, flow, tcp::Flags::ACK)
            }
            Kind::Syn => self.write(chunk, number, tcp::Flags::SYN),
            Kind::Fragments => self.fragment(chunk, number),
            Kind::Multipath(segment) => self.multipath(chunk, number, segment),
        }
    }

    fn multipath(&self, chunk: &'static mut [u8], number: u64, segment: Segment) -> Frame<'static> {
        let mut frame = self.write(chunk, number % self.setup.flows, segment.flags());
        let ip_bytes = if self.setup.ipv6 { ipv6::HEADER_BYTES } else { ipv4::HEADER_BYTES };
        let header = &mut frame.bytes_mut()[ethernet::HEADER_BYTES + ip_bytes..];
        let (options, bytes) = segment.options(number);
        header[12] = ((tcp::HEADER_BYTES + bytes) as u8 / 4) << 4;
        header[tcp::HEADER_BYTES..][..bytes].copy_from_slice(&options[..bytes]);
        frame
    }

    /// A packet of the flow of that number; flags are TCP's.
    fn write(&self, chunk: &'static mut [u8], flow: u64, flags: tcp::Flags) -> Frame<'static> {
        let packet_bytes = self.setup.packet_bytes;
        let end = HEADROOM_BYTES + (ethernet::HEADER_BYTES + packet_bytes).max(60);
        let frame = &mut chunk[HEADROOM_BYTES..end];
        let ip_bytes = match self.setup.ipv6 {
            true => self.write_v6(frame, flow),
            false => self.write_v4(frame, flow, (flow as u16, ipv4::DONT_FRAGMENT)),
        };
        let segment = &mut frame[ethernet::HEADER_BYTES..][ip_bytes..packet_bytes];
        match self.setup.protocol() {
            Protocol::UDP => self.write_quic(segment, flow),
            _ => self.write_segment(segment, flow, flags),
        }
        Frame::new(chunk, HEADROOM_BYTES, end)
    }

    /// Fragment of that number, two of each datagram and flow.
    fn fragment(&self, chunk: &'static mut [u8], number: u64) -> Frame<'static> {
        const SECOND_AT: u16 = 3; // in units of eight bytes
        let (datagram, is_first) = (number / 2, number.is_multiple_of(2));
        let flow = datagram % self.setup.flows;
        let flags = if is_first { ipv4::MORE_FRAGMENTS } else { SECOND_AT };
        let end = HEADROOM_BYTES + (ethernet::HEADER_BYTES + self.setup.packet_bytes).max(60);
        let frame = &mut chunk[HEADROOM_BYTES..end];
        // The flow as the client, the datagram as the identification.
        let ip_bytes = self.write_v4(frame, flow, (datagram as u16, flags));
        let payload = &mut frame[ethernet::HEADER_BYTES..][ip_bytes..self.setup.packet_bytes];
        match is_first {
            true => self.write_segment(payload, flow, tcp::Flags::ACK),
            false => payload.fill(0),
        }
        Frame::new(chunk, HEADROOM_BYTES, end)
    }

    fn write_v4(&self, frame: &mut [u8], flow: u64, (id, flags): (u16, u16)) -> usize {
        let key = self.key(flow);
        let header = ipv4::Emit {
            packet_bytes: self.setup.packet_bytes as u16,
            traffic_class: 0,
            id,
            flags,
            ttl: 60,
            protocol: self.setup.protocol(),
            source: key.source as u32,
            destination: key.destination as u32,
        };
        write_link(frame, [8, 0]);
        frame[ethernet::HEADER_BYTES..][..ipv4::HEADER_BYTES].copy_from_slice(&header.to_bytes());
        debug_assert!(checksum::is_valid(&frame[14..34]));
        ipv4::HEADER_BYTES
    }

    fn write_v6(&self, frame: &mut [u8], flow: u64) -> usize {
        let key = self.key(flow);
        let header = ipv6::Emit {
            payload_bytes: (self.setup.packet_bytes - ipv6::HEADER_BYTES) as u16,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 60,
            protocol: self.setup.protocol(),
            source: key.source,
            destination: key.destination,
        };
        write_link(frame, [0x86, 0xdd]);
        frame[ethernet::HEADER_BYTES..][..ipv6::HEADER_BYTES].copy_from_slice(&header.to_bytes());
        ipv6::HEADER_BYTES
    }

    fn write_segment(&self, segment: &mut [u8], flow: u64, flags: tcp::Flags) {
        segment[..2].copy_from_slice(&self.client(flow).1.to_be_bytes());
        segment[2..4].copy_from_slice(&PORT.to_be_bytes());
        segment[12] = 5 << 4;
        segment[13] = flags.0;
    }

    /// A datagram with a short header, and a connection id that names a backend.
    fn write_quic(&self, datagram: &mut [u8], flow: u64) {
        let bytes = datagram.len() as u16;
        datagram[..2].copy_from_slice(&self.client(flow).1.to_be_bytes());
        datagram[2..4].copy_from_slice(&PORT.to_be_bytes());
        datagram[4..6].copy_from_slice(&bytes.to_be_bytes());
        let mut id = self.setup.connection_id(flow);
        if self.setup.decides == (Decides::ConnectionIds { encrypted: true }) {
            let block: &mut [u8; 16] = (&mut id[1..]).try_into().expect("a block behind a byte");
            self.cipher.encrypt_block(block.into());
        }
        datagram[udp::HEADER_BYTES] = 0x40; // RFC 9000, section 17.3.1
        datagram[udp::HEADER_BYTES + 1..][..CONNECTION_ID_BYTES].copy_from_slice(&id);
    }

    /// Address and port of a flow's client.
    fn client(&self, flow: u64) -> (u32, u16) {
        let client = self.setup.client_of(flow);
        ((client >> 14) as u32, 1024 + (client & 0x3fff) as u16)
    }
}

fn write_link(frame: &mut [u8], ether_type: [u8; 2]) {
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0xfe]);
    frame[12..14].copy_from_slice(&ether_type);
}

#[cfg(test)]
mod tests {
    use plan::proto::Encap;
    use wire::{Fragment, headers};

    use super::*;

    fn setup(ipv6: bool) -> Setup {
        Setup {
            services: 3,
            busy_services: 3,
            prefixes: 2,
            pools: 1,
            backends: 1,
            weight_max: 1,
            table_size: 0,
            flows: 100_000,
            connections: 1,
            packet_bytes: 60,
            ipv6,
            encap: Encap::Gre,
            decides: Decides::Tracking,
        }
    }

    #[test]
    fn packets_are_whole_and_of_their_flow() {
        for ipv6 in [false, true] {
            let traffic = Traffic::new(&setup(ipv6), Kind::Data).unwrap();
            let mut frames = Frames::new(64).unwrap();
            traffic.fill_in_order(&mut frames, 70_000, tcp::Flags::ACK);
            for (flow, frame) in (70_000..).zip(&frames.batches[0]) {
                let headers = headers::parse(frame.bytes()).unwrap().unwrap();
                assert_eq!(headers.key, traffic.key(flow));
                assert_eq!(headers.packet_bytes, 60);
            }
        }
    }

    #[test]
    fn fragments_come_in_pairs_the_first_one_first() {
        let mut traffic = Traffic::new(&setup(false), Kind::Fragments).unwrap();
        let mut frames = Frames::new(64).unwrap();
        traffic.fill(&mut frames);
        for pair in frames.batches[0].chunks(2) {
            let parsed = |frame: &Frame<'_>| headers::parse(frame.bytes()).unwrap().unwrap();
            let (first, later) = (parsed(&pair[0]), parsed(&pair[1]));
            let (Fragment::First { id }, Fragment::Later { id: same }) =
                (first.fragment, later.fragment)
            else {
                panic!("{first:?}, {later:?}")
            };
            assert_eq!((id, first.key.source), (same, later.key.source));
        }
    }

    #[test]
    fn packets_that_cannot_be_are_refused() {
        for (packet_bytes, ipv6) in [(39, false), (59, true), (1_779, false)] {
            let setup = Setup { packet_bytes, ..setup(ipv6) };
            assert!(Traffic::new(&setup, Kind::Data).unwrap_err().contains("packets of"));
        }
    }
}
