//! Metrics in Prometheus' text format, from the workers' own counters.

pub mod http;
pub mod page;
pub mod text;
