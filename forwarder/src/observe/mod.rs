//! What others see of the forwarder: its health, its metrics, its answers about
//! one flow.

pub mod compared;
pub mod controller;
pub mod explained;
pub mod health;
pub mod limits;
pub mod metrics;
