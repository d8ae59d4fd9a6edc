//! Decides on a worker's frames, and the state that it writes.

use datapath::batch::Verdicts;
use datapath::{Datapath, Journey, Outbox, View};
use nic::Pool;
use wire::Batch;

/// A worker's flow hash and connection table, with the verdicts on the batch
/// in hand and the frames that it originated.
pub struct Decider {
    /// Flow hash and connection table.
    pub datapath: Datapath<'static>,
    /// On the latest batch, one for each frame.
    pub verdicts: Verdicts,
    /// Memory for what is originated, and what was.
    pub outbox: Outbox<'static>,
}

impl Decider {
    /// Decides by that flow hash and table.
    #[must_use]
    pub fn new(datapath: Datapath<'static>) -> Decider {
        Decider { datapath, verdicts: Verdicts::new(), outbox: Outbox::default() }
    }

    /// Decides on a batch, by the fast path.
    #[inline]
    pub fn decide(&mut self, view: &View, batch: &mut Batch<'static>) {
        self.datapath.forward_batch(view, batch, &mut self.outbox, &mut self.verdicts);
    }

    /// Decides on a batch by the specification, one frame after the other;
    /// appends what each met with.
    pub fn decide_one_by_one(
        &mut self,
        view: &View,
        batch: &mut Batch<'static>,
        journeys: &mut Vec<Journey>,
    ) {
        self.verdicts.clear();
        for (index, frame) in batch.iter_mut().enumerate() {
            self.outbox.at = index;
            let mut journey = Journey::default();
            let verdict = self.datapath.forward(view, frame, &mut self.outbox, &mut journey);
            self.verdicts.push(verdict);
            journeys.push(journey);
        }
    }

    /// Memory for what may be originated.
    #[inline]
    pub(crate) fn lend_chunks(&mut self, pool: &mut Pool) {
        while !self.outbox.chunks.is_full() {
            let Some(chunk) = pool.take() else { return };
            self.outbox.chunks.push(chunk);
        }
    }
}
