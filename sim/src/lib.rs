//! One load balancer without threads, clock and kernel.
//!
//! - [`Worker`] is the loop that the forwarder's threads run, for any device;
//!   [`SlowPathClient`] and [`SlowPathServer`] are the rings to the slow path.
//! - [`LoadBalancer`] consists of workers and slow path over devices in memory, with a clock
//!   that its caller sets: for replay, tests, fuzzing and measurements.
#![forbid(unsafe_code)]

pub mod decider;
pub mod load_balancer;
mod memory;
pub mod observer;
mod outgoing;
pub mod platform;
pub mod slow_path;
pub mod view;
pub mod worker;

pub use decider::Decider;
pub use load_balancer::{LoadBalancer, Setup};
pub use observer::{OriginatedFrame, Outcome, Path};
pub use platform::Platform;
pub use slow_path::{Answer, Request, SlowPathClient, SlowPathServer};
pub use worker::{Parts, Worker};
