//! What a process has of its machine: the run directory, the secret. Knows nothing
//! of packets.

pub mod rundir;
pub mod secret;
