//! The immutable Plan, by which a forwarder forwards.
//!
//! ```text
//!  proto::Plan ── Planner::plan ──► Plan { services, vips, groups{selectors}, backends }
//!                    │  │
//!                    │  └ tables shared by content with earlier plans
//!                    └ ids kept from earlier plans
//! ```
//!
//! Guarantees: a [`Plan`] that exists is valid; decoding is the only place
//! that refuses, with the field's path. No unsafe, no I/O, no clock, no key.
#![forbid(unsafe_code)]

pub mod compare;
pub mod decode;
pub mod group;
pub mod ids;
pub mod limits;
pub mod matching;
pub mod peers;
mod plan;
mod probing;
pub mod quic_lb;
pub mod select;
pub mod service;
mod text;

/// The Plan as a message, generated from `proto/guideway/plan/v1/plan.proto`.
#[allow(
    missing_docs,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    reason = "generated"
)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/guideway.plan.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/guideway.plan.v1.serde.rs"));
}

/// The config's word for a choice, by which `wire` and `nic` name it, too:
/// `af_packet` for `DRIVER_AF_PACKET`, whose enum's values begin with `DRIVER_`.
#[must_use]
pub fn word(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_ascii_lowercase()
}

pub use decode::{PlanError, Planner, features};
pub use group::{Admission, Group, Member};
pub use ids::{BackendId, Ids, ServiceId};
pub use matching::{Found, LookupKey, LookupV4, Matched, Ports, Vips};
pub use peers::{Ingress, Owners, Peer, Sender};
pub use plan::{Match, Plan, TunnelOptions};
pub use probing::{ProbeTunnel, Probing};
pub use quic_lb::QuicLb;
pub use service::{
    Affinity, Backend, Dscp, SecondChance, Service, SpillTo, Timeouts, Tracking, TunnelProfile,
    encap_name,
};
pub use wire::Encap;
