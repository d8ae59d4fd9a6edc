//! Metrics in Prometheus' text format, from the workers' own counters.

pub mod http;
pub mod page;
mod shared;
pub mod text;

pub use shared::SharedPage;
