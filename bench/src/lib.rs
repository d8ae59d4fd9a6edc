//! What measuring programs share: plans, flows and packets made of
//! parameters, and a load balancer that forwards them in memory.
//!
//! ```text
//!  Setup ─► Plan ─► View ─► LoadBalancer ◄─ Frames ◄─ Traffic
//! ```
//!
//! `guideway-bench` (this crate's program) measures what a packet costs;
//! `guideway-figures` redoes the paper's evaluation.
#![forbid(unsafe_code)]

pub mod clock;
pub mod kernel_cache;
pub mod keys;
pub mod machine;
pub mod measure;
pub mod random;
pub mod report;
pub mod setup;
pub mod tables;
pub mod traffic;
pub mod veth;
pub mod worker;
