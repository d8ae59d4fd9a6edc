//! A worker in memory and the packets of one row of a table: every packet is for one
//! stateless service with Multipath TCP.

use std::hint::black_box;

use datapath::multipath::Selection;
use guideway_bench::clock::{Samples, timed};
use guideway_bench::setup::{Decides, Setup};
use guideway_bench::traffic::{Frames, Kind, Segment, Traffic};
use guideway_bench::worker;
use plan::proto::Encap;
use sim::LoadBalancer;
use wire::{ethernet, ipv4};

use crate::random::Random;

/// Packets of a kind among others.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// Their TCP header.
    pub segment: Segment,
    /// Bytes of the frame, from 60 on; less is padded.
    pub frame_bytes: usize,
    /// How many they are in proportion to the others.
    pub share: u64,
}

impl Share {
    /// All packets, in the smallest frames that such a segment fits.
    #[must_use]
    pub const fn all(segment: Segment, frame_bytes: usize) -> [Share; 1] {
        [Share { segment, frame_bytes, share: 1 }]
    }
}

/// The worker, and what it took.
pub struct Lane {
    /// Nanoseconds of processor time a packet.
    pub ns: Samples,
    sources: Vec<(u64, Traffic)>,
    random: Random,
    worker: LoadBalancer,
    now_ms: u32,
}

impl Lane {
    /// # Errors
    /// If the numbers make no plan or no packet, or memory is short.
    pub fn new(shares: &[Share], flows: u64, backends: u32) -> Result<Lane, String> {
        let setup = |share: &Share| Setup {
            services: 1,
            busy_services: 1,
            prefixes: 0,
            pools: 1,
            backends,
            weight_max: 1,
            table_size: 0,
            flows,
            // A stateless service has no entries.
            connections: 1 << 10,
            packet_bytes: packet_bytes(share),
            ipv6: false,
            encap: Encap::Geneve,
            decides: Decides::Multipath,
        };
        let source = |share: &Share| {
            let traffic = Traffic::new(&setup(share), Kind::Multipath(share.segment))?;
            Ok((share.share, traffic))
        };
        let sources: Vec<_> = shares.iter().map(source).collect::<Result<_, String>>()?;
        let first = setup(shares.first().ok_or("no packets")?);
        let worker = worker::new(first.view(1)?, 0, first.connections)?;
        Ok(Lane { ns: Samples::default(), sources, random: Random::new(0), worker, now_ms: 0 })
    }

    /// One sample. Frames are written outside the time that counts; the first passes
    /// only bring into the caches what the samples of other rows displaced.
    pub fn sample(&mut self, frames: &mut Frames, passes: u32) {
        const WARMING_UP: u32 = 4;
        let mut ns = 0;
        for pass in 0..WARMING_UP + passes {
            let Lane { sources, random, .. } = self;
            frames.rewrite(|chunk| pick(sources, random).packet(chunk));
            self.now_ms += 1;
            let took = timed(|| self.forward(frames));
            ns += if pass < WARMING_UP { 0 } else { took };
        }
        self.ns.push(ns as f64 / f64::from(passes) / frames.len() as f64);
    }

    fn forward(&mut self, frames: &mut Frames) {
        for batch in &mut frames.batches {
            self.worker.forward_in_place(self.now_ms, batch);
            black_box(&batch);
        }
    }

    /// What was measured has to be what the row says: all packets sent on, and, of one
    /// kind, all selected by that.
    ///
    /// # Errors
    /// If it was not: what else.
    pub fn check(&self, selection: Option<&str>) -> Result<(), String> {
        let totals = self.worker.totals();
        if totals.sent != totals.accounted() {
            return Err(format!("of {} packets {} were sent on", totals.accounted(), totals.sent));
        }
        let counters = &self.worker.counters(0).multipath;
        let mut names = Selection::NAMES.iter().zip(counters);
        match names.find(|(name, _)| Some(**name) == selection) {
            Some((name, counter)) if counter.get() != totals.sent => {
                Err(format!("of {} packets {} were selected by {name}", totals.sent, counter.get()))
            }
            _ => Ok(()),
        }
    }
}

fn pick<'s>(sources: &'s mut [(u64, Traffic)], random: &mut Random) -> &'s mut Traffic {
    let mut at = random.below(sources.iter().map(|(share, _)| share).sum());
    let picked = sources.iter().position(|(share, _)| {
        let is_it = at < *share;
        at = at.saturating_sub(*share);
        is_it
    });
    &mut sources[picked.expect("shares cover their sum")].1
}

/// Of the IP packet: the shortest frames hold it and padding.
fn packet_bytes(share: &Share) -> usize {
    (share.frame_bytes - ethernet::HEADER_BYTES)
        .max(ipv4::HEADER_BYTES + share.segment.header_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_in_their_shares() {
        let shares = [(Segment::Syn, 1), (Segment::SynV1, 3)].map(|(segment, share)| Share {
            segment,
            frame_bytes: 60,
            share,
        });
        let mut lane = Lane::new(&shares, 1000, 10).unwrap();
        lane.sample(&mut Frames::new(1024).unwrap(), 1);
        lane.check(None).unwrap();
        let by_key = lane.worker.counters(0).multipath[1].get() as f64;
        let part = by_key / lane.worker.totals().sent as f64;
        assert!((0.7..0.8).contains(&part), "{part}");
        let refused = lane.check(Some("key_v1")).unwrap_err();
        assert!(refused.contains("selected by key_v1"), "{refused}");
    }
}
