//! Metrics in Prometheus' text format, from the workers' own counters.

pub mod definitions;
pub mod page;

pub use daemon::metrics::{SharedPage, http};
