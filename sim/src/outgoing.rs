//! Frames to be sent by one device, and how each is counted.

use arrayvec::ArrayVec;
use datapath::outbox::Accounting;
use datapath::{Counters, DropReason, Verdict};
use nic::{Pool, Queue};
use wire::{BATCH_MAX, Batch, Frame};

/// A batch for one device.
#[derive(Default)]
pub struct Outgoing {
    frames: Batch<'static>,
    counts: ArrayVec<Accounting, BATCH_MAX>,
}

impl Outgoing {
    /// A full batch is to be flushed before the next frame.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.frames.is_full()
    }

    /// Adds a frame.
    #[inline]
    pub fn push(&mut self, frame: Frame<'static>, counts: Accounting) {
        self.frames.push(frame);
        self.counts.push(counts);
    }

    /// Hands the frames to the device, and counts them: those that its ring
    /// has no room for are dropped.
    pub fn flush(
        &mut self,
        queue: &mut dyn Queue,
        pool: &mut Pool,
        counters: &Counters,
        mut dropped: impl FnMut(DropReason, &Frame<'_>),
    ) {
        let count = self.frames.len();
        if count == 0 {
            return;
        }
        queue.tx(pool, &mut self.frames);
        let taken = count - self.frames.len();
        for (index, counts) in self.counts.drain(..).enumerate() {
            match counts {
                counts if index < taken => counters.count_taken(counts),
                Accounting::Received(_) | Accounting::Released(_) => {
                    counters.count(Verdict::Drop(DropReason::TxFull));
                    dropped(DropReason::TxFull, &self.frames[index - taken]);
                }
                Accounting::Originated(_) => counters.originated_lost.add(1),
            }
        }
        self.frames.drain(..).for_each(|frame| pool.give_frame(frame));
    }
}
