//! The same journey for a batch.

use arrayvec::ArrayVec;
use wire::{BATCH_MAX, Batch};

use crate::forward::Datapath;
use crate::outbox::Outbox;
use crate::recorder::NoRecorder;
use crate::verdict::Verdict;
use crate::view::View;

/// The verdicts of a batch's frames, in their order.
pub type Verdicts = ArrayVec<Verdict, BATCH_MAX>;

impl<'m> Datapath<'m> {
    /// Decides what becomes of each frame, and makes it ready for that.
    pub fn forward_batch(&self, view: &View, batch: &mut Batch<'_>, outbox: &mut Outbox<'m>, verdicts: &mut Verdicts) {
        verdicts.clear();
        for (index, frame) in batch.iter_mut().enumerate() {
            outbox.at = index;
            verdicts.push(self.forward(view, frame, outbox, &mut NoRecorder));
        }
    }
}
