//! What our programs have in common as services: how they log, write metrics, and
//! notify systemd. Knows nothing of what they do.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod logging;
pub mod metrics;
pub mod notify;
