//! Guideway's forwarder: threads, wiring, gRPC, metrics, replay. It has no forwarding logic:
//! that is the crate `datapath`.
//!
//! The modules are layered. A module uses only those to its right and below it (`make lint`
//! checks that):
//!
//! ```text
//!  run ─► takeover ─┐
//!     └──► api ─────┴─► control ─► observe ─► dataplane ─► netlink
//!  arguments ─► offline ────────────►┘            all of them ─► process, proto
//! ```

pub mod api;
pub mod arguments;
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
#[allow(
    missing_docs,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    reason = "generated"
)]
pub mod proto {
    tonic::include_proto!("guideway.forwarder.v1");
}
