//! What the kernel knows of the network: next hops of backends, and the path
//! MTUs that ICMP errors report.

pub mod next_hops;
pub mod path_mtu;
