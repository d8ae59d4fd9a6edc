//! What becomes of a frame.

use crate::drop_reason::DropReason;

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
            Verdict::Drop(_) => "dropped",
        }
    }
}
