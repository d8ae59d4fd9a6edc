//! How often regions are swept, and the flows for which that is often enough.

/// The whole region is swept in this time.
pub const SWEEP_MS: u64 = 10_000;

/// A sweep takes out what was not used for longer.
pub const IDLE_MS_MAX: u64 = 30_000;

/// Idle timeouts of services whose flows are cached: no shorter than an entry may be idle
/// here, which is told at the next sweep. So none outlives its flow's in the connection
/// table, and that one is written again long before it expires.
pub const IDLE_TIMEOUT_MS_MIN: u32 = (IDLE_MS_MAX + SWEEP_MS) as u32;
