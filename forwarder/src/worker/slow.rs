//! The slow-path thread: one a machine, for what needs all workers' tables.
//!
//! ```text
//!  worker ── ring of questions ──► slow path ── ring of answers ──► the same worker emits
//! ```
//!
//! A frame stays in its worker's packet memory: the slow path only borrows
//! it. It also has a stock of the worker's chunks for what it originates,
//! which the worker fills up as they come back in answers. A full ring drops
//! and counts; nobody blocks.

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

use super::{Board, REST_PAUSE, Role, SLEEP_MAX, Stage, monotonic_ms};

/// Questions a worker may have open. More is a flood, and is dropped.
const QUESTIONS_MAX: usize = 512;

/// Chunks lent to the slow path: what it may originate from one worker's
/// frames before the worker comes round.
const STOCK_MAX: usize = ORIGINATED_MAX;

/// A frame that a worker cannot decide on.
pub struct Question {
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
pub struct Asker {
    questions: Producer<Question>,
    stock: Producer<Chunk>,
    answers: Consumer<Answer>,
    /// Questions without an answer yet.
    open: usize,
    /// Chunks that the slow path has.
    lent: usize,
    slow: Waker,
    asked: bool,
}

/// The slow path's end for one worker.
pub struct Answerer {
    questions: Consumer<Question>,
    stock: Consumer<Chunk>,
    answers: Producer<Answer>,
    /// Its chunks are this worker's.
    outbox: Outbox<'static>,
    worker: Waker,
}

/// The rings between a worker and the slow path.
#[must_use]
pub fn pair(slow: Waker, worker: Waker) -> (Asker, Answerer) {
    let (ask, questions) = RingBuffer::new(QUESTIONS_MAX);
    let (lend, stock) = RingBuffer::new(STOCK_MAX);
    // Room for every frame and every chunk that can be on its way.
    let (answer, answers) = RingBuffer::new(QUESTIONS_MAX + STOCK_MAX);
    let asker =
        Asker { questions: ask, stock: lend, answers, open: 0, lent: 0, slow, asked: false };
    (asker, Answerer { questions, stock, answers: answer, outbox: Outbox::default(), worker })
}

impl Asker {
    /// Hands a question over; it comes back if too many are open.
    pub fn ask(&mut self, question: Question, pool: &mut Pool) -> Result<(), Question> {
        if self.open == QUESTIONS_MAX {
            return Err(question);
        }
        self.lend(pool);
        self.questions.push(question).map_err(|rtrb::PushError::Full(question)| question)?;
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

    /// True if no question is open, and no answer waits.
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
    pub answerers: Vec<Answerer>,
    /// Where views are posted.
    pub board: Arc<Board>,
    /// What it sleeps on.
    pub waiter: Waiter,
}

/// Starts the thread, which ends when the board says stop.
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
        let view = parts.board.view();
        Thread { parts, view, epoch: 0 }
    }

    fn run(mut self) {
        let board = Arc::clone(&self.parts.board);
        let desk = &board.desks()[board.desk_of(Role::SlowPath)];
        desk.set_cpu(None);
        while !board.stopped() {
            if board.epoch() != self.epoch {
                self.epoch = board.epoch();
                self.view = board.view();
                desk.acknowledge(self.epoch, self.view.plan.generation);
            }
            let now_ms = monotonic_ms();
            desk.beat(now_ms);
            self.parts.path.begin(now_ms as u32);
            let asked = self.round();
            // Workers rest already, so nobody will ask.
            let rests = !asked && board.rests(Stage::All);
            desk.set_resting(if rests { Stage::All } else { Stage::Work });
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
        for answerer in &mut parts.answerers {
            let mut answered = false;
            for _ in 0..BATCH_MAX {
                let Ok(question) = answerer.questions.pop() else { break };
                answerer.decide(question, &mut parts.path, view);
                answered = true;
            }
            if answered {
                answerer.worker.wake();
                asked = true;
            }
        }
        asked
    }
}

impl Answerer {
    fn decide(&mut self, question: Question, path: &mut SlowPath<'static>, view: &View) {
        while !self.outbox.chunks.is_full() {
            let Ok(chunk) = self.stock.pop() else { break };
            self.outbox.chunks.push(chunk);
        }
        let Question { mut frame, device, recursion_limit } = question;
        let verdict =
            path.forward(view, &mut frame, recursion_limit, &mut self.outbox, &mut NoRecorder);
        self.answer(Answer::Decided { frame, device, verdict });
        while let Some(originated) = self.outbox.frames.pop_at(0) {
            self.answer(Answer::Originated { originated, device });
        }
    }

    fn answer(&mut self, answer: Answer) {
        let pushed = self.answers.push(answer);
        assert!(pushed.is_ok(), "the ring has room for every question and every chunk lent");
    }
}
