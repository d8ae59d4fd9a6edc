//! What the kernel knows of the network: next hops of backends, and the path
//! MTUs that ICMP errors report; what it has to know of our probes; and what is at the
//! other end of a veth interface.

pub mod path_mtu;
pub mod probe_routes;
pub mod veth_peer;

pub use nexthops as next_hops;
