//! The workers (the paper's packet threads) without their threads: each owns one queue of every
//! device, its packet memory and its connection table, and runs every packet to completion.
//!
//! ```text
//!  round: each device: rx batch ─► decide ─► tx by device
//!                                    └─ Slow ─► slow path ─► answers, in the next round ─► tx
//! ```
//!
//! A round never blocks and does not allocate. Frames are emitted only here, and their final
//! verdicts are counted only here. It has no clock: its caller begins a round with the time and
//! the View.

use datapath::outbox::{Accounting, Originated};
use datapath::verdict::DeviceIndex;
use datapath::{Counters, Datapath, DropReason, Verdict, View};
use nic::{Pool, Queue};
use wire::{Batch, Frame};

use crate::decider::Decider;
use crate::outgoing::Outgoing;
use crate::platform::Platform;
use crate::slow_path::{Answer, Request, SlowPathClient, SlowPathServer};

/// What a worker is made of.
pub struct Parts<P> {
    /// Its queue of every device, in the devices' order.
    pub queues: Vec<Box<dyn Queue>>,
    /// Its packet memory.
    pub pool: Pool,
    /// Its flow hash and connection table.
    pub datapath: Datapath<'static>,
    /// Where its verdicts are counted.
    pub counters: &'static Counters,
    /// Its way to the slow path.
    pub slow_path: SlowPathClient,
    /// What is around it.
    pub platform: P,
}

/// A worker.
pub struct Worker<P> {
    received: Batch<'static>,
    decider: Decider,
    exit: Exit<P>,
}

/// Where frames leave the worker.
struct Exit<P> {
    queues: Vec<Box<dyn Queue>>,
    /// Frames to send, by device.
    outgoing: Vec<Outgoing>,
    pool: Pool,
    counters: &'static Counters,
    slow_path: SlowPathClient,
    platform: P,
}

impl<P: Platform> Worker<P> {
    /// A worker that has no frame yet.
    #[must_use]
    pub fn new(parts: Parts<P>) -> Worker<P> {
        let Parts { queues, pool, datapath, counters, slow_path, platform } = parts;
        let outgoing = queues.iter().map(|_| Outgoing::default()).collect();
        Worker {
            received: Batch::new(),
            decider: Decider::new(datapath),
            exit: Exit { queues, outgoing, pool, counters, slow_path, platform },
        }
    }

    /// Sets the time, and sweeps the connection table; to be called before
    /// each round.
    #[inline]
    pub fn begin(&mut self, now_ms: u32, view: &View) {
        self.decider.datapath.begin(now_ms, view);
    }

    /// One batch of each device, and the slow path's answers; the number of
    /// frames.
    pub fn round(&mut self, view: &View) -> usize {
        self.round_of(view, |_| true)
    }

    /// The same of devices whose queues hold what they have received.
    pub fn last_round(&mut self, view: &View) -> usize {
        self.round_of(view, |queue| queue.holds())
    }

    fn round_of(&mut self, view: &View, is_asked: impl Fn(&dyn Queue) -> bool) -> usize {
        let mut frames = self.answers();
        for device in 0..self.exit.queues.len() {
            let Worker { received, decider, exit } = self;
            if !is_asked(&*exit.queues[device]) {
                continue;
            }
            exit.queues[device].rx(&mut exit.pool, received);
            if !received.is_empty() {
                frames += received.len();
                decider.lend_chunks(&mut exit.pool);
                decider.datapath.receive_from(DeviceIndex(device as u8));
                exit.platform.decide(decider, view, received, device);
                self.emit(device);
            }
        }
        frames
    }

    /// Does what the slow path decided; the number of its answers.
    pub fn answers(&mut self) -> usize {
        let mut count = 0;
        let exit = &mut self.exit;
        while let Some(answer) = exit.slow_path.answer() {
            count += 1;
            exit.platform.answered(&answer);
            match answer {
                Answer::Decided { frame, device, verdict } => exit.place(frame, verdict, device),
                Answer::Originated { originated, device } => exit.originate(originated, device),
            }
        }
        if count > 0 {
            exit.flush();
        }
        count
    }

    /// Does what the verdicts on frames from `device` say.
    fn emit(&mut self, device: usize) {
        let Worker { received, decider, exit } = self;
        let mut originated = decider.outbox.frames.drain(..).peekable();
        for (index, (frame, verdict)) in received.drain(..).zip(&decider.verdicts).enumerate() {
            exit.place(frame, *verdict, device);
            while let Some(more) = originated.next_if(|more| more.after == index) {
                exit.originate(more, device);
            }
        }
        drop(originated);
        exit.flush();
    }

    /// True if there is no frame of this worker's in the slow path.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.exit.slow_path.is_idle()
    }

    /// True if the slow path was asked since the last call: it is to be woken.
    #[inline]
    pub fn take_asked(&mut self) -> bool {
        self.exit.slow_path.take_asked()
    }

    /// Its packet memory.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.exit.pool
    }

    /// What decides on its frames.
    #[inline]
    pub(crate) fn decider(&mut self) -> &mut Decider {
        &mut self.decider
    }

    /// Its flow hash and connection table.
    pub(crate) fn datapath(&self) -> &Datapath<'static> {
        &self.decider.datapath
    }

    /// Chunks of its packet memory that no frame is in.
    pub(crate) fn chunks_at_rest(&self) -> usize {
        let Exit { pool, slow_path, .. } = &self.exit;
        pool.free() + self.decider.outbox.chunks.len() + slow_path.lent()
    }

    /// Ends it and its slow path's end: its packet memory, all of it free if
    /// the worker is at rest.
    pub(crate) fn into_pool(self, server: SlowPathServer) -> Pool {
        let Worker { received, decider, exit: Exit { mut pool, .. } } = self;
        let outbox = decider.outbox;
        received.into_iter().for_each(|frame| pool.give_frame(frame));
        outbox.chunks.into_iter().for_each(|chunk| pool.give(chunk));
        server.give_back(&mut pool);
        pool
    }

    /// What is around it.
    #[inline]
    pub fn platform(&mut self) -> &mut P {
        &mut self.exit.platform
    }
}

impl<P: Platform> Exit<P> {
    /// Puts a frame from `device` where its verdict says.
    #[inline]
    fn place(&mut self, frame: Frame<'static>, verdict: Verdict, device: usize) {
        match verdict {
            Verdict::Send(to) | Verdict::Redirect(to) | Verdict::ReplyBy(to) => {
                self.send(usize::from(to.0), frame, Accounting::Received(verdict));
            }
            Verdict::Reply => self.send(device, frame, Accounting::Received(verdict)),
            Verdict::Slow(recursion_limit) => self.ask(Request { frame, device, recursion_limit }),
            Verdict::Pass => self.pass(frame, device),
            Verdict::Drop(reason) => self.discard(frame, reason),
            // The slow path has kept a copy.
            Verdict::Hold => {
                self.counters.count(verdict);
                self.pool.give_frame(frame);
            }
        }
    }

    #[inline]
    fn send(&mut self, device: usize, frame: Frame<'static>, counts: Accounting) {
        if self.outgoing[device].is_full() {
            self.flush_device(device);
        }
        self.outgoing[device].push(frame, counts);
    }

    /// Sends what the datapath made of its own.
    fn originate(&mut self, originated: Originated<'static>, device: usize) {
        let to = originated.device.map_or(device, |to| usize::from(to.0));
        self.send(to, originated.frame, originated.counts);
    }

    fn ask(&mut self, request: Request) {
        if let Err(request) = self.slow_path.ask(request, &mut self.pool) {
            let reason = DropReason::SlowPathFull;
            self.platform.ended(&request.frame, Verdict::Drop(reason), request.device);
            self.discard(request.frame, reason);
        }
    }

    fn pass(&mut self, frame: Frame<'static>, device: usize) {
        let passed = self.platform.pass(&frame, device);
        let verdict = passed.map_or_else(Verdict::Drop, |()| Verdict::Pass);
        self.platform.ended(&frame, verdict, device);
        match passed {
            Ok(()) => {
                self.counters.count(Verdict::Pass);
                self.pool.give_frame(frame);
            }
            Err(reason) => self.discard(frame, reason),
        }
    }

    fn discard(&mut self, frame: Frame<'static>, reason: DropReason) {
        self.counters.count(Verdict::Drop(reason));
        self.platform.dropped(reason, &frame);
        self.pool.give_frame(frame);
    }

    fn flush(&mut self) {
        (0..self.queues.len()).for_each(|device| self.flush_device(device));
    }

    #[inline]
    fn flush_device(&mut self, device: usize) {
        let Exit { queues, outgoing, pool, counters, platform, .. } = self;
        let dropped = |reason, frame: &Frame<'_>| platform.dropped(reason, frame);
        outgoing[device].flush(&mut *queues[device], pool, counters, dropped);
    }
}
