//! One line of the table: a worker, its traffic, and what a packet took.

use std::hint::black_box;

use datapath::Verdict;
use datapath::batch::Verdicts;
use wire::tcp;

use crate::clock::{Samples, timed};
use crate::setup::{Setup, Worker};
use crate::traffic::{Frames, Kind, Traffic};

/// A measurement that goes on in rounds.
pub struct Measurement {
    /// Its key in the report, and what people read.
    pub name: &'static str,
    /// What it is made with.
    pub setup: Setup,
    /// Nanoseconds of processor time a packet.
    pub ns: Samples,
    /// Bytes of the connection table.
    pub table_bytes: usize,
    kind: Kind,
    worker: Worker,
    traffic: Traffic,
    now_ms: u32,
    /// Hits and misses while all flows were made known.
    before: (u64, u64),
}

impl Measurement {
    /// Sets a measurement up: for data, all flows become established.
    #[must_use]
    pub fn new(name: &'static str, setup: Setup, kind: Kind, frames: &mut Frames) -> Measurement {
        let worker = Worker::new(&setup);
        let traffic = Traffic::new(&setup, kind);
        let table_bytes = worker.table_bytes;
        let mut measurement = Measurement {
            name,
            setup,
            ns: Samples::default(),
            table_bytes,
            kind,
            worker,
            traffic,
            now_ms: 0,
            before: (0, 0),
        };
        if kind == Kind::Data {
            measurement.establish(frames);
        }
        measurement.before = measurement.hits_and_misses();
        measurement
    }

    fn establish(&mut self, frames: &mut Frames) {
        for flags in [tcp::Flags::SYN, tcp::Flags::ACK] {
            for first in (0..self.setup.flows).step_by(frames.len()) {
                self.traffic.fill_in_order(frames, first, flags);
                self.forward(frames);
            }
            self.now_ms += 200;
        }
    }

    /// One sample: the frames are written outside the time that counts. The
    /// first pass only warms the caches up that another measurement used.
    pub fn sample(&mut self, frames: &mut Frames, passes: u32) {
        let mut ns = 0;
        for pass in 0..=passes {
            self.traffic.fill(frames);
            self.now_ms += 1;
            let took = timed(|| self.forward(frames));
            if pass > 0 {
                ns += took;
            }
            self.make_room(frames);
        }
        self.ns.push(ns as f64 / f64::from(passes) / frames.len() as f64);
    }

    /// SYNs are to be inserted, so the table is emptied before it is half
    /// full; a flood that finds it full is another measurement.
    fn make_room(&mut self, frames: &Frames) {
        let inserted = self.worker.counters.connections.inserts.get();
        let period = self.setup.connections / 2 / frames.len() as u64;
        let is_syn = self.kind == Kind::Syn && self.setup.flows > 0;
        if is_syn && (inserted / frames.len() as u64).is_multiple_of(period.max(1)) {
            self.worker.clear();
        }
    }

    fn forward(&mut self, frames: &mut Frames) {
        let mut verdicts = Verdicts::new();
        let worker = &mut self.worker;
        for batch in &mut frames.batches {
            worker.datapath.begin(self.now_ms, &worker.view);
            worker.datapath.forward_batch(&worker.view, batch, &mut worker.outbox, &mut verdicts);
            worker.counters.count_all(&verdicts);
            black_box(&batch);
        }
    }

    fn hits_and_misses(&self) -> (u64, u64) {
        let connections = &self.worker.counters.connections;
        (connections.hits.get(), connections.misses.get())
    }

    /// What went otherwise than it should: the share of packets that were
    /// not sent, and of those whose connection was not in the table.
    #[must_use]
    pub fn check(&self) -> String {
        let totals = self.worker.counters.totals();
        let (hits, misses) = self.hits_and_misses();
        let (hits, misses) = ((hits - self.before.0) as f64, (misses - self.before.1) as f64);
        assert_eq!(
            totals.sent,
            totals.accounted(),
            "{}: every packet is to be sent: {totals:?}",
            self.name
        );
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
                verdicts.push(if is_ip {
                    Verdict::Send(datapath::verdict::DeviceIndex(0))
                } else {
                    Verdict::Pass
                });
            }
            black_box(&batch);
            black_box(&verdicts);
        }
    });
    ns as f64 / frames.len() as f64
}
