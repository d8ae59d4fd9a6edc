//! The member that gets a packet.

use plan::BackendId;

/// A member that gets a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChosenMember {
    /// Its index in the group.
    pub member: u16,
    /// Its backend.
    pub backend: BackendId,
}
