//! Functions that our services share: logging, writing metrics, and notifying systemd. Does not
//! know what the programs do.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod logging;
pub mod metrics;
pub mod notify;

/// Prints a line for people. Who closed the pipe, as `head` does, wants no more.
#[macro_export]
macro_rules! say {
    ($($part:tt)*) => {
        drop(std::io::Write::write_fmt(
            &mut std::io::stdout(),
            format_args!("{}\n", format_args!($($part)*)),
        ))
    };
}

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
