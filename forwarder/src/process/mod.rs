//! The process's environment: the run directory, the secret, its program, memory. Knows nothing
//! of packets.

pub mod memory;
pub mod peer;
pub mod rundir;
pub mod secret;
pub mod successor;
