//! The agent of a backend: takes packets out of the load balancers' tunnels,
//! and sends those on whose connections live on another backend.
//!
//! A program on the backend's interface does the work (bpf/); this loads
//! it, fills its tables from the config, and shows what it counts; and it says to the
//! load balancers' controllers how many connections live here. It is
//! needed where the kernel has no tunnel devices of its own. Pinned, the
//! program outlives the process, and a restart loses no packet. Else it goes with
//! it: the backend drops tunnel packets, fails its probes through the tunnel, and
//! is no longer selected.
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
