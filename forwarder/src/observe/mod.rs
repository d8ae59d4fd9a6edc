//! What the forwarder reports: its health, its metrics, and its answers about one flow.

pub mod compared;
pub mod controller;
pub mod explained;
pub mod health;
pub mod limits;
pub mod metrics;
