//! What the kernel knows of the network: next hops of backends, and the path
//! MTUs that ICMP errors report; and what it has to know of our probes.

pub mod path_mtu;
pub mod probe_routes;

pub use nexthops as next_hops;
