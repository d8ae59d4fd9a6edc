//! Guideway's forwarder: threads, wiring, gRPC, metrics, replay. No forwarding
//! logic: that is the crate `datapath`.
//!
//! Floors; a module knows only those to its right, and what it stands on
//! (`make lint` holds that):
//!
//! ```text
//!  run ─► takeover ─┐
//!     └──► api ─────┴─► control ─► observe ─► dataplane ─► netlink
//!  offline ─────────────────────────►┘            all of them ─► process, proto
//! ```
#![deny(unsafe_code)]

pub mod api;
pub mod control;
pub mod dataplane;
pub mod netlink;
pub mod observe;
pub mod offline;
pub mod options;
pub mod process;
pub mod run;
pub mod takeover;

/// What is said over the socket, generated from
/// `proto/guideway/forwarder/v1/forwarder.proto`.
#[allow(missing_docs, clippy::all, unused_qualifications)]
pub mod proto {
    tonic::include_proto!("guideway.forwarder.v1");
}
