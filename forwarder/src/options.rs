//! The command-line options of a running forwarder, for all its parts.

use std::net::SocketAddr;
use std::path::PathBuf;

use daemon::logging;

const WORKERS_MAX: i64 = plan::limits::WORKERS_MAX as i64;

/// How to run.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Where forwarder.sock is
    #[arg(long, default_value = "/run/guideway")]
    pub run_dir: PathBuf,
    /// Where the last plan is kept: a directory that no other user may write
    #[arg(long, default_value = "/var/lib/guideway-forwarder")]
    pub state_dir: PathBuf,
    /// Where the connection tables are: tmpfs or hugetlbfs, not writable by others [default: tables in RUN_DIR]
    #[arg(long)]
    tables_dir: Option<PathBuf>,
    /// The cluster's secret, for plans that were made with it
    ///
    /// The file that cluster.secret_file names in the config, the same on
    /// every machine of the cluster.
    #[arg(long, overrides_with = "secret_file")]
    pub secret_file: Option<PathBuf>,
    /// Whose plans are taken: the controller's user, by name or number [default: the own]
    #[arg(long, value_name = "USER")]
    pub controller_user: Option<String>,
    /// How to log: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = logging::Format::parse)]
    pub log_format: logging::Format,
    /// Serve Prometheus metrics at http://ADDRESS/metrics
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_listen: Option<SocketAddr>,
    /// Let the kernel place the workers instead of pinning each to a core
    #[arg(long)]
    pub no_pin: bool,
    /// Workers behind the steering thread, with `steering: software` [default: one for each other core]
    #[arg(long, value_name = "WORKERS", value_parser = clap::value_parser!(u16).range(1..=WORKERS_MAX))]
    steered_workers: Option<u16>,
    /// Never sleep: for workers with a core of their own
    #[arg(long)]
    pub busy_poll: bool,
    /// Go on in the place of the forwarder that runs with this run directory
    ///
    /// Sockets, packet memory, connection tables and plan are handed over;
    /// packets wait for some milliseconds, and none is lost. Where that cannot
    /// be done, the running forwarder goes on and this one says why. Without
    /// a running forwarder this one just starts.
    #[arg(long)]
    pub take_over: bool,
    /// With --take-over: return when packets flow, and go on in the background
    ///
    /// For ExecReload= of a systemd unit: the running forwarder reports to systemd
    /// which process is the service from then on.
    #[arg(long, requires = "take_over")]
    pub detach: bool,
    /// What --detach starts: say on stdout when packets flow
    #[arg(long, hide = true, requires = "take_over")]
    pub announce: bool,
}

impl Options {
    /// Where the connection tables are: a directory of ours alone.
    #[must_use]
    pub fn tables_dir(&self) -> PathBuf {
        self.tables_dir.clone().unwrap_or_else(|| self.run_dir.join("tables"))
    }

    /// Workers with `steering: software`; None: one for each core but one.
    #[must_use]
    pub fn steered_workers(&self) -> Option<usize> {
        self.steered_workers.map(usize::from)
    }
}
