//! What a worker needs from the program around it, besides queues and memory: the forwarder's
//! thread captures packets, keeps samples of dropped ones and passes frames to the kernel; a
//! simulation records the outcome of each.

use datapath::{DropReason, Verdict, View};
use wire::{Batch, Frame};

use crate::decider::Decider;
use crate::slow_path::Answer;

/// The surroundings of one worker. All methods but [`Platform::pass`] may be
/// left as they are: nothing is observed then.
pub trait Platform {
    /// Has `decider` decide on a batch from `device`; what observes packets
    /// does so before and after.
    #[inline]
    fn decide(
        &mut self,
        decider: &mut Decider,
        view: &View,
        batch: &mut Batch<'static>,
        _device: usize,
    ) {
        decider.decide(view, batch);
    }

    /// Gives a frame from `device` to the kernel; Err: it could not take it.
    fn pass(&mut self, frame: &Frame<'_>, device: usize) -> Result<(), DropReason>;

    /// The slow path has answered; what it says is done next.
    #[inline]
    fn answered(&mut self, _answer: &Answer) {}

    /// A frame from `device` that is as it was received has this final
    /// verdict: it was passed, or could not be, or the slow path has no room.
    #[inline]
    fn ended(&mut self, _frame: &Frame<'_>, _verdict: Verdict, _device: usize) {}

    /// A frame is being dropped, and is counted.
    #[inline]
    fn dropped(&mut self, _reason: DropReason, _frame: &Frame<'_>) {}
}
