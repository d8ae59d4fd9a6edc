//! The environment of a simulated worker: records the outcome of each frame, in the order in
//! which frames arrive.

use std::collections::VecDeque;

use datapath::outbox::{Accounting, Originated};
use datapath::verdict::DeviceIndex;
use datapath::{DropReason, Journey, Verdict, View};
use wire::{Batch, Frame};

use crate::decider::Decider;
use crate::platform::Platform;
use crate::slow_path::Answer;

/// How a worker decides on a batch. Both give the same bytes, verdicts,
/// counters and table contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// One frame after the other, by the specification; journeys are kept.
    Specification,
    /// The whole batch, as the forwarder's workers do.
    Batch,
}

/// What became of one frame.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The final verdict.
    pub verdict: Verdict,
    /// What it met with; empty, but for its end on the slow path, where
    /// batches are decided on by [`Path::Batch`].
    pub journey: Journey,
    /// The frame as its journey left it: what is emitted, if the verdict says
    /// so.
    pub frame: Vec<u8>,
    /// What was originated because of it, in order.
    pub originated: Vec<OriginatedFrame>,
}

/// A frame that leaves beside a received one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginatedFrame {
    /// What it counts as.
    pub counts: Accounting,
    /// Where it is sent; None: where the received frame came from.
    pub device: Option<DeviceIndex>,
    /// The frame.
    pub bytes: Vec<u8>,
}

impl Outcome {
    /// Where the frame itself is emitted: by that device, or (None) by the one
    /// that it came from; None: it is not emitted.
    #[must_use]
    pub fn device(&self) -> Option<Option<DeviceIndex>> {
        match self.verdict {
            Verdict::Send(to) | Verdict::Redirect(to) | Verdict::ReplyBy(to) => Some(Some(to)),
            Verdict::Reply => Some(None),
            Verdict::Pass | Verdict::Hold | Verdict::Drop(_) | Verdict::Slow(_) => None,
        }
    }
}

/// See the module.
pub(crate) struct Observer {
    /// How the worker decides.
    pub path: Path,
    /// Of the frames received since this was emptied.
    pub outcomes: Vec<Outcome>,
    /// Of these, by index, those that the slow path has not decided yet.
    pub undecided: VecDeque<usize>,
    /// The one that the slow path decided latest.
    decided: usize,
    journeys: Vec<Journey>,
}

impl Observer {
    pub fn new(path: Path) -> Observer {
        let (outcomes, undecided, journeys) = Default::default();
        Observer { path, outcomes, undecided, decided: 0, journeys }
    }
}

impl Platform for Observer {
    fn decide(
        &mut self,
        decider: &mut Decider,
        view: &View,
        batch: &mut Batch<'static>,
        _device: usize,
    ) {
        self.journeys.clear();
        match self.path {
            Path::Specification => decider.decide_one_by_one(view, batch, &mut self.journeys),
            Path::Batch => {
                decider.decide(view, batch);
                self.journeys.resize_with(batch.len(), Journey::default);
            }
        }
        let first = self.outcomes.len();
        let decided = batch.iter().zip(&decider.verdicts).zip(self.journeys.drain(..));
        for ((frame, verdict), journey) in decided {
            if let Verdict::Slow(_) = verdict {
                self.undecided.push_back(self.outcomes.len());
            }
            let frame = frame.bytes().to_vec();
            let originated = Vec::new();
            self.outcomes.push(Outcome { verdict: *verdict, journey, frame, originated });
        }
        for made in &decider.outbox.frames {
            self.outcomes[first + made.after].originated.push(OriginatedFrame::of(made));
        }
    }

    /// There is no kernel: what is its own is as good as given to it.
    fn pass(&mut self, _frame: &Frame<'_>, _device: usize) -> Result<(), DropReason> {
        Ok(())
    }

    fn answered(&mut self, answer: &Answer) {
        match answer {
            Answer::Decided { frame, verdict, .. } => {
                self.decided = self.undecided.pop_front().expect("an answer for each request");
                let outcome = &mut self.outcomes[self.decided];
                outcome.verdict = *verdict;
                outcome.frame = frame.bytes().to_vec();
            }
            Answer::Originated { originated, .. } => {
                self.outcomes[self.decided].originated.push(OriginatedFrame::of(originated));
            }
        }
    }
}

impl OriginatedFrame {
    fn of(made: &Originated<'_>) -> OriginatedFrame {
        let Originated { counts, device, frame, .. } = made;
        OriginatedFrame { counts: *counts, device: *device, bytes: frame.bytes().to_vec() }
    }
}
