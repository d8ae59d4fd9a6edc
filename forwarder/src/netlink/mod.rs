//! The kernel's view of the network: next hops of backends; the rules that our probes need;
//! whether packets sent by XDP programs arrive; and ICMP errors about our tunnels.

pub mod probe_routes;
pub mod tunnel_errors;
pub mod xdp_egress;

pub use nexthops as next_hops;
