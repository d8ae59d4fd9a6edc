//! Guideway's forwarder: threads, wiring, gRPC, metrics, replay. No forwarding
//! logic: that is the crate `datapath`.
//!
//! ```text
//!  server ─► control ─► engine ─► workers ─► devices
//!              ▲
//!  next_hops ──┘ (routes, neighbours)
//! ```
#![deny(unsafe_code)]

pub mod clients;
pub mod control;
pub mod engine;
pub mod explained;
pub mod health;
pub mod liveness;
pub mod logging;
pub mod metrics;
pub mod next_hops;
pub mod notify;
pub mod offline;
pub mod passing;
pub mod path_mtu;
pub mod replay;
pub mod run;
pub mod rundir;
pub mod secret;
pub mod server;
pub mod steering;
pub mod tables;
pub mod take_over;
pub mod worker;

/// What is said over the socket, generated from
/// `proto/guideway/forwarder/v1/forwarder.proto`.
#[allow(missing_docs, clippy::all, unused_qualifications)]
pub mod proto {
    tonic::include_proto!("guideway.forwarder.v1");
}
