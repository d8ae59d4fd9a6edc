//! A whole load balancer in memory: workers, each with a queue of every device, and the slow
//! path, on the caller's thread and with the caller's clock.
//!
//! ```text
//!  frames ─► memory device ─► Worker ─► memory device ─► what was sent
//!                              │ ▲
//!                              ▼ │ rings             and each frame's Outcome
//!                            slow path
//! ```
//!
//! After each call everything is at rest, and the laws are asserted: every frame has one
//! verdict, the frames sent by the devices match the verdicts, and no packet memory is missing.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datapath::kernel_cache::CacheRegion;
use datapath::table::{HEADER_WORDS, Identity, words_for};
use datapath::verdict::DeviceIndex;
use datapath::{
    Clock, ConnectionTable, Counters, Datapath, DropReason, NoRecorder, Secret, SlowPath,
    TableReader, Totals, Verdict, View,
};
use nic::Queue;
use nic::drivers::memory::{self as device, MemoryPeer};
use wire::{Batch, FRAME_BYTES_MAX};

use crate::memory::{self, CHUNKS};
use crate::observer::{Observer, Outcome, Path};
use crate::slow_path::{self, SlowPathServer};
use crate::worker::{Parts, Worker};

/// What a load balancer is made with.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Of the view's workers those that run here: all, but where several
    /// threads forward by one view.
    pub workers: Range<usize>,
    /// Devices in memory, of which each worker has a queue.
    pub devices: usize,
    /// Connections that each worker's table has room for.
    pub connections: u64,
    /// The cluster's secret.
    pub secret: Secret,
    /// How workers decide.
    pub path: Path,
}

/// See the module.
pub struct LoadBalancer {
    /// What it forwards by; to be replaced at any time.
    pub view: Arc<View>,
    /// Each worker's connection table, as others see it.
    pub tables: Vec<TableReader<'static>>,
    setup: Setup,
    seats: Vec<Seat>,
    slow_path: SlowPath<'static>,
    /// Frames that no device received: see [`LoadBalancer::refuse`].
    refused: u64,
    now_ms: Option<u64>,
}

/// A worker, and what is around it.
struct Seat {
    worker: Worker<Observer>,
    peers: Vec<MemoryPeer>,
    meters: Vec<nic::Meter>,
    server: SlowPathServer,
    counters: &'static Counters,
    words: &'static [AtomicU64],
}

impl LoadBalancer {
    /// A load balancer that has tracked nothing yet.
    ///
    /// # Errors
    /// If memory is short.
    pub fn new(view: Arc<View>, setup: Setup) -> io::Result<LoadBalancer> {
        let workers = setup.workers.clone();
        let seats: Vec<Seat> =
            workers.map(|index| Seat::new(&setup, index)).collect::<io::Result<_>>()?;
        let tables: Vec<_> = seats.iter().map(|seat| TableReader::new(seat.words)).collect();
        // It lives as long as the process, and so do its counters.
        let counters = Box::leak(Box::default());
        let slow_path = SlowPath::new(&setup.secret, tables.clone(), counters, Clock::default());
        Ok(LoadBalancer { view, tables, setup, seats, slow_path, refused: 0, now_ms: None })
    }

    /// Goes on as a load balancer that has just started: nothing is tracked,
    /// no fragment waits, its clock may begin anywhere. Counters go on.
    pub fn restart(&mut self, view: Arc<View>) {
        self.view = view;
        for (seat, index) in self.seats.iter_mut().zip(self.setup.workers.clone()) {
            seat.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            seat.worker.decider().datapath =
                datapath(&self.setup, index, seat.words, seat.counters);
        }
        let (tables, counters) = (self.tables.clone(), self.slow_path.counters());
        self.slow_path = SlowPath::new(&self.setup.secret, tables, counters, Clock::default());
        self.now_ms = None;
    }

    /// Sets the time in milliseconds, which never goes back. The datapath's
    /// clock of 32 bits takes a step of less than half its range: longer ones
    /// are taken in several.
    pub fn set_time(&mut self, now_ms: u64) {
        let mut ms = self.now_ms.unwrap_or(now_ms);
        let now_ms = now_ms.max(ms);
        loop {
            ms = now_ms.min(ms + i32::MAX as u64);
            self.seats.iter_mut().for_each(|seat| seat.worker.begin(ms as u32, &self.view));
            self.slow_path.begin(ms as u32);
            if ms == now_ms {
                break;
            }
        }
        self.now_ms = Some(now_ms);
    }

    /// Has a worker, counted from zero, receive frames by a device; returns
    /// what became of each. Those of one call come at the same moment, a batch
    /// at a time.
    ///
    /// # Panics
    /// If one of the laws does not hold, or a frame is longer than memory for one.
    pub fn forward(
        &mut self,
        worker: usize,
        device: usize,
        frames: &[impl AsRef<[u8]>],
    ) -> Vec<Outcome> {
        let seat = &mut self.seats[worker];
        for frame in frames {
            let bytes = frame.as_ref();
            assert!(bytes.len() <= FRAME_BYTES_MAX, "{} bytes in a frame", bytes.len());
            seat.peers[device].push(bytes);
        }
        while seat.worker.round(&self.view) > 0 {
            seat.serve(&mut self.slow_path, &self.view);
        }
        let outcomes = std::mem::take(&mut seat.worker.platform().outcomes);
        assert_eq!(outcomes.len(), frames.len(), "an outcome for each frame");
        seat.check(device, &outcomes);
        assert_eq!(self.totals().unaccounted(self.received()), 0);
        outcomes
    }

    /// Forwards a batch that came from no device, where it lies, by the first
    /// worker and the fast path; the frames stay the caller's, and what may be
    /// originated has no memory. For measurements of the journey alone.
    #[inline]
    pub fn forward_in_place(&mut self, now_ms: u32, batch: &mut Batch<'static>) {
        let LoadBalancer { view, seats, slow_path, .. } = self;
        let Seat { worker, counters, .. } = &mut seats[0];
        let decider = worker.decider();
        decider.datapath.begin(now_ms, view);
        decider.decide(view, batch);
        for (frame, verdict) in batch.iter_mut().zip(&mut decider.verdicts) {
            // As nearly all are.
            if let Verdict::Send(_) = verdict {
                counters.sent.add(1);
                continue;
            }
            if let Verdict::Slow(recursion_limit) = *verdict {
                slow_path.begin(now_ms);
                let outbox = &mut decider.outbox;
                *verdict = slow_path.forward(view, frame, recursion_limit, outbox, &mut NoRecorder);
            }
            counters.count(*verdict);
        }
    }

    /// From now on that worker enters steady flows there, by the devices they come in by.
    pub fn set_kernel_cache(
        &mut self,
        worker: usize,
        regions: impl IntoIterator<Item = (DeviceIndex, CacheRegion<'static>)>,
    ) {
        self.seats[worker].worker.decider().datapath.set_kernel_cache(regions);
    }

    /// Counts a frame that no device would have received whole.
    pub fn refuse(&mut self, reason: DropReason) {
        self.refused += 1;
        self.seats[0].counters.count(Verdict::Drop(reason));
    }

    /// Frames received, and refused.
    #[must_use]
    pub fn received(&self) -> u64 {
        let meters = self.seats.iter().flat_map(|seat| &seat.meters);
        self.refused + meters.map(|meter| meter.read().received).sum::<u64>()
    }

    /// What became of them.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = self.slow_path.counters().totals();
        self.seats.iter().for_each(|seat| totals.add(&seat.counters.totals()));
        totals
    }

    /// A worker's counters.
    #[must_use]
    pub fn counters(&self, worker: usize) -> &'static Counters {
        self.seats[worker].counters
    }

    /// The slow path's counters.
    #[must_use]
    pub fn slow_path_counters(&self) -> &'static Counters {
        self.slow_path.counters()
    }

    /// A worker's connection table, as the worker sees it.
    #[must_use]
    pub fn table(&self, worker: usize) -> &ConnectionTable<'static> {
        self.seats[worker].worker.datapath().table()
    }

    /// Bytes of all connection tables.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        self.seats.iter().map(|seat| size_of_val(seat.words)).sum()
    }

    /// Forgets all connections. The tables' headers stay.
    pub fn clear_tables(&self) {
        for word in self.seats.iter().flat_map(|seat| &seat.words[HEADER_WORDS..]) {
            word.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for LoadBalancer {
    fn drop(&mut self) {
        for Seat { worker, server, .. } in self.seats.drain(..) {
            memory::keep_pool(worker.into_pool(server));
        }
    }
}

fn datapath(
    setup: &Setup,
    index: usize,
    words: &'static [AtomicU64],
    counters: &'static Counters,
) -> Datapath<'static> {
    let workers = setup.workers.end as u32;
    let identity = Identity { key: 1, ids_epoch: 1, worker: index as u32, workers };
    let table = ConnectionTable::open(words, &identity).0;
    Datapath::new(&setup.secret, table, counters, Clock::default(), index)
}

impl Seat {
    fn new(setup: &Setup, index: usize) -> io::Result<Seat> {
        let words = memory::table(words_for(setup.connections))?;
        let counters: &'static Counters = Box::leak(Box::default());
        let (queues, peers): (Vec<_>, Vec<_>) = (0..setup.devices).map(|_| device::pair()).unzip();
        let queues: Vec<Box<dyn Queue>> =
            queues.into_iter().map(|queue| -> Box<dyn Queue> { Box::new(queue) }).collect();
        let meters = queues.iter().map(|queue| queue.meter()).collect();
        let (client, server) = slow_path::pair();
        let worker = Worker::new(Parts {
            queues,
            pool: memory::take_pool()?,
            datapath: datapath(setup, index, words, counters),
            counters,
            slow_path: client,
            platform: Observer::new(setup.path),
        });
        Ok(Seat { worker, peers, meters, server, counters, words })
    }

    /// Has the slow path answer everything that the worker asks.
    fn serve(&mut self, path: &mut SlowPath<'static>, view: &View) {
        let Observer { outcomes, undecided, .. } = self.worker.platform();
        for index in undecided.iter() {
            let served = self.server.serve(path, view, &mut outcomes[*index].journey);
            assert!(served, "a request for each frame that is not decided");
        }
    }

    /// Asserts that what the outcomes say has left, and that no chunk is lost.
    fn check(&mut self, device: usize, outcomes: &[Outcome]) {
        let mut expected = Vec::new();
        let index_of = |to: Option<DeviceIndex>| to.map_or(device, |to| usize::from(to.0));
        for outcome in outcomes {
            if let Some(to) = outcome.device() {
                expected.push((index_of(to), &outcome.frame));
            }
            let originated = outcome.originated.iter();
            expected.extend(originated.map(|made| (index_of(made.device), &made.bytes)));
        }
        let taken = |(index, peer): (usize, &MemoryPeer)| {
            std::iter::from_fn(|| peer.take()).map(|bytes| (index, bytes)).collect::<Vec<_>>()
        };
        let mut sent: Vec<(usize, Vec<u8>)> =
            self.peers.iter().enumerate().flat_map(taken).collect();
        expected.sort();
        sent.sort();
        assert!(
            sent.iter().map(|(index, bytes)| (*index, bytes)).eq(expected.iter().copied()),
            "the devices sent {sent:02x?}, the verdicts say {expected:02x?}"
        );
        assert_eq!(self.worker.chunks_at_rest(), CHUNKS, "a chunk was lost");
    }
}
