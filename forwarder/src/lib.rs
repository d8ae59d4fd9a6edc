//! Guideway's forwarder: threads, wiring, gRPC, metrics, replay. No forwarding
//! logic: that is the crate `datapath`.

pub mod files;
pub mod metrics;
pub mod next_hops;
pub mod notify;
pub mod rundir;
