//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use daemon::logging;

use crate::{multipath, timestamps};

/// Takes packets out of the load balancers' tunnels (GRE, IP in IP, GUE,
/// Geneve) and gives them to the kernel.
///
/// The backend has the VIPs on its loopback interface (`ip addr add VIP dev
/// lo`) and answers clients directly.
#[derive(Parser)]
#[command(name = "guideway-agent", version = daemon::VERSION_AND_COMMIT)]
pub struct Arguments {
    /// The config (docs/agent.md)
    #[arg(long, global = true, value_name = "FILE", default_value = "/etc/guideway/agent.yaml")]
    pub config: PathBuf,

    /// How to log: text or json
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text",
        value_parser = logging::Format::parse)]
    pub log_format: logging::Format,

    /// Take the program that is pinned off its interface, and end
    #[arg(long, conflicts_with = "check")]
    pub detach: bool,

    /// Read the config, report everything that is wrong with it, and end
    #[arg(long)]
    pub check: bool,

    /// How far values of timestamps are shifted: with more than 13 bits clocks go round
    /// sooner, for tests that cannot wait for minutes
    #[arg(long, hide = true, value_name = "BITS", default_value_t = timestamps::SHIFT,
        value_parser = clap::value_parser!(u32).range(13..=20))]
    pub timestamp_shift: u32,

    /// Something else than taking packets out of tunnels
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What people ask of a backend.
#[derive(Clone, Subcommand)]
pub enum Command {
    /// Show what the agent that runs here does
    Status {
        /// For people, or for programs
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Switch SYN cookies back when the agent that started this is gone
    #[command(name = multipath::guard::COMMAND, hide = true)]
    RestoreSynCookies,
    /// Look for what usually is wrong on a backend, and say what cures it
    ///
    /// Each line is ok, warn or fail; it ends with 1 if anything fails.
    Doctor {
        /// For people, or for programs
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Set this server up by what `guideway config backend NAME` prints, now and at each boot
    ///
    /// With an agent and without: VIPs, settings of the kernel, the tunnel's end, the agent's
    /// config and keys. It may run again, with what is printed then. What fails is taken back.
    Setup {
        /// What was printed; - is standard input
        #[arg(long, value_name = "FILE", required_unless_present = "undo")]
        from: Option<PathBuf>,
        /// Take back what was set up
        #[arg(long, conflicts_with = "from")]
        undo: bool,
        /// Say what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Print the version
    Version,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Lines for people.
    Table,
    /// One JSON value.
    Json,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn it_has_a_version_and_two_log_formats() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        assert!(matches!(parse("agent version").unwrap().command, Some(Command::Version)));
        assert_eq!(parse("agent").unwrap().log_format, logging::Format::Text);
        assert_eq!(parse("agent --log-format json").unwrap().log_format, logging::Format::Json);
        assert!(parse("agent --log-format xml").is_err());
    }
}
