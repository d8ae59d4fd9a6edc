//! The workers (the paper's packet threads): each owns one queue of every
//! device, its packet memory and its connection table, and runs every packet
//! to completion.
//!
//! ```text
//!  loop: new view? ─► each device: rx batch ─► forward_batch ─► tx by device ─► nothing came? wait
//!                                                  └─ Slow ─► slow path ─► answers ─┘
//! ```
//!
//! Workers share nothing that changes, never block but in the wait, and do
//! not allocate once they run. Only here frames are emitted, and only here
//! their final verdicts are counted.

mod outgoing;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use datapath::batch::Verdicts;
use datapath::outbox::{Accounting, Originated};
use datapath::{Counters, Datapath, DropReason, Outbox, Verdict, View};
use nic::wait::Waiter;
use nic::{Pool, Queue};

use wire::{Batch, Frame};

use crate::dataplane::accounts::Accounts;
use crate::dataplane::capture::Tap;
use crate::dataplane::punt::Punt;
use crate::dataplane::samples::DropSamples;
use crate::dataplane::slow_path::{Answer, Request, SlowPathClient};
use crate::dataplane::threads::{
    Role, SLEEP_MAX, Stage, ThreadStatus, monotonic_ms, monotonic_ns, pin,
};
use crate::dataplane::view_publisher::ViewPublisher;
use outgoing::Outgoing;

/// Over which time the busy ratio is told.
const BUSY_WINDOW_NS: u64 = 1_000_000_000;

/// What a worker is made of.
pub struct Parts {
    /// Which worker.
    pub index: usize,
    /// Its queue of every device, in the devices' order.
    pub queues: Vec<Box<dyn Queue>>,
    /// Its packet memory.
    pub pool: Pool,
    /// Its flow hash and connection table.
    pub datapath: Datapath<'static>,
    /// Where its verdicts are counted.
    pub counters: &'static Counters,
    /// Where the latest frames that it drops are kept.
    pub samples: &'static DropSamples,
    /// Where its packets are captured.
    pub tap: Tap,
    /// Its way to the slow path.
    pub slow_path: SlowPathClient,
    /// Its way back to the kernel.
    pub punt: Punt,
    /// Where views are posted.
    pub publisher: Arc<ViewPublisher>,
    /// What it sleeps on.
    pub waiter: Waiter,
    /// The core to run on; None: the kernel's choice.
    pub cpu: Option<usize>,
    /// Never sleep.
    pub busy_poll: bool,
    /// Frames come from the steering thread and not from devices.
    pub steered: bool,
}

impl Parts {
    #[inline]
    fn accounts(&self) -> Accounts {
        Accounts { counters: self.counters, samples: self.samples }
    }
}

/// Starts a worker's thread, which ends when the publisher says stop.
pub fn start(parts: Parts) -> io::Result<JoinHandle<()>> {
    let name = Role::Worker(parts.index).to_string();
    std::thread::Builder::new().name(name).spawn(move || Worker::new(parts).run())
}

struct Worker {
    parts: Parts,
    view: Arc<View>,
    epoch: u64,
    received: Batch<'static>,
    verdicts: Verdicts,
    outbox: Outbox<'static>,
    /// Frames to send, by device.
    outgoing: Vec<Outgoing>,
    busy: Busy,
}

impl Worker {
    fn new(parts: Parts) -> Worker {
        let (view, epoch) = (parts.publisher.view(), 0);
        let outgoing = parts.queues.iter().map(|_| Outgoing::default()).collect();
        Worker {
            parts,
            view,
            epoch,
            received: Batch::new(),
            verdicts: Verdicts::new(),
            outbox: Outbox::default(),
            outgoing,
            busy: Busy::new(),
        }
    }

    fn run(mut self) {
        self.thread().set_cpu(pin(self.parts.cpu, Role::Worker(self.parts.index)));
        while !self.parts.publisher.stopped() {
            if self.parts.publisher.rests(Stage::Workers) {
                self.rest();
            }
            self.parts.publisher.adopt(self.parts.index, &mut self.epoch, &mut self.view);
            let start = self.busy.begin();
            self.thread().beat(start / 1_000_000);
            self.parts.samples.begin(start / 1_000_000);
            self.parts.datapath.begin((start / 1_000_000) as u32, &self.view);
            let frames = self.round();
            if let Some(permille) = self.busy.end(frames > 0) {
                self.thread().set_busy(permille);
            }
            if frames == 0 && !self.parts.busy_poll {
                self.parts.waiter.wait(SLEEP_MAX).expect("polling descriptors that are open");
            }
        }
    }

    /// Finishes what is on its way, and stands still until told to go on.
    /// From devices nothing more is taken: frames wait there for the process that goes
    /// on. From the steering thread everything is.
    fn rest(&mut self) {
        let publisher = Arc::clone(&self.parts.publisher);
        while publisher.rests(Stage::Workers) && !publisher.stopped() {
            self.thread().beat(monotonic_ms());
            let frames = if self.parts.steered { self.round() } else { self.answers() };
            if frames == 0 && self.parts.slow_path.is_idle() {
                let thread = &publisher.threads()[self.parts.index];
                self.parts.pool.stand_still(|| publisher.stand_still(thread, Stage::Workers));
            }
        }
        self.thread().set_resting(Stage::Work);
    }

    /// One batch of each device, and the slow path's answers; the number of
    /// frames.
    fn round(&mut self) -> usize {
        let mut frames = self.answers();
        for device in 0..self.parts.queues.len() {
            self.parts.queues[device].rx(&mut self.parts.pool, &mut self.received);
            if !self.received.is_empty() {
                frames += self.received.len();
                self.lend_chunks();
                let Worker { parts, view, received, outbox, verdicts, .. } = self;
                parts.tap.before(received);
                parts.datapath.forward_batch(view, received, outbox, verdicts);
                parts.tap.after(received, verdicts, device);
                self.emit(device);
            }
        }
        self.parts.slow_path.wake();
        self.parts.punt.wake();
        frames
    }

    /// Memory for what the datapath may originate.
    #[inline]
    fn lend_chunks(&mut self) {
        while !self.outbox.chunks.is_full() {
            let Some(chunk) = self.parts.pool.take() else { return };
            self.outbox.chunks.push(chunk);
        }
    }

    /// Does what the verdicts on frames from `device` say.
    fn emit(&mut self, device: usize) {
        let Worker { parts, received, verdicts, outbox, outgoing, .. } = self;
        let mut originated = outbox.frames.drain(..).peekable();
        for (index, (frame, verdict)) in received.drain(..).zip(verdicts.iter()).enumerate() {
            place(parts, outgoing, frame, *verdict, device);
            while let Some(more) = originated.next_if(|more| more.after == index) {
                originate(parts, outgoing, more, device);
            }
        }
        drop(originated);
        self.flush();
    }

    fn flush(&mut self) {
        let Worker { parts, outgoing, .. } = self;
        let accounts = parts.accounts();
        for (queue, batch) in parts.queues.iter_mut().zip(outgoing) {
            batch.flush(&mut **queue, &mut parts.pool, accounts);
        }
    }

    /// Does what the slow path decided.
    fn answers(&mut self) -> usize {
        let mut count = 0;
        while let Some(answer) = self.parts.slow_path.answer() {
            count += 1;
            let Worker { parts, outgoing, .. } = self;
            match answer {
                Answer::Decided { frame, device, verdict } => {
                    parts.tap.decided(&frame, verdict, device);
                    place(parts, outgoing, frame, verdict, device);
                }
                Answer::Originated { originated, device } => {
                    originate(parts, outgoing, originated, device);
                }
            }
        }
        if count > 0 {
            self.flush();
        }
        count
    }

    fn thread(&self) -> &ThreadStatus {
        &self.parts.publisher.threads()[self.parts.index]
    }
}

/// Puts a frame from `device` where its verdict says.
#[inline]
fn place(
    parts: &mut Parts,
    outgoing: &mut [Outgoing],
    frame: Frame<'static>,
    verdict: Verdict,
    device: usize,
) {
    match verdict {
        Verdict::Send(to) | Verdict::Redirect(to) | Verdict::ReplyBy(to) => {
            send(parts, outgoing, usize::from(to.0), frame, Accounting::Received(verdict));
        }
        Verdict::Reply => send(parts, outgoing, device, frame, Accounting::Received(verdict)),
        Verdict::Slow(recursion_limit) => ask(parts, Request { frame, device, recursion_limit }),
        Verdict::Pass => pass(parts, frame, device),
        Verdict::Drop(reason) => discard(parts, frame, reason),
        // The slow path has kept a copy.
        Verdict::Hold => {
            parts.counters.count(verdict);
            parts.pool.give_frame(frame);
        }
    }
}

#[inline]
fn send(
    parts: &mut Parts,
    outgoing: &mut [Outgoing],
    device: usize,
    frame: Frame<'static>,
    counts: Accounting,
) {
    let accounts = parts.accounts();
    let queue = &mut *parts.queues[device];
    outgoing[device].push(frame, counts, queue, &mut parts.pool, accounts);
}

/// Sends what the datapath made of its own.
fn originate(
    parts: &mut Parts,
    outgoing: &mut [Outgoing],
    originated: Originated<'static>,
    device: usize,
) {
    let to = originated.device.map_or(device, |to| usize::from(to.0));
    send(parts, outgoing, to, originated.frame, originated.counts);
}

fn ask(parts: &mut Parts, request: Request) {
    if let Err(request) = parts.slow_path.ask(request, &mut parts.pool) {
        let reason = DropReason::SlowPathFull;
        parts.tap.ended(&request.frame, Verdict::Drop(reason), request.device);
        discard(parts, request.frame, reason);
    }
}

fn pass(parts: &mut Parts, frame: Frame<'static>, device: usize) {
    let passed = parts.punt.pass(&frame, device);
    parts.tap.ended(&frame, passed.map_or_else(Verdict::Drop, |()| Verdict::Pass), device);
    match passed {
        Ok(()) => {
            parts.counters.count(Verdict::Pass);
            parts.pool.give_frame(frame);
        }
        Err(reason) => discard(parts, frame, reason),
    }
}

fn discard(parts: &mut Parts, frame: Frame<'static>, reason: DropReason) {
    parts.accounts().drop(reason, &frame);
    parts.pool.give_frame(frame);
}

/// Tells how much of each second went into frames.
struct Busy {
    window_start: u64,
    round_start: u64,
    busy_ns: u64,
}

impl Busy {
    fn new() -> Busy {
        let now = monotonic_ns();
        Busy { window_start: now, round_start: now, busy_ns: 0 }
    }

    /// A round begins: now, in nanoseconds.
    fn begin(&mut self) -> u64 {
        self.round_start = monotonic_ns();
        self.round_start
    }

    /// A round ends; once in a window, the busy share of it in thousandths.
    fn end(&mut self, had_frames: bool) -> Option<u32> {
        let now = monotonic_ns();
        if had_frames {
            self.busy_ns += now - self.round_start;
        }
        let window = now - self.window_start;
        if window < BUSY_WINDOW_NS {
            return None;
        }
        let permille = (self.busy_ns * 1000 / window) as u32;
        (self.window_start, self.busy_ns) = (now, 0);
        Some(permille)
    }
}
