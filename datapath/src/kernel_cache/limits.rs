//! How often regions are swept, and which flows that is often enough for.

/// The whole region is swept in this time.
pub const SWEEP_MS: u64 = 10_000;

/// Idle timeouts of services whose flows are cached: two sweeps, so that an entry of
/// the connection table is written again long before it expires.
pub const IDLE_TIMEOUT_MS_MIN: u32 = 2 * SWEEP_MS as u32;
