//! What our programs have in common as services of systemd: how they log, and
//! how they notify the service manager. Knows nothing of what they do.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod logging;
pub mod notify;
