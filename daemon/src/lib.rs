//! Functions that our services share: logging, writing metrics, and notifying systemd. Does not
//! know what the programs do.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod logging;
pub mod metrics;
pub mod notify;

/// The version of our programs: a release's may be another than the crates'.
pub const VERSION: &str = match option_env!("GUIDEWAY_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// What `--version` says: also the commit, and whether it was changed, where the build tells
/// it (`make build`).
pub const VERSION_AND_COMMIT: &str = match option_env!("GUIDEWAY_VERSION_AND_COMMIT") {
    Some(both) => both,
    None => VERSION,
};
