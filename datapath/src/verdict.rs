//! The outcome for a frame.

use crate::drop_reason::DropReason;
use crate::recursion_limit::RecursionLimit;

/// The index of a device in the forwarder's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DeviceIndex(pub u8);

/// What becomes of a frame. Every received frame gets exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Encapsulated: transmit it there.
    Send(DeviceIndex),
    /// Not for us: give it to the kernel.
    Pass,
    /// Answered: transmit it where it came from.
    Reply,
    /// Answered, but the way back is another: transmit it there.
    ReplyBy(DeviceIndex),
    /// For another load balancer: transmit it there.
    Redirect(DeviceIndex),
    /// Kept until something that it waits for comes.
    Hold,
    /// Not decided here: hand it to the slow path, whose verdict counts.
    Slow(RecursionLimit),
    /// Nowhere, for a reason.
    Drop(DropReason),
}

impl Verdict {
    /// The name in counters and journeys.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Send(_) => "sent",
            Verdict::Pass => "passed",
            Verdict::Reply | Verdict::ReplyBy(_) => "replied",
            Verdict::Redirect(_) => "redirected",
            Verdict::Hold => "held",
            Verdict::Slow(_) => "slow",
            Verdict::Drop(_) => "dropped",
        }
    }
}
