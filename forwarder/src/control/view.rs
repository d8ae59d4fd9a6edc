//! Makes every View of a running forwarder: a plan, with the kernel's next hops.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use datapath::{FlowHash, View};
use plan::Plan;

use crate::control::egress;
use crate::control::kernel_cache::KernelCache;
use crate::netlink::next_hops::Snapshot;

/// What a View depends on beside its plan.
pub struct Network<'a> {
    /// The flow hash.
    pub hash: &'a FlowHash,
    /// Next hops, as the kernel has them.
    pub snapshot: &'a Snapshot,
}

/// A new plan's View for `workers` workers, its counters at zero. It knows what
/// time it is for people: marks of traced packets carry that.
pub fn of_plan(
    plan: &Arc<Plan>,
    network: &Network<'_>,
    workers: usize,
    unix_offset_ms: &Arc<AtomicI64>,
) -> View {
    let view = View::new(Arc::clone(plan), network.egress(plan), workers);
    let unix_offset_ms = Arc::clone(unix_offset_ms);
    let return_paths = egress::return_paths(plan, network.snapshot);
    View { return_paths, unix_offset_ms, ..view }
}

/// The same plan's, by another network: counters go on.
pub fn renewed(view: &View, network: &Network<'_>) -> View {
    let return_paths = egress::return_paths(&view.plan, network.snapshot);
    View { return_paths, ..view.with_egress(network.egress(&view.plan)) }
}

/// Ready to be published; where there is a kernel flow cache, with its targets: the
/// kernel sends by them from here on.
pub fn with_targets(view: View, cache: Option<&mut KernelCache>) -> Arc<View> {
    match cache {
        Some(cache) => cache.follow(view),
        None => Arc::new(view),
    }
}

impl Network<'_> {
    fn egress(&self, plan: &Plan) -> datapath::Egress {
        egress::egress(plan, self.hash, self.snapshot)
    }
}
