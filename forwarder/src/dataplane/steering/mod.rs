//! `steering: software` (paper 3.1): one thread receives from all queues, steers each frame to
//! a worker by its flow, and sends the frames that workers return. For NICs with one queue, and
//! for traffic in a single tunnel, which a NIC does not distribute.
//!
//! ```text
//!  queues ─► steering thread ─ flow hash ─► ring of its worker ─► worker ─┐
//!    ▲             │                └ full: the others in turn             │
//!    └── muxing ◄──┴────────────────────────── ring of frames to send ◄───┘
//! ```
//!
//! All packet memory belongs to one pool, and frames are never copied. Frames of a flow stay in
//! order, unless some are misdirected because their worker's ring is full: no table remembers
//! these (if their backend has changed, their connection may break), and they are counted. If
//! every ring is full, the frame is dropped (`worker_full`). If a device accepts no more, the
//! rings back fill up, and workers drop (`tx_full`): nothing is lost here, and no thread waits.

pub mod dispatch;
mod rings;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use datapath::{DropReason, FlowHash, Verdict, View};
use nic::wait::{Waiter, Waker};
use nic::{Pool, Queue, SharedIo, WorkerIo};
use wire::{Batch, Frame};

use crate::dataplane::accounts::Accounts;
use crate::dataplane::capture::Tap;
use crate::dataplane::threads::{
    REST_PAUSE, Role, SLEEP_MAX, Stage, ThreadStatus, monotonic_ms, pin,
};
use crate::dataplane::view_publisher::ViewPublisher;
use dispatch::{Dispatch, Dispatcher};
use rings::Link;

/// Frames that a worker may have waiting, from each device: four batches.
pub const RING_FRAMES: usize = 4 * wire::BATCH_MAX;

/// Between two tries to send what a device had no room for.
const RETRY: Duration = Duration::from_millis(1);

/// Chunks of packet memory for `workers` workers: full rings both ways, and
/// what workers keep.
#[must_use]
pub fn chunks_in_hand(workers: usize, devices: usize) -> usize {
    workers * (2 * devices * RING_FRAMES + rings::CHUNKS_OF_WORKER)
}

/// The devices, and the ends of the rings to all workers.
pub struct Hub {
    pool: Pool,
    /// By device.
    ports: Vec<Vec<Port>>,
    links: Vec<Link>,
    waiter: Waiter,
}

/// A queue, and frames that it had no room for yet.
struct Port {
    queue: Box<dyn Queue>,
    waiting: Batch<'static>,
}

/// Puts rings between devices and workers: the steering thread's end, and
/// what each worker owns.
pub fn split(io: SharedIo, workers: usize, ring_frames: usize) -> io::Result<(Hub, Vec<WorkerIo>)> {
    let SharedIo { pool, queues } = io;
    let waiter = Waiter::new(queues.iter().flatten().filter_map(|queue| queue.fd()))?;
    let mut links = Vec::with_capacity(workers);
    let mut ends = Vec::with_capacity(workers);
    for _ in 0..workers {
        let (link, queues) = rings::pair(queues.len(), ring_frames, &waiter.waker());
        links.push(link);
        ends.push(WorkerIo { pool: pool.sibling(), queues });
    }
    let port = |queue| Port { queue, waiting: Batch::new() };
    let ports = queues.into_iter().map(|queues| queues.into_iter().map(port).collect()).collect();
    Ok((Hub { pool, ports, links, waiter }, ends))
}

impl Hub {
    /// Every queue, with its device and its number there.
    pub fn queues(&self) -> impl Iterator<Item = (usize, usize, &dyn Queue)> {
        self.ports.iter().enumerate().flat_map(|(device, ports)| {
            ports.iter().enumerate().map(move |(number, port)| (device, number, &*port.queue))
        })
    }

    /// Wakes the steering thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waiter.waker()
    }
}

/// What the thread is made of.
pub struct Parts {
    /// Devices and rings.
    pub hub: Hub,
    /// Not the workers' hash.
    pub hash: FlowHash,
    /// Where drops are written down.
    pub accounts: Accounts,
    /// Where they are captured.
    pub tap: Tap,
    /// Each worker's.
    pub wakers: Vec<Waker>,
    /// Where views are posted.
    pub publisher: Arc<ViewPublisher>,
    /// The core to run on; None: the kernel's choice.
    pub cpu: Option<usize>,
    /// Never sleep.
    pub busy_poll: bool,
}

/// Starts the thread, which ends when the publisher says stop.
pub fn start(parts: Parts) -> io::Result<JoinHandle<()>> {
    let name = Role::Steering.to_string();
    std::thread::Builder::new().name(name).spawn(move || Steerer::new(parts).run())
}

struct Steerer {
    parts: Parts,
    /// This thread's index.
    thread: usize,
    view: Arc<View>,
    epoch: u64,
    dispatcher: Dispatcher,
    received: Batch<'static>,
    /// Workers that got frames in this round.
    touched: Vec<bool>,
}

impl Steerer {
    fn new(parts: Parts) -> Steerer {
        let workers = parts.hub.links.len();
        Steerer {
            thread: parts.publisher.thread_of(Role::Steering),
            view: parts.publisher.view(),
            epoch: 0,
            dispatcher: Dispatcher::new(workers),
            received: Batch::new(),
            touched: vec![false; workers],
            parts,
        }
    }

    fn run(mut self) {
        self.thread().set_cpu(pin(self.parts.cpu, Role::Steering));
        while !self.parts.publisher.stopped() {
            if self.parts.publisher.rests(Stage::Receiving) {
                self.rest();
            }
            self.parts.publisher.adopt(self.thread, &mut self.epoch, &mut self.view);
            let now_ms = monotonic_ms();
            self.thread().beat(now_ms);
            self.parts.accounts.samples.begin(now_ms);
            let frames = self.mux() + self.receive(|_| true);
            let Hub { pool, links, .. } = &mut self.parts.hub;
            links.iter_mut().for_each(|link| link.exchange_chunks(pool));
            if frames == 0 && !self.parts.busy_poll {
                let timeout = if self.is_waiting() { RETRY } else { SLEEP_MAX };
                self.parts.hub.waiter.wait(timeout).expect("polling descriptors that are open");
            }
        }
    }

    /// Receives no more than queues hold already, and when all workers rest stands still
    /// as soon as everything they handed back is sent.
    fn rest(&mut self) {
        let publisher = Arc::clone(&self.parts.publisher);
        while publisher.rests(Stage::Receiving) && !publisher.stopped() {
            self.thread().beat(monotonic_ms());
            // Before mux: a worker may hand frames back, and rest, behind it.
            let workers_rest = publisher.rests(Stage::All);
            let held = self.receive(|queue| queue.holds());
            let frames = held + self.mux();
            let Hub { pool, links, .. } = &mut self.parts.hub;
            links.iter_mut().for_each(|link| link.exchange_chunks(pool));
            if held == 0 {
                self.thread().set_resting(Stage::Receiving);
            }
            if frames == 0 && !self.is_waiting() && workers_rest {
                let thread = &publisher.threads()[self.thread];
                self.parts.hub.pool.stand_still(|| publisher.stand_still(thread, Stage::All));
            } else if frames == 0 {
                std::thread::sleep(REST_PAUSE);
            }
        }
        self.thread().set_resting(Stage::Work);
    }

    /// A batch of each of these queues goes to workers; the number of frames.
    fn receive(&mut self, is_asked: impl Fn(&dyn Queue) -> bool) -> usize {
        let mut frames = 0;
        for device in 0..self.parts.hub.ports.len() {
            for number in 0..self.parts.hub.ports[device].len() {
                let Hub { pool, ports, .. } = &mut self.parts.hub;
                let queue = &mut ports[device][number].queue;
                if !is_asked(&**queue) {
                    continue;
                }
                queue.rx(pool, &mut self.received);
                frames += self.received.len();
                let mut received = std::mem::take(&mut self.received);
                received.drain(..).for_each(|frame| self.steer(frame, device));
                self.received = received;
            }
        }
        for (touched, waker) in self.touched.iter_mut().zip(&self.parts.wakers) {
            if std::mem::take(touched) {
                waker.wake();
            }
        }
        frames
    }

    fn steer(&mut self, mut frame: Frame<'static>, device: usize) {
        let Parts { hub: Hub { links, pool, .. }, hash, accounts, tap, .. } = &mut self.parts;
        let flow = datapath::steer::flow(&self.view, frame.bytes());
        let own = flow.map_or(0, |key| self.dispatcher.worker_of(hash.flow(&key)));
        let worker =
            match self.dispatcher.dispatch(own, |worker| !links[worker].to[device].is_full()) {
                Dispatch::Own(worker) => worker,
                Dispatch::Misdirected(worker) => {
                    frame.set_misdirected();
                    accounts.counters.misdirected.add(1);
                    worker
                }
                Dispatch::AllFull => {
                    tap.ended(&frame, Verdict::Drop(DropReason::WorkerFull), device);
                    accounts.drop(DropReason::WorkerFull, &frame);
                    return pool.give_frame(frame);
                }
            };
        let pushed = links[worker].to[device].push(frame);
        assert!(pushed.is_ok(), "there was room, and this is the only producer");
        self.touched[worker] = true;
    }

    /// A batch of each worker goes to each device, always by the same queue,
    /// so that order is kept; the number of frames.
    fn mux(&mut self) -> usize {
        let Hub { pool, ports, links, .. } = &mut self.parts.hub;
        let mut frames = 0;
        for (worker, link) in links.iter_mut().enumerate() {
            for (from, ports) in link.from.iter_mut().zip(ports.iter_mut()) {
                let which = worker % ports.len();
                frames += ports[which].send(from, pool);
            }
        }
        frames
    }

    fn is_waiting(&self) -> bool {
        self.parts.hub.ports.iter().flatten().any(|port| !port.waiting.is_empty())
    }

    fn thread(&self) -> &ThreadStatus {
        &self.parts.publisher.threads()[self.thread]
    }
}

impl Port {
    /// Sends a batch of what a worker hands back, behind what still waits;
    /// the number of frames that left.
    fn send(&mut self, from: &mut rtrb::Consumer<Frame<'static>>, pool: &mut Pool) -> usize {
        while !self.waiting.is_full()
            && let Ok(frame) = from.pop()
        {
            self.waiting.push(frame);
        }
        let count = self.waiting.len();
        if count > 0 {
            self.queue.tx(pool, &mut self.waiting);
        }
        count - self.waiting.len()
    }
}
