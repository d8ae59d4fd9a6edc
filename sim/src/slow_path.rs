//! The rings between workers and the slow path, which handles what needs all workers' tables.
//!
//! ```text
//!  worker ── ring of requests ──► slow path ── ring of answers ──► the same worker emits
//! ```
//!
//! A frame stays in its worker's packet memory: the slow path only borrows it. The slow path
//! also has a stock of the worker's chunks for packets that it originates; the worker replaces
//! them as they return in answers. A full ring drops and counts; no thread blocks.

use datapath::outbox::{ORIGINATED_MAX, Originated};
use datapath::slow::SlowPath;
use datapath::{Outbox, Recorder, RecursionLimit, Verdict, View};
use nic::{Chunk, Pool};
use rtrb::{Consumer, Producer, RingBuffer};
use wire::Frame;

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
    asked: bool,
}

/// The slow path's end for one worker.
pub struct SlowPathServer {
    requests: Consumer<Request>,
    stock: Consumer<Chunk>,
    answers: Producer<Answer>,
    /// Its chunks are this worker's.
    outbox: Outbox<'static>,
}

/// The rings between a worker and the slow path.
#[must_use]
pub fn pair() -> (SlowPathClient, SlowPathServer) {
    let (ask, requests) = RingBuffer::new(REQUESTS_MAX);
    let (lend, stock) = RingBuffer::new(STOCK_MAX);
    // Room for every frame and every chunk that can be on its way.
    let (answer, answers) = RingBuffer::new(REQUESTS_MAX + STOCK_MAX);
    (
        SlowPathClient { requests: ask, stock: lend, answers, open: 0, lent: 0, asked: false },
        SlowPathServer { requests, stock, answers: answer, outbox: Outbox::default() },
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

    /// True if anything was asked since the last call: the slow path is to be
    /// woken.
    #[inline]
    pub fn take_asked(&mut self) -> bool {
        std::mem::take(&mut self.asked)
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

    /// Chunks that the slow path has.
    pub(crate) fn lent(&self) -> usize {
        self.lent
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

impl SlowPathServer {
    /// Answers the next request, if there is one; false: there is none.
    pub fn serve(
        &mut self,
        path: &mut SlowPath<'static>,
        view: &View,
        recorder: &mut impl Recorder,
    ) -> bool {
        let Ok(request) = self.requests.pop() else { return false };
        while !self.outbox.chunks.is_full() {
            let Ok(chunk) = self.stock.pop() else { break };
            self.outbox.chunks.push(chunk);
        }
        let Request { mut frame, device, recursion_limit } = request;
        let verdict = path.forward(view, &mut frame, recursion_limit, &mut self.outbox, recorder);
        self.answer(Answer::Decided { frame, device, verdict });
        while let Some(originated) = self.outbox.frames.pop_at(0) {
            self.answer(Answer::Originated { originated, device });
        }
        true
    }

    /// Gives all chunks lent back, at the end.
    pub(crate) fn give_back(mut self, pool: &mut Pool) {
        self.outbox.chunks.drain(..).for_each(|chunk| pool.give(chunk));
        while let Ok(chunk) = self.stock.pop() {
            pool.give(chunk);
        }
    }

    fn answer(&mut self, answer: Answer) {
        let pushed = self.answers.push(answer);
        assert!(pushed.is_ok(), "the ring has room for every request and every chunk lent");
    }
}
