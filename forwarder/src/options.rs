//! What the command line says, for all parts.

use std::net::SocketAddr;
use std::path::PathBuf;

/// What the command line says.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the socket is.
    pub run_dir: PathBuf,
    /// Where the last plan is: a directory of ours alone.
    pub state_dir: PathBuf,
    /// Where the connection tables are: a directory of ours alone.
    pub tables_dir: PathBuf,
    /// The cluster's secret.
    pub secret_file: Option<PathBuf>,
    /// Where to serve metrics.
    pub metrics_listen: Option<SocketAddr>,
    /// Workers with `steering: software`; None: one for each core but one.
    pub steered_workers: Option<usize>,
    /// Pin workers to cores.
    pub pin: bool,
    /// Never sleep.
    pub busy_poll: bool,
    /// Go on with what a running forwarder has.
    pub take_over: bool,
    /// Say on stdout when packets flow.
    pub announce: bool,
    /// How the log's lines look.
    pub log_format: daemon::logging::Format,
    /// Whose plans are taken: a name or a number; None: this process's user.
    pub controller_user: Option<String>,
}
