//! The threads that process packets, and what they share: one worker for each queue, the
//! steering thread in front of them, the slow path behind them, the way back to the kernel.
//! They know neither the control side nor its sockets.
//!
//! ```text
//!  devices ─► (steering) ─► workers ─► devices
//!                             │  └─► punt ─► the kernel's stack, by a TAP
//!                             └─► slow path ─► the worker that asked
//!  the controller's probes, by a TUN ─► probe ─► devices
//! ```

pub mod accounts;
pub mod capture;
pub mod checksums;
pub mod engine;
pub mod kernel_caches;
pub mod liveness;
pub mod probe;
pub mod punt;
pub mod samples;
pub mod slow_path;
pub mod steering;
pub mod tables;
pub mod threads;
pub mod view_publisher;
pub mod worker;
