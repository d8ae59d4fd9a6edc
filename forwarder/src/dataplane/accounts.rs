//! Where a thread records the outcome of frames.

use datapath::{Counters, DropReason, Verdict};
use wire::Frame;

use crate::dataplane::samples::DropSamples;

/// One worker's counters and samples.
#[derive(Clone, Copy)]
pub struct Accounts {
    /// Verdicts.
    pub counters: &'static Counters,
    /// The latest dropped frames.
    pub samples: &'static DropSamples,
}

impl Accounts {
    /// Counts and keeps a frame that is being dropped.
    #[inline]
    pub fn drop(&self, reason: DropReason, frame: &Frame<'_>) {
        self.counters.count(Verdict::Drop(reason));
        self.samples.note(reason, frame.bytes());
    }
}
