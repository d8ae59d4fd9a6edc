//! Services with Multipath TCP (RFC 8684) whose connections get their keys from the load
//! balancers, on kernels that do not support this (MPLB, section 3.1; docs/mptcp.md).

//!
//! ```text
//!  programs (bpf/handshake.h) ─ SYNs ─► injector ─► kernel        guard: ends after the agent
//!       ▲  ▲                              │
//!       │  └── handshakes, heartbeat ─────┤
//!       └───── tokens ◄───────────────────┴── the kernel's list of connections
//! ```

mod counts;
pub mod guard;
mod injector;
mod kernel;
mod services;
mod syn;
mod tokens;

pub use counts::Counts;
pub use injector::{Injector, Tables};
pub use kernel::{Kernel, Problem, counter};
pub use services::Services;
pub use tokens::Tokens;

use crate::config::Config;

/// Says in the log what this kernel lacks for what the config has, and is not needed for
/// handshakes: of those the injector speaks.
pub fn report_problems(config: &Config) {
    if config.multipath.is_empty() {
        return;
    }
    for problem in Kernel::read().problems(config).iter().filter(|problem| !problem.is_fatal) {
        tracing::warn!("mptcp: {}: {}", problem.text, problem.cure);
    }
}
