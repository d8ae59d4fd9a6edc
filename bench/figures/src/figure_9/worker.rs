//! One packet thread without its NIC.

use std::hint::black_box;
use std::sync::Arc;

use guideway_bench::{setup, worker};
use plan::{Planner, proto};
use sim::LoadBalancer;
use wire::{BATCH_MAX, Batch, CHUNK_BYTES, Frame, HEADROOM_BYTES};

use super::{Kind, Options};
use crate::machine;
use crate::traffic::{FRAME_BYTES, Template, VIP};

/// Batches in which the clock goes on by a millisecond: as at 4 Mpps.
const BATCHES_PER_MS: u32 = 64;

/// A worker, its packets and 64 chunks.
pub struct Worker {
    worker: LoadBalancer,
    chunks: Vec<&'static mut [u8]>,
    batch: Batch<'static>,
    template: Template,
    kind: Kind,
    connections: u32,
    packets: u64,
    batches: u32,
    now_ms: u32,
}

impl Worker {
    /// A worker with an empty table.
    pub fn new(options: &Options, kind: Kind) -> Result<Worker, String> {
        let plan = Planner::default().plan(message(options)).map_err(|error| error.to_string())?;
        let view = Arc::new(setup::view(Arc::new(plan), 1));
        Ok(Worker {
            worker: worker::new(view, 0, options.connections_max)?,
            chunks: Vec::leak(vec![0; BATCH_MAX * CHUNK_BYTES]).chunks_mut(CHUNK_BYTES).collect(),
            batch: Batch::new(),
            template: Template::tcp(kind == Kind::Syn),
            kind,
            connections: options.connections,
            packets: 0,
            batches: 0,
            now_ms: 0,
        })
    }

    /// Sends two packets of every connection, more than a tick apart, which
    /// establishes it; as many SYNs fill the table.
    pub fn warm_up(&mut self) {
        for _ in 0..2 {
            for first in (0..self.connections).step_by(BATCH_MAX) {
                self.fill(|packet| first.wrapping_add(packet as u32));
                self.forward_batch();
                self.empty();
            }
            self.now_ms += 200;
        }
    }

    /// Forwards `packets` packets; nanoseconds of each.
    pub fn forward(&mut self, packets: u32) -> f64 {
        self.timed(packets, Worker::forward_batch)
    }

    /// The same without forwarding.
    pub fn only_loop(&mut self, packets: u32) -> f64 {
        self.timed(packets, |worker| {
            black_box(&mut worker.batch);
        })
    }

    fn timed(&mut self, packets: u32, work: impl Fn(&mut Worker)) -> f64 {
        let (kind, connections) = (self.kind, self.connections);
        let batches = packets.div_ceil(BATCH_MAX as u32);
        let start = machine::thread_time();
        for _ in 0..batches {
            let first = self.packets;
            self.fill(|packet| kind.connection(first + packet, connections));
            self.packets += BATCH_MAX as u64;
            work(self);
            self.empty();
        }
        let took = machine::thread_time() - start;
        took.as_nanos() as f64 / (f64::from(batches) * BATCH_MAX as f64)
    }

    #[inline]
    fn fill(&mut self, connection: impl Fn(u64) -> u32) {
        for (packet, chunk) in (0..).zip(self.chunks.drain(..)) {
            let end = HEADROOM_BYTES + FRAME_BYTES;
            self.template.write(&mut chunk[HEADROOM_BYTES..end], connection(packet));
            self.batch.push(Frame::new(chunk, HEADROOM_BYTES, end));
        }
    }

    #[inline]
    fn forward_batch(&mut self) {
        self.batches += 1;
        if self.batches.is_multiple_of(BATCHES_PER_MS) {
            self.now_ms += 1;
        }
        self.worker.forward_in_place(self.now_ms, &mut self.batch);
    }

    #[inline]
    fn empty(&mut self) {
        self.chunks.extend(self.batch.drain(..).map(Frame::into_chunk));
    }

    /// What was measured has to be what the figure says it is.
    pub fn check(&self) -> Result<(), String> {
        let totals = self.worker.totals();
        if totals.sent != totals.accounted() {
            return Err(format!(
                "only {} of {} packets were sent on",
                totals.sent,
                totals.accounted()
            ));
        }
        let (hits, misses) = worker::hits_and_misses(&self.worker);
        let expected = if self.kind == Kind::Syn { misses > hits } else { hits > misses };
        if !expected {
            return Err(format!(
                "{}: {hits} packets found their entry, {misses} did not",
                self.kind.name()
            ));
        }
        Ok(())
    }
}

fn message(options: &Options) -> proto::Plan {
    let name = |index: u32| format!("backend-{index:05}");
    let backend = |index: u32| {
        let [_, _, high, low] = index.to_be_bytes();
        proto::Backend { name: name(index), address: format!("10.1.{high}.{low}") }
    };
    let member = |index| proto::Member {
        backend: name(index),
        weight: 1,
        state: proto::BackendState::Active as i32,
    };
    let [a, b, c, d] = VIP;
    let target = Some(proto::vip::Target::Address(format!("{a}.{b}.{c}.{d}")));
    proto::Plan {
        generation: 1,
        machine: Some(proto::Machine {
            name: "figures".into(),
            addresses: vec!["10.0.0.1".into()],
            routers: Vec::new(),
        }),
        backends: (0..options.backends).map(backend).collect(),
        services: vec![proto::Service {
            name: "web".into(),
            vips: vec![proto::Vip { target, ..Default::default() }],
            group: "web".into(),
            table_size: 65_537,
            ..Default::default()
        }],
        groups: vec![proto::Group {
            name: "web".into(),
            members: (0..options.backends).map(member).collect(),
            ..Default::default()
        }],
        ..Default::default()
    }
}
