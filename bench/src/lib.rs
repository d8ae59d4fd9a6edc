//! Code shared by programs that measure: plans, flows and packets made from parameters, and
//! a load balancer that forwards them in memory.
//!
//! ```text
//!  Setup ─► Plan ─► View ─► LoadBalancer ◄─ Frames ◄─ Traffic
//! ```
//!
//! `guideway-bench` (this crate's program) measures the cost of a packet;
//! `guideway-figures` repeats the paper's evaluation.
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
