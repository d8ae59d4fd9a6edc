//! The tunnel of a controller's probe, by its source port.

use crate::ids::BackendId;

/// The tunnels of probes. The ports are those that only probes have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probing {
    /// First and last of the reserved ports.
    pub ports: (u16, u16),
    /// In order of port.
    pub(crate) assigned: Box<[(u16, ProbeTunnel)]>,
}

/// The tunnel of one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeTunnel {
    /// The backend that it ends at.
    pub backend: BackendId,
    /// Index in [`crate::Plan::profiles`] of a profile with its encapsulation.
    pub profile: u16,
}

impl Probing {
    /// The tunnel of probes from that port; None: the plan assigns it to none.
    #[must_use]
    pub fn tunnel(&self, port: u16) -> Option<ProbeTunnel> {
        let at = self.assigned.binary_search_by_key(&port, |(port, _)| *port).ok()?;
        Some(self.assigned[at].1)
    }
}
