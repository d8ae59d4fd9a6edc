//! Packets to forward: minimum-size frames of numbered flows, written afresh
//! before each measurement.

use wire::{
    BATCH_MAX, Batch, Frame, HEADROOM_BYTES, Protocol, checksum, ethernet, ipv4, ipv6, tcp,
};

use crate::random::Random;
use crate::setup::{self, Setup};

/// What kind of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Data of flows picked at random.
    Data,
    /// A SYN of another flow each time.
    Syn,
}

/// Writes frames.
#[derive(Debug)]
pub struct Traffic {
    setup: Setup,
    kind: Kind,
    random: Random,
    next_flow: u64,
}

/// Frames of whole batches, and the flow behind each.
pub struct Frames {
    /// Ready to be forwarded.
    pub batches: Vec<Batch<'static>>,
}

impl Frames {
    /// Memory for `count` frames, rounded up to batches.
    #[must_use]
    pub fn new(count: usize) -> Frames {
        let mut pool = nic::Pool::new(count.next_multiple_of(BATCH_MAX)).expect("packet memory");
        let mut frame = || Frame::new(pool.take()?, HEADROOM_BYTES, HEADROOM_BYTES).into();
        let batches =
            (0..count.div_ceil(BATCH_MAX)).map(|_| (0..BATCH_MAX).map_while(|_| frame()).collect());
        Frames { batches: batches.collect() }
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.batches.len() * BATCH_MAX
    }
}

impl Traffic {
    /// Traffic of a set-up.
    #[must_use]
    pub fn new(setup: &Setup, kind: Kind) -> Traffic {
        Traffic { setup: setup.clone(), kind, random: Random(0x7261_6e64), next_flow: 0 }
    }

    /// Fills all frames with the next packets.
    pub fn fill(&mut self, frames: &mut Frames) {
        for batch in &mut frames.batches {
            *batch = std::mem::take(batch)
                .into_iter()
                .map(|frame| self.packet(frame.into_chunk()))
                .collect();
        }
    }

    /// Fills all frames with the packets of flows in their order, from
    /// `first` on; all flows are done when the last is.
    pub fn fill_in_order(&self, frames: &mut Frames, first: u64, flags: tcp::Flags) {
        let mut flow = first;
        for batch in &mut frames.batches {
            let fresh = std::mem::take(batch).into_iter().map(|frame| {
                let written = self.write(frame.into_chunk(), flow.min(self.setup.flows - 1), flags);
                flow += 1;
                written
            });
            *batch = fresh.collect();
        }
    }

    fn packet(&mut self, chunk: &'static mut [u8]) -> Frame<'static> {
        match self.kind {
            Kind::Data => {
                let flow = self.random.below(self.setup.flows);
                self.write(chunk, flow, tcp::Flags::ACK)
            }
            Kind::Syn => {
                self.next_flow += 1;
                self.write(chunk, self.next_flow, tcp::Flags::SYN)
            }
        }
    }

    /// A TCP packet of the flow of that number.
    fn write(&self, chunk: &'static mut [u8], flow: u64, flags: tcp::Flags) -> Frame<'static> {
        let service = (flow % u64::from(self.setup.services)) as u32;
        // Which services see traffic is apart from which client it is.
        let client = flow / u64::from(self.setup.services);
        let (address, port) = ((client >> 14) as u32, 1024 + (client & 0x3fff) as u16);
        let packet_bytes = self.setup.packet_bytes;
        let end = HEADROOM_BYTES + (ethernet::HEADER_BYTES + packet_bytes).max(60);
        let frame = &mut chunk[HEADROOM_BYTES..end];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0xfe]);
        let packet = &mut frame[ethernet::HEADER_BYTES..];
        let ip_bytes = if self.setup.ipv6 {
            let header = ipv6::Emit {
                payload_bytes: (packet_bytes - ipv6::HEADER_BYTES) as u16,
                traffic_class: 0,
                flow_label: 0,
                hop_limit: 60,
                protocol: Protocol::TCP,
                source: 0x2001_0db8_00c1 << 80 | u128::from(address),
                destination: setup::vip_v6(service),
            };
            packet[..ipv6::HEADER_BYTES].copy_from_slice(&header.to_bytes());
            ipv6::HEADER_BYTES
        } else {
            let header = ipv4::Emit {
                packet_bytes: packet_bytes as u16,
                traffic_class: 0,
                id: flow as u16,
                flags: ipv4::DONT_FRAGMENT,
                ttl: 60,
                protocol: Protocol::TCP,
                source: 0x6400_0000 | address,
                destination: setup::vip_v4(service),
            };
            packet[..ipv4::HEADER_BYTES].copy_from_slice(&header.to_bytes());
            ipv4::HEADER_BYTES
        };
        let segment = &mut packet[ip_bytes..packet_bytes];
        segment[..2].copy_from_slice(&port.to_be_bytes());
        segment[2..4].copy_from_slice(&80u16.to_be_bytes());
        segment[12] = 5 << 4;
        segment[13] = flags.0;
        let ether_type: u16 = if self.setup.ipv6 { 0x86dd } else { 0x0800 };
        frame[12..14].copy_from_slice(&ether_type.to_be_bytes());
        debug_assert!(self.setup.ipv6 || checksum::is_valid(&frame[14..34]));
        Frame::new(chunk, HEADROOM_BYTES, end)
    }
}
