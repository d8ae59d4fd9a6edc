//! Tunnel options that a packet carries for backends' agents: where else its connection may
//! live, and the key chosen for the connection that it opens.

use plan::group::Selected;
use plan::{BackendId, Group, Plan};
use wire::tunnel::OPTIONS_BYTES_MAX;
use wire::tunnel::multipath_option::MultipathOption;
use wire::tunnel::route_option::Emitted;

use crate::decide::{Decision, Why};
use crate::multipath::Selection;

/// What a packet says to agents beside itself. Small, as each packet of a batch has room
/// for one; bytes are made of it when the packet is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AgentOptions {
    /// Of the selector, which the route option is of.
    slot: u32,
    route: Route,
    /// It is a SYN of a service with Multipath TCP, which says the next two.
    pub opens: bool,
    /// The bucket of its five-tuple.
    bucket: u16,
    /// Chosen for its connection; 0: none, it joins one, or opens a plain one.
    key: u64,
}

const _: () = assert!(size_of::<AgentOptions>() == 16);

/// Which backends a packet names that may have its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// None.
    None,
    /// Those that its bucket is moving from or to.
    Move,
    /// Those that earlier tables have in its slot.
    Earlier,
}

impl AgentOptions {
    /// It says nothing.
    pub(crate) const NONE: AgentOptions =
        AgentOptions { slot: 0, route: Route::None, opens: false, bucket: 0, key: 0 };

    /// What a packet says about which that was decided.
    #[inline(always)]
    pub(crate) fn of(decision: &Decision) -> AgentOptions {
        let (slot, route) = (decision.slot.unwrap_or(0), decision.route);
        AgentOptions { slot, route, ..AgentOptions::NONE }
    }

    /// The same of a SYN of a service with Multipath TCP, for whose connection `key` was
    /// chosen. What only the five-tuple is known of goes to the backend of its bucket,
    /// which that of `selector` is, and so that one is told the key, too.
    #[inline(always)]
    pub(crate) fn of_opening(
        decision: &Decision,
        key: u64,
        group: &Group,
        selector: impl FnOnce() -> u64,
    ) -> AgentOptions {
        let options = AgentOptions::of(decision);
        let by_flow = match decision.why {
            Why::Stateless => decision.slot,
            _ => group.select(selector()).map(|selected| selected.slot),
        };
        match by_flow {
            Some(bucket) => AgentOptions { opens: true, bucket: bucket as u16, key, ..options },
            None => options,
        }
    }

    /// Either: by what the connection of a SYN was selected, if it opens one of several paths.
    pub(crate) fn of_packet(
        decision: &Decision,
        opening: Option<Selection>,
        group: &Group,
        selector: u64,
    ) -> AgentOptions {
        match opening {
            None => AgentOptions::of(decision),
            Some(by) => AgentOptions::of_opening(decision, by.key(), group, || selector),
        }
    }

    /// What a packet of that slot says that opens nothing.
    pub(crate) fn of_slot(slot: Option<u32>) -> AgentOptions {
        let route = Route::Move;
        slot.map_or(AgentOptions::NONE, |slot| AgentOptions { slot, route, ..AgentOptions::NONE })
    }

    /// The options of a packet to that backend, made in `room` where the group does not
    /// have them; None: it carries none.
    pub(crate) fn bytes<'b>(
        &self,
        plan: &Plan,
        group: &'b Group,
        backend: BackendId,
        room: &'b mut [u8; OPTIONS_BYTES_MAX],
    ) -> Option<&'b [u8]> {
        let route = match self.route {
            Route::None => None,
            Route::Move => group.route_option(self.slot, backend),
            Route::Earlier => group.earlier_option(self.slot),
        };
        match self.opens {
            true => Some(self.opening_bytes(plan, group, route, room)),
            false => route.map(Emitted::as_slice),
        }
    }

    fn opening_bytes<'b>(
        &self,
        plan: &Plan,
        group: &Group,
        route: Option<&Emitted>,
        room: &'b mut [u8; OPTIONS_BYTES_MAX],
    ) -> &'b [u8] {
        let mut length = route.map_or(0, |route| {
            room[..route.len()].copy_from_slice(route);
            route.len()
        });
        let by_flow = group.select_bucket(self.bucket.into());
        if let Some(backend) = by_flow.and_then(|Selected { backend, .. }| plan.backend(backend))
            && let Some(to) = room[length..].first_chunk_mut()
        {
            let key = Some(self.key).filter(|key| *key != 0);
            let AgentOptions { bucket, .. } = *self;
            length += MultipathOption { key, bucket, address: backend.address }.write(to);
        }
        &room[..length]
    }
}
