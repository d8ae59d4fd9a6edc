//! What a process has of its machine: the run directory, the secret, its program. Knows
//! nothing of packets.

pub mod peer;
pub mod rundir;
pub mod secret;
pub mod successor;
