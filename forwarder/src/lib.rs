//! Guideway's forwarder: threads, wiring, gRPC, metrics, replay. No forwarding
//! logic: that is the crate `datapath`.

pub mod next_hops;
