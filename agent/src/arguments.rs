//! The command line.

use std::fmt;
use std::net::SocketAddr;

use clap::{Parser, ValueEnum};
use ebpf::xdp::ModePreference;
use wire::IpPrefix;

/// Takes packets out of the load balancers' tunnels (GRE, IP in IP, GUE,
/// Geneve) and gives them to the kernel.
///
/// The backend has the VIPs on its loopback interface (`ip addr add VIP dev
/// lo`) and answers clients directly.
#[derive(Parser)]
#[command(version)]
pub struct Arguments {
    /// Interface that tunnelled packets arrive on
    #[arg(long)]
    pub interface: String,

    /// Whose tunnels are opened: addresses or prefixes of the load balancers
    /// (may be repeated); all other tunnels are left to the kernel
    #[arg(long = "source", value_name = "PREFIX", required = true)]
    pub sources: Vec<IpPrefix>,

    /// How the program is attached
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,

    /// Address to serve Prometheus metrics on, at /metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics_listen: Option<SocketAddr>,

    /// Seconds between log lines with the counters; 0 for none
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub stats_interval: u64,
}

/// How the program is to be attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// In the driver if it can, else generically, with a warning
    #[default]
    Auto,
    /// In the driver, or not at all
    Native,
    /// In the kernel's generic path: any driver, more slowly
    Generic,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Auto => "auto",
            Mode::Native => "native",
            Mode::Generic => "generic",
        })
    }
}

impl From<Mode> for ModePreference {
    fn from(mode: Mode) -> ModePreference {
        match mode {
            Mode::Auto => ModePreference::Auto,
            Mode::Native => ModePreference::Native,
            Mode::Generic => ModePreference::Generic,
        }
    }
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
    fn sources_are_addresses_or_prefixes() {
        let parse = |source| {
            Arguments::try_parse_from(["agent", "--interface", "eth0", "--source", source])
        };
        assert_eq!(parse("10.0.0.1").unwrap().sources[0].to_string(), "10.0.0.1/32");
        assert_eq!(parse("2001:db8::/64").unwrap().sources[0].to_string(), "2001:db8::/64");
        let error = parse("10.0.0.1/8").err().unwrap().to_string();
        assert!(error.contains("10.0.0.1/8") && error.contains("bits set behind"), "{error}");
        assert!(Arguments::try_parse_from(["agent", "--interface", "eth0"]).is_err(), "no source");
    }
}
