//! The workers' threads: each runs the loop of [`Worker`] on its own queues, and handles
//! waking, CPU pinning and reports.
//!
//! ```text
//!  loop: new view? ─► the time ─► Worker::round ─► wake the slow path, punt ─► nothing came? wait
//! ```
//!
//! Workers share no mutable state, block only in the wait, and do not allocate once they run.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use datapath::{DropReason, Verdict, View};
use nic::wait::{Waiter, Waker};
use wire::{Batch, Frame};

use crate::dataplane::capture::Tap;
use crate::dataplane::checksums::ChecksumSamples;
use crate::dataplane::punt::Punt;
use crate::dataplane::samples::DropSamples;
use crate::dataplane::threads::{
    Role, SLEEP_MAX, Stage, ThreadStatus, monotonic_ms, monotonic_ns, pin,
};
use crate::dataplane::view_publisher::ViewPublisher;
use sim::{Answer, Decider, Platform, Worker};

/// Over which time the busy ratio is told.
const BUSY_WINDOW_NS: u64 = 1_000_000_000;

/// What a worker's thread is made of.
pub struct Parts {
    /// Which worker.
    pub index: usize,
    /// Its loop.
    pub worker: Worker<Surroundings>,
    /// Wakes the slow path.
    pub slow_path: Waker,
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

/// What a forwarder has around a worker.
pub struct Surroundings {
    /// Where the latest frames that it drops are kept.
    pub samples: &'static DropSamples,
    /// Whether frames come with their checksums.
    pub checksums: &'static ChecksumSamples,
    /// Where its packets are captured.
    pub tap: Tap,
    /// Its way back to the kernel.
    pub punt: Punt,
}

impl Platform for Surroundings {
    #[inline]
    fn decide(
        &mut self,
        decider: &mut Decider,
        view: &View,
        batch: &mut Batch<'static>,
        device: usize,
    ) {
        self.checksums.look(batch, device);
        self.tap.before(batch);
        decider.decide(view, batch);
        self.tap.after(batch, &decider.verdicts, device);
    }

    #[inline]
    fn pass(&mut self, frame: &Frame<'_>, device: usize) -> Result<(), DropReason> {
        self.punt.pass(frame, device)
    }

    #[inline]
    fn answered(&mut self, answer: &Answer) {
        if let Answer::Decided { frame, device, verdict } = answer {
            self.tap.decided(frame, *verdict, *device);
        }
    }

    #[inline]
    fn ended(&mut self, frame: &Frame<'_>, verdict: Verdict, device: usize) {
        self.tap.ended(frame, verdict, device);
    }

    #[inline]
    fn dropped(&mut self, reason: DropReason, frame: &Frame<'_>) {
        self.samples.note(reason, frame.bytes());
    }
}

/// Starts a worker's thread, which ends when the publisher says stop.
pub fn start(parts: Parts) -> io::Result<JoinHandle<()>> {
    let name = Role::Worker(parts.index).to_string();
    std::thread::Builder::new().name(name).spawn(move || Thread::new(parts).run())
}

struct Thread {
    parts: Parts,
    view: Arc<View>,
    epoch: u64,
    busy: Busy,
}

impl Thread {
    fn new(parts: Parts) -> Thread {
        let view = parts.publisher.view();
        Thread { parts, view, epoch: 0, busy: Busy::new() }
    }

    fn run(mut self) {
        self.status().set_cpu(pin(self.parts.cpu, Role::Worker(self.parts.index)));
        while !self.parts.publisher.stopped() {
            if self.parts.publisher.rests(Stage::Workers) {
                self.rest();
            }
            self.parts.publisher.adopt(self.parts.index, &mut self.epoch, &mut self.view);
            let start = self.busy.begin();
            self.status().beat(start / 1_000_000);
            let worker = &mut self.parts.worker;
            worker.platform().samples.begin(start / 1_000_000);
            worker.platform().checksums.begin(start / 1_000_000);
            worker.begin((start / 1_000_000) as u32, &self.view);
            let frames = self.run_round(Worker::round);
            if let Some(permille) = self.busy.end(frames > 0) {
                self.status().set_busy(permille);
            }
            if frames == 0 && !self.parts.busy_poll {
                self.parts.waiter.wait(SLEEP_MAX).expect("polling descriptors that are open");
            }
        }
    }

    /// Finishes what is on its way, and stands still until told to go on.
    /// From devices nothing more is taken, but what their queues hold already: frames wait
    /// there for the process that goes on. From the steering thread everything is.
    fn rest(&mut self) {
        let publisher = Arc::clone(&self.parts.publisher);
        while publisher.rests(Stage::Workers) && !publisher.stopped() {
            self.status().beat(monotonic_ms());
            let round = if self.parts.steered { Worker::round } else { Worker::last_round };
            let frames = self.run_round(round);
            if frames == 0 && self.parts.worker.is_idle() {
                let thread = &publisher.threads()[self.parts.index];
                let still = || publisher.stand_still(thread, Stage::Workers);
                self.parts.worker.pool().stand_still(still);
            }
        }
        self.status().set_resting(Stage::Work);
    }

    /// A round of the worker, and wakes whom it needs; the number of frames.
    fn run_round(&mut self, round: fn(&mut Worker<Surroundings>, &View) -> usize) -> usize {
        let Parts { worker, slow_path, .. } = &mut self.parts;
        let frames = round(worker, &self.view);
        if worker.take_asked() {
            slow_path.wake();
        }
        worker.platform().punt.wake();
        frames
    }

    fn status(&self) -> &ThreadStatus {
        &self.parts.publisher.threads()[self.parts.index]
    }
}

/// Reports how much of each second went into frames.
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
