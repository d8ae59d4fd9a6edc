//! Metrics in Prometheus' text format, from the workers' own counters.

pub mod definitions;
pub mod http;
pub mod page;
mod shared;

pub use shared::SharedPage;
