//! A packet on its way through the stages.

use wire::Headers;

use crate::recursion_limit::RecursionLimit;

/// A packet that has arrived, out of its tunnel if it came in one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrived {
    /// What was read of it.
    pub headers: Headers,
    /// How many further encapsulations it is permitted.
    pub recursion_limit: RecursionLimit,
    /// It came in a tunnel.
    pub tunnelled: bool,
}

/// A packet whose flow is known: what it is sent on by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packet<'h> {
    /// What was read of it.
    pub headers: &'h Headers,
    /// The flow hash: of its own five-tuple; of the one that an ICMP error
    /// quotes; of what all fragments of its datagram share, or of the first one.
    pub hash: u64,
    /// How many further encapsulations it is permitted.
    pub recursion_limit: RecursionLimit,
}

impl Arrived {
    /// The packet, whose flow has that hash.
    pub(crate) fn packet(&self, hash: u64) -> Packet<'_> {
        Packet { headers: &self.headers, hash, recursion_limit: self.recursion_limit }
    }
}
