//! The View of a simulated load balancer: a plan, with next hops that no kernel resolved.

use std::net::IpAddr;
use std::sync::Arc;

use datapath::verdict::DeviceIndex;
use datapath::{Egress, FlowHash, NextHop, Secret, View};
use plan::Plan;
use wire::MacAddress;

/// The load balancer's own Ethernet address.
pub const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 0x01]);
/// That of every next hop.
pub const NEXT_HOP: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xfe]);

/// The next hop on the first device, whose link carries packets of `mtu` bytes.
#[must_use]
pub fn next_hop(mtu: u16) -> NextHop {
    let device = DeviceIndex(0);
    NextHop { device, source: OWN, destination: NEXT_HOP, mtu, is_destination: true }
}

/// A view for `workers` workers, in which `resolve` names the next hops
/// towards each address.
#[must_use]
pub fn view(
    plan: Arc<Plan>,
    secret: &Secret,
    workers: usize,
    resolve: impl FnMut(IpAddr) -> Vec<NextHop>,
) -> View {
    let egress = Egress::new(&plan, &FlowHash::new(secret), resolve);
    View::new(plan, egress, workers)
}
