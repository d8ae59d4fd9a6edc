//! The agent on a backend: it decapsulates packets from the load balancers' tunnels, and
//! forwards those whose connections live on another backend.
//!
//! An eBPF program on the backend's interface does the work (bpf/). This crate loads it,
//! fills its tables from the config, and shows its counters; and it reports to the load
//! balancers' controllers how many connections live here. The agent is needed if the kernel
//! has no tunnel devices of its own. If pinned, the program outlives the process, and a
//! restart loses no packet. Otherwise it ends with the process: the backend then drops
//! tunnelled packets, fails its probes through tunnels, and is no longer selected.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod arguments;
pub mod attachment;
pub mod config;
mod datagram;
pub mod doctor;
mod flows;
mod messages;
mod metrics;
pub mod multipath;
mod neighbours;
pub mod outcome;
mod own;
pub mod program;
mod records;
mod redirects;
mod responses;
mod run;
pub mod setup;
mod sockets;
pub mod status;
mod timestamps;

pub use arguments::{Arguments, Command, Format};
pub use metrics::ALL as METRICS;
pub use run::run;
