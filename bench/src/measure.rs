//! One line of the table: a worker, its traffic, and the cost of a packet.

use std::hint::black_box;

use datapath::Verdict;
use datapath::batch::Verdicts;
use datapath::verdict::DeviceIndex;
use sim::LoadBalancer;
use wire::tcp;

use crate::clock::{Samples, timed};
use crate::setup::{Decides, Setup};
use crate::traffic::{Frames, Kind, Traffic};
use crate::worker;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct Subject {
    /// Its key in the report, and what people read.
    pub name: &'static str,
    /// What it is made with.
    pub setup: Setup,
    /// The packets.
    pub kind: Kind,
    /// The time that the worker sees.
    pub pace: Pace,
    /// The goal in nanoseconds, with its parameters (docs/performance.md).
    pub goal_ns: Option<f64>,
}

/// How far the worker's clock goes while packets are forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// A millisecond in each pass over the frames: with 1,024 of them the connection
    /// table is swept as if a million packets came in a second.
    Fixed,
    /// As long as forwarding took: as if packets came as fast as they are forwarded.
    Measured,
}

/// A measurement that goes on in rounds.
pub struct Measurement {
    /// What is measured.
    pub subject: Subject,
    /// Nanoseconds of processor time a packet.
    pub ns: Samples,
    /// Bytes of the connection table.
    pub table_bytes: usize,
    worker: LoadBalancer,
    traffic: Traffic,
    now_ms: u32,
    /// At [`Pace::Measured`]: since `now_ms`.
    since_ns: u64,
    /// Hits and misses while all flows were made known.
    before: (u64, u64),
}

impl Measurement {
    /// Sets a measurement up: for data, all flows become established.
    ///
    /// # Errors
    /// If the parameters make no plan or no packet, or memory is short.
    pub fn new(subject: Subject, frames: &mut Frames) -> Result<Measurement, String> {
        let name = subject.name;
        let of = |error| format!("{name}: {error}");
        let setup = &subject.setup;
        let traffic = Traffic::new(setup, subject.kind).map_err(of)?;
        let view = setup.view(1).map_err(of)?;
        let worker = worker::new(view, 0, setup.connections).map_err(of)?;
        let mut measurement = Measurement {
            ns: Samples::default(),
            table_bytes: worker.table_bytes(),
            worker,
            traffic,
            now_ms: 0,
            since_ns: 0,
            before: (0, 0),
            subject,
        };
        if measurement.subject.kind == Kind::Data {
            measurement.establish(frames);
        }
        measurement.before = worker::hits_and_misses(&measurement.worker);
        Ok(measurement)
    }

    fn establish(&mut self, frames: &mut Frames) {
        for flags in [tcp::Flags::SYN, tcp::Flags::ACK] {
            for first in (0..self.subject.setup.flows).step_by(frames.len()) {
                self.traffic.fill_in_order(frames, first, flags);
                self.forward(frames);
            }
            self.now_ms += 200;
        }
    }

    /// One sample: the frames are written outside the time that counts. The
    /// first passes only warm the caches up that another measurement used:
    /// the counters of 100 services with 100 backends each are not all touched
    /// in one.
    pub fn sample(&mut self, frames: &mut Frames, passes: u32) {
        const WARMING_UP: u32 = 4;
        let mut ns = 0;
        for pass in 0..WARMING_UP + passes {
            self.traffic.fill(frames);
            let took = timed(|| self.forward(frames));
            self.advance(took);
            if pass >= WARMING_UP {
                ns += took;
            }
            self.make_room(frames);
        }
        self.ns.push(ns as f64 / f64::from(passes) / frames.len() as f64);
    }

    fn advance(&mut self, took_ns: u64) {
        const MS: u64 = 1_000_000;
        self.since_ns += match self.subject.pace {
            Pace::Fixed => MS,
            Pace::Measured => took_ns,
        };
        self.now_ms += (self.since_ns / MS) as u32;
        self.since_ns %= MS;
    }

    /// SYNs are to be inserted, so the table is emptied before it is half
    /// full; a flood that finds it full is another measurement.
    fn make_room(&mut self, frames: &Frames) {
        let inserted = self.worker.counters(0).connections.inserts.get();
        let period = self.subject.setup.connections / 2 / frames.len() as u64;
        let is_time = (inserted / frames.len() as u64).is_multiple_of(period.max(1));
        if self.subject.kind == Kind::Syn && is_time {
            self.worker.clear_tables();
        }
    }

    fn forward(&mut self, frames: &mut Frames) {
        for batch in &mut frames.batches {
            self.worker.forward_in_place(self.now_ms, batch);
            black_box(&batch);
        }
    }

    /// What else happened to its packets, for people: the share whose
    /// connection was in the table.
    ///
    /// # Panics
    /// If a packet was not sent: another thing was measured then.
    #[must_use]
    pub fn check(&self) -> String {
        let name = self.subject.name;
        let totals = self.worker.totals();
        assert_eq!(
            totals.sent,
            totals.accounted(),
            "{name}: all packets are to be sent: {totals:?}"
        );
        if self.subject.kind == Kind::Fragments {
            return "slow path included".to_owned();
        }
        match self.subject.setup.decides {
            Decides::ConnectionIds { .. } => {
                let named = self.worker.counters(0).connection_ids.named.get();
                assert_eq!(named, totals.sent, "{name}: all connection ids are to name backends");
                return "by connection ids".to_owned();
            }
            Decides::Buckets | Decides::Multipath => return "by buckets".to_owned(),
            Decides::Tracking | Decides::Maglev => {}
        }
        let (hits, misses) = worker::hits_and_misses(&self.worker);
        let (hits, misses) = ((hits - self.before.0) as f64, (misses - self.before.1) as f64);
        format!("{:.2} % tracked", 100.0 * hits / (hits + misses))
    }
}

/// The bare loop over the same frames: each is looked at, its front is moved
/// and written, and it gets a verdict.
pub fn floor_ns(frames: &mut Frames, traffic: &mut Traffic) -> f64 {
    const FRONT: [u8; 38] = [0x5a; 38];
    traffic.fill(frames);
    let mut verdicts = Verdicts::new();
    let ns = timed(|| {
        for batch in &mut frames.batches {
            verdicts.clear();
            for frame in batch.iter_mut() {
                let is_ip = frame.bytes()[12] != 0;
                frame.replace_front(14, 38).expect("room in front").copy_from_slice(&FRONT);
                verdicts.push(if is_ip { Verdict::Send(DeviceIndex(0)) } else { Verdict::Pass });
            }
            black_box(&batch);
            black_box(&verdicts);
        }
    });
    ns as f64 / frames.len() as f64
}

#[cfg(test)]
mod tests {
    use plan::proto::Encap;

    use super::*;

    #[test]
    fn every_connection_id_names_a_backend() {
        for encrypted in [false, true] {
            let setup = Setup {
                services: 3,
                busy_services: 3,
                prefixes: 0,
                pools: 2,
                backends: 7,
                weight_max: 1,
                table_size: 0,
                flows: 1000,
                connections: 1 << 10,
                packet_bytes: 46,
                ipv6: false,
                encap: Encap::Geneve,
                decides: Decides::ConnectionIds { encrypted },
            };
            let (kind, pace) = (Kind::Data, Pace::Fixed);
            let subject = Subject { name: "quic", setup, kind, pace, goal_ns: None };
            let mut frames = Frames::new(64).unwrap();
            let mut measurement = Measurement::new(subject, &mut frames).unwrap();
            measurement.sample(&mut frames, 1);
            assert_eq!(measurement.check(), "by connection ids");
        }
    }
}
