//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// Takes packets out of the load balancers' tunnels (GRE, IP in IP, GUE,
/// Geneve) and gives them to the kernel.
///
/// The backend has the VIPs on its loopback interface (`ip addr add VIP dev
/// lo`) and answers clients directly.
#[derive(Parser)]
#[command(version)]
pub struct Arguments {
    /// The config (docs/agent.md)
    #[arg(long, value_name = "FILE", default_value = "/etc/guideway/agent.yaml")]
    pub config: PathBuf,

    /// Take the program that is pinned off its interface, and end
    #[arg(long, conflicts_with = "check")]
    pub detach: bool,

    /// Read the config, report everything that is wrong with it, and end
    #[arg(long)]
    pub check: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
