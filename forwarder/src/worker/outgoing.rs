//! Frames on their way out by one device, and what each counts as.

use arrayvec::ArrayVec;
use datapath::outbox::Kind;
use datapath::{Counters, DropReason, Verdict};
use nic::{Pool, Queue};
use wire::{BATCH_MAX, Batch, Frame};

/// What a frame counts as once the device has taken it.
#[derive(Debug, Clone, Copy)]
pub enum Fate {
    /// A received frame, by its verdict.
    Received(Verdict),
    /// One that we made: not part of the law.
    Originated(Kind),
}

/// A batch for one device.
#[derive(Default)]
pub struct Outgoing {
    frames: Batch<'static>,
    fates: ArrayVec<Fate, BATCH_MAX>,
}

impl Outgoing {
    /// Adds a frame; a full batch leaves first.
    #[inline]
    pub fn push(
        &mut self,
        frame: Frame<'static>,
        fate: Fate,
        queue: &mut dyn Queue,
        pool: &mut Pool,
        counters: &Counters,
    ) {
        if self.frames.is_full() {
            self.flush(queue, pool, counters);
        }
        self.frames.push(frame);
        self.fates.push(fate);
    }

    /// Hands the frames to the device, and counts them: those that its ring
    /// has no room for are dropped.
    pub fn flush(&mut self, queue: &mut dyn Queue, pool: &mut Pool, counters: &Counters) {
        let count = self.frames.len();
        if count == 0 {
            return;
        }
        queue.tx(pool, &mut self.frames);
        let taken = count - self.frames.len();
        for (index, fate) in self.fates.drain(..).enumerate() {
            match fate {
                Fate::Received(verdict) if index < taken => counters.count(verdict),
                Fate::Received(_) => counters.count(Verdict::Drop(DropReason::TxFull)),
                Fate::Originated(kind) if index < taken => {
                    counters.originated[kind as usize].add(1)
                }
                Fate::Originated(_) => {}
            }
        }
        self.frames.drain(..).for_each(|frame| pool.give_frame(frame));
    }
}
