//! The slow-path thread: one a machine, for what needs all workers' tables.
//!
//! ```text
//!  worker ── ring of requests ──► slow path ── ring of answers ──► the same worker emits
//! ```
//!
//! A frame stays in its worker's packet memory: the slow path only borrows
//! it. It also has a stock of the worker's chunks for what it originates,
//! which the worker fills up as they come back in answers. A full ring drops
//! and counts; no thread blocks.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use datapath::outbox::{ORIGINATED_MAX, Originated};
use datapath::slow::SlowPath;
use datapath::{NoRecorder, Outbox, RecursionLimit, Verdict, View};
use nic::wait::{Waiter, Waker};
use nic::{Chunk, Pool};
use rtrb::{Consumer, Producer, RingBuffer};
use wire::{BATCH_MAX, Frame};

use crate::dataplane::threads::{REST_PAUSE, Role, SLEEP_MAX, Stage, monotonic_ms};
use crate::dataplane::view_publisher::ViewPublisher;

/// Requests a worker may have open. More is a flood, and is dropped.
const REQUESTS_MAX: usize = 512;

/// Chunks lent to the slow path: what it may originate from one worker's
/// frames before the worker comes round.
const STOCK_MAX: usize = ORIGINATED_MAX;

/// A frame that a worker cannot decide on.
pub struct Request {
    /// The frame.
    pub frame: Frame<'static>,
    /// The device it came from.
    pub device: usize,
    /// How often it may still be tunnelled.
    pub recursion_limit: RecursionLimit,
}

/// What becomes of it.
pub enum Answer {
    /// The frame asked about, ready for its verdict.
    Decided {
        /// The frame.
        frame: Frame<'static>,
        /// The device it came from.
        device: usize,
        /// The verdict.
        verdict: Verdict,
    },
    /// What follows it.
    Originated {
        /// The frame, and where it goes.
        originated: Originated<'static>,
        /// The device that the frame asked about came from.
        device: usize,
    },
}

/// A worker's end.
pub struct SlowPathClient {
    requests: Producer<Request>,
    stock: Producer<Chunk>,
    answers: Consumer<Answer>,
    /// Requests without an answer yet.
    open: usize,
    /// Chunks that the slow path has.
    lent: usize,
    slow: Waker,
    asked: bool,
}

/// The slow path's end for one worker.
pub struct SlowPathServer {
    requests: Consumer<Request>,
    stock: Consumer<Chunk>,
    answers: Producer<Answer>,
    /// Its chunks are this worker's.
    outbox: Outbox<'static>,
    worker: Waker,
}

/// The rings between a worker and the slow path.
#[must_use]
pub fn pair(slow: Waker, worker: Waker) -> (SlowPathClient, SlowPathServer) {
    let (ask, requests) = RingBuffer::new(REQUESTS_MAX);
    let (lend, stock) = RingBuffer::new(STOCK_MAX);
    // Room for every frame and every chunk that can be on its way.
    let (answer, answers) = RingBuffer::new(REQUESTS_MAX + STOCK_MAX);
    let slow_path = SlowPathClient {
        requests: ask,
        stock: lend,
        answers,
        open: 0,
        lent: 0,
        slow,
        asked: false,
    };
    (
        slow_path,
        SlowPathServer { requests, stock, answers: answer, outbox: Outbox::default(), worker },
    )
}

impl SlowPathClient {
    /// Hands a request over; it comes back if too many are open.
    pub fn ask(&mut self, request: Request, pool: &mut Pool) -> Result<(), Request> {
        if self.open == REQUESTS_MAX {
            return Err(request);
        }
        self.lend(pool);
        self.requests.push(request).map_err(|rtrb::PushError::Full(request)| request)?;
        self.open += 1;
        self.asked = true;
        Ok(())
    }

    /// Wakes the slow path, if anything was asked since the last call.
    #[inline]
    pub fn wake(&mut self) {
        if std::mem::take(&mut self.asked) {
            self.slow.wake();
        }
    }

    /// The next answer that is there.
    #[inline]
    pub fn answer(&mut self) -> Option<Answer> {
        if self.open == 0 && self.answers.is_empty() {
            return None;
        }
        let answer = self.answers.pop().ok()?;
        match answer {
            Answer::Decided { .. } => self.open -= 1,
            Answer::Originated { .. } => self.lent -= 1,
        }
        Some(answer)
    }

    /// True if no request is open, and no answer waits.
    pub fn is_idle(&self) -> bool {
        self.open == 0 && self.answers.is_empty()
    }

    /// Fills the slow path's stock up.
    fn lend(&mut self, pool: &mut Pool) {
        while self.lent < STOCK_MAX {
            let Some(chunk) = pool.take() else { return };
            if let Err(rtrb::PushError::Full(chunk)) = self.stock.push(chunk) {
                pool.give(chunk);
                return;
            }
            self.lent += 1;
        }
    }
}

/// What the slow path's thread is made of.
pub struct Parts {
    /// What decides.
    pub path: SlowPath<'static>,
    /// Its ends of the rings, one for each worker.
    pub servers: Vec<SlowPathServer>,
    /// Where views are posted.
    pub publisher: Arc<ViewPublisher>,
    /// What it sleeps on.
    pub waiter: Waiter,
}

/// Starts the thread, which ends when the publisher says stop.
pub fn start(parts: Parts) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(Role::SlowPath.to_string())
        .spawn(move || Thread::new(parts).run())
}

struct Thread {
    parts: Parts,
    view: Arc<View>,
    epoch: u64,
}

impl Thread {
    fn new(parts: Parts) -> Thread {
        let view = parts.publisher.view();
        Thread { parts, view, epoch: 0 }
    }

    fn run(mut self) {
        let publisher = Arc::clone(&self.parts.publisher);
        let thread = &publisher.threads()[publisher.thread_of(Role::SlowPath)];
        thread.set_cpu(None);
        while !publisher.stopped() {
            if publisher.epoch() != self.epoch {
                self.epoch = publisher.epoch();
                self.view = publisher.view();
                thread.acknowledge(self.epoch, self.view.plan.generation);
            }
            let now_ms = monotonic_ms();
            thread.beat(now_ms);
            self.parts.path.begin(now_ms as u32);
            let asked = self.round();
            // Workers rest already, so no request can follow.
            let rests = !asked && publisher.rests(Stage::All);
            thread.set_resting(if rests { Stage::All } else { Stage::Work });
            if rests {
                std::thread::sleep(REST_PAUSE);
            } else if !asked {
                self.parts.waiter.wait(SLEEP_MAX).expect("polling descriptors that are open");
            }
        }
    }

    /// Answers what was asked, at most a batch of each worker's, so that under
    /// any flood it goes round; false: nothing was.
    fn round(&mut self) -> bool {
        let Thread { parts, view, .. } = self;
        let mut asked = false;
        for server in &mut parts.servers {
            let mut answered = false;
            for _ in 0..BATCH_MAX {
                let Ok(request) = server.requests.pop() else { break };
                server.decide(request, &mut parts.path, view);
                answered = true;
            }
            if answered {
                server.worker.wake();
                asked = true;
            }
        }
        asked
    }
}

impl SlowPathServer {
    fn decide(&mut self, request: Request, path: &mut SlowPath<'static>, view: &View) {
        while !self.outbox.chunks.is_full() {
            let Ok(chunk) = self.stock.pop() else { break };
            self.outbox.chunks.push(chunk);
        }
        let Request { mut frame, device, recursion_limit } = request;
        let verdict =
            path.forward(view, &mut frame, recursion_limit, &mut self.outbox, &mut NoRecorder);
        self.answer(Answer::Decided { frame, device, verdict });
        while let Some(originated) = self.outbox.frames.pop_at(0) {
            self.answer(Answer::Originated { originated, device });
        }
    }

    fn answer(&mut self, answer: Answer) {
        let pushed = self.answers.push(answer);
        assert!(pushed.is_ok(), "the ring has room for every request and every chunk lent");
    }
}
