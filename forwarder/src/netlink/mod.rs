//! What the kernel knows of the network: next hops of backends, and the path
//! MTUs that ICMP errors report; what it has to know of our probes; and where what
//! XDP programs send arrives.

pub mod path_mtu;
pub mod probe_routes;
pub mod xdp_egress;

pub use nexthops as next_hops;
