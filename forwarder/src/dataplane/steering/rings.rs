//! The rings between the steering thread and a worker. To the worker its end looks like any
//! other queue.
//!
//! ```text
//!  steering: Link ── frames, by device ──► Lane: worker
//!                 ◄─ frames to send ─────
//!                 ── chunks lent ────────►       (for what the worker originates)
//!                 ◄─ chunks too many ────        (of frames that it dropped)
//! ```

use std::os::fd::RawFd;

use datapath::outbox::ORIGINATED_MAX;
use nic::wait::Waker;
use nic::{Chunk, Meter, Pool, Queue};
use rtrb::{Consumer, Producer, RingBuffer};
use wire::{Batch, Frame};

/// Free chunks that a worker has at hand: for what its own batch originates,
/// and the slow path for it.
const CHUNKS_KEPT: usize = ORIGINATED_MAX;

/// Chunks that a worker keeps, those lent and those on their way back.
pub const CHUNKS_OF_WORKER: usize = 6 * CHUNKS_KEPT;

/// The steering thread's end, for one worker.
pub struct Link {
    /// Frames for the worker, by the device they came from.
    pub to: Vec<Producer<Frame<'static>>>,
    /// Frames to be sent, by the device to send by.
    pub from: Vec<Consumer<Frame<'static>>>,
    lend: Producer<Chunk>,
    surplus: Consumer<Chunk>,
}

/// The worker's end, for one device.
struct Lane {
    arriving: Consumer<Frame<'static>>,
    leaving: Producer<Frame<'static>>,
    /// On the first device's lane only.
    chunks: Option<Chunks>,
    steering: Waker,
}

struct Chunks {
    lent: Consumer<Chunk>,
    surplus: Producer<Chunk>,
}

/// The two ends for one worker; its queues are in the devices' order.
/// `frames` fit each ring.
#[must_use]
pub fn pair(devices: usize, frames: usize, steering: &Waker) -> (Link, Vec<Box<dyn Queue>>) {
    let (lend, lent) = RingBuffer::new(CHUNKS_KEPT);
    let (give, surplus) = RingBuffer::new(2 * CHUNKS_KEPT);
    let mut chunks = Some(Chunks { lent, surplus: give });
    let mut link = Link { to: Vec::new(), from: Vec::new(), lend, surplus };
    let mut lanes: Vec<Box<dyn Queue>> = Vec::with_capacity(devices);
    for _ in 0..devices {
        let (to, arriving) = RingBuffer::new(frames);
        let (leaving, from) = RingBuffer::new(frames);
        link.to.push(to);
        link.from.push(from);
        lanes.push(Box::new(Lane {
            arriving,
            leaving,
            chunks: chunks.take(),
            steering: steering.clone(),
        }));
    }
    (link, lanes)
}

impl Link {
    /// Takes back what the worker has too much of, and lends as much as it
    /// may use.
    pub fn exchange_chunks(&mut self, pool: &mut Pool) {
        while let Ok(chunk) = self.surplus.pop() {
            pool.give(chunk);
        }
        while !self.lend.is_full() {
            let Some(chunk) = pool.take() else { return };
            let pushed = self.lend.push(chunk);
            assert!(pushed.is_ok(), "there was room, and this is the only producer");
        }
    }
}

impl Queue for Lane {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>) {
        if let Some(chunks) = &mut self.chunks
            && chunks.balance(pool)
        {
            self.steering.wake();
        }
        while !batch.is_full() {
            let Ok(frame) = self.arriving.pop() else { return };
            batch.push(frame);
        }
    }

    /// The steering thread sends what it has taken, or keeps it until the
    /// device has room: so what is taken here counts as sent, and what a slow
    /// device has no room for stays with us at last (`tx_full`).
    fn tx(&mut self, _pool: &mut Pool, batch: &mut Batch<'static>) {
        let taken = batch.len().min(self.leaving.slots());
        for frame in batch.drain(..taken) {
            let pushed = self.leaving.push(frame);
            assert!(pushed.is_ok(), "there was room, and this is the only producer");
        }
        if taken > 0 {
            self.steering.wake();
        }
    }

    fn fd(&self) -> Option<RawFd> {
        None
    }

    /// The devices' queues are the steering thread's, and count there.
    fn meter(&self) -> Meter {
        Meter::default()
    }
}

impl Chunks {
    /// Fills the worker's pool up, or gives back what is too much; true: gave
    /// some back.
    #[inline]
    fn balance(&mut self, pool: &mut Pool) -> bool {
        while pool.free() < CHUNKS_KEPT
            && let Ok(chunk) = self.lent.pop()
        {
            pool.give(chunk);
        }
        let too_many = pool.free() > 2 * CHUNKS_KEPT;
        while pool.free() > CHUNKS_KEPT && too_many && !self.surplus.is_full() {
            let Some(chunk) = pool.take() else { break };
            let pushed = self.surplus.push(chunk);
            assert!(pushed.is_ok(), "there was room, and this is the only producer");
        }
        too_many
    }
}
