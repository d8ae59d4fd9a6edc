//! What the kernel knows of the network: next hops of backends; what it has to know of
//! our probes; where what XDP programs send arrives; and the ICMP errors that it gets
//! about our tunnels.

pub mod probe_routes;
pub mod tunnel_errors;
pub mod xdp_egress;

pub use nexthops as next_hops;
