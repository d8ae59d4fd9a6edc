//! Frames on their way out by one device, and what each counts as.

use arrayvec::ArrayVec;
use datapath::DropReason;
use datapath::outbox::Accounting;
use nic::{Pool, Queue};
use wire::{BATCH_MAX, Batch, Frame};

use crate::dataplane::accounts::Accounts;

/// A batch for one device.
#[derive(Default)]
pub struct Outgoing {
    frames: Batch<'static>,
    counts: ArrayVec<Accounting, BATCH_MAX>,
}

impl Outgoing {
    /// Adds a frame; a full batch leaves first.
    #[inline]
    pub fn push(
        &mut self,
        frame: Frame<'static>,
        counts: Accounting,
        queue: &mut dyn Queue,
        pool: &mut Pool,
        accounts: Accounts,
    ) {
        if self.frames.is_full() {
            self.flush(queue, pool, accounts);
        }
        self.frames.push(frame);
        self.counts.push(counts);
    }

    /// Hands the frames to the device, and counts them: those that its ring
    /// has no room for are dropped.
    pub fn flush(&mut self, queue: &mut dyn Queue, pool: &mut Pool, accounts: Accounts) {
        let count = self.frames.len();
        if count == 0 {
            return;
        }
        queue.tx(pool, &mut self.frames);
        let taken = count - self.frames.len();
        for (index, counts) in self.counts.drain(..).enumerate() {
            match counts {
                counts if index < taken => accounts.counters.count_taken(counts),
                Accounting::Received(_) | Accounting::Released(_) => {
                    accounts.drop(DropReason::TxFull, &self.frames[index - taken]);
                }
                Accounting::Originated(_) => accounts.counters.originated_lost.add(1),
            }
        }
        self.frames.drain(..).for_each(|frame| pool.give_frame(frame));
    }
}
