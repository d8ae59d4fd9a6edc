//! What a process has of its machine: logging, the service manager, the run
//! directory, the secret. Knows nothing of packets.

pub mod logging;
pub mod notify;
pub mod rundir;
pub mod secret;
