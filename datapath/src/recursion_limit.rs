//! How many further encapsulations a packet is permitted: the recursion control of RFC 1701,
//! which prevents loops between load balancers.

/// How many further encapsulations a packet is permitted. What we send on is
/// permitted less:
///
/// ```text
///  7 client ─► 3 fragment to its owner ─► 2 spilled to another cluster ─► 1 fragment to its owner there ─► 0 backend
///  7 client ──────────────────────────────────────────────────────────► 1 copy of an ICMP error to a peer ─► 0 backend
/// ```
///
/// Any step may be left out; none is taken twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecursionLimit(pub u8);

impl RecursionLimit {
    /// A client's own packet.
    pub const FRESH: RecursionLimit = RecursionLimit(7);
    /// What a fragment is sent with to the machine in charge of it.
    pub const REDIRECTED: RecursionLimit = RecursionLimit(3);
    /// What a spilled packet is sent with.
    pub const SPILLED: RecursionLimit = RecursionLimit(2);
    /// What a spilled fragment is sent with to the machine in charge of it.
    pub const REDIRECTED_THERE: RecursionLimit = RecursionLimit(1);
    /// What a peer's copy of an ICMP error is sent with.
    pub const COPY: RecursionLimit = RecursionLimit(1);
    /// What a backend's packet is sent with.
    pub const TO_BACKEND: RecursionLimit = RecursionLimit(0);

    /// What the fragment is sent with to the machine in charge of it; None:
    /// it was redirected already.
    #[must_use]
    pub fn redirect(self) -> Option<RecursionLimit> {
        if self > RecursionLimit::REDIRECTED {
            Some(RecursionLimit::REDIRECTED)
        } else {
            (self == RecursionLimit::SPILLED).then_some(RecursionLimit::REDIRECTED_THERE)
        }
    }

    /// What the packet is sent with to another cluster; None: it was spilled
    /// already.
    #[must_use]
    pub fn spill(self) -> Option<RecursionLimit> {
        (self > RecursionLimit::SPILLED).then_some(RecursionLimit::SPILLED)
    }

    /// What copies of the ICMP error are sent with; None: it is one.
    #[must_use]
    pub fn copy(self) -> Option<RecursionLimit> {
        (self > RecursionLimit::COPY).then_some(RecursionLimit::COPY)
    }
}
