//! The agent of a backend: takes packets out of the load balancers' tunnels.
//!
//! An XDP program on the backend's interface does the work (bpf/); this
//! loads it, tells it whose tunnels to open, and shows what it counts. It is
//! needed where the kernel has no tunnel devices of its own. The program goes
//! with the process: a backend without its agent drops tunnel packets, fails
//! its probes through the tunnel, and is no longer selected.

mod logging;
mod metrics;
mod notify;
mod outcome;
mod program;

use std::fmt;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time;
use wire::IpPrefix;

use program::Program;

/// Takes packets out of the load balancers' tunnels (GRE, IP in IP, GUE,
/// Geneve) and gives them to the kernel.
///
/// The backend has the VIPs on its loopback interface (`ip addr add VIP dev
/// lo`) and answers clients directly.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Interface that tunnelled packets arrive on
    #[arg(long)]
    interface: String,

    /// Whose tunnels are opened: addresses or prefixes of the load balancers
    /// (may be repeated); all other tunnels are left to the kernel
    #[arg(long = "source", value_name = "PREFIX", required = true)]
    sources: Vec<IpPrefix>,

    /// How the program is attached
    #[arg(long, value_enum, default_value_t)]
    mode: Mode,

    /// Address to serve Prometheus metrics on, at /metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_listen: Option<SocketAddr>,

    /// Seconds between log lines with the counters; 0 for none
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    stats_interval: u64,
}

/// How the program is to be attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Mode {
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

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    logging::start();
    match run(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            tracing::error!("{problem}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), String> {
    // The handlers come first: a signal during the start must not be lost.
    let mut end = End::new()?;
    let listener = listen(arguments.metrics_listen).await?;
    let mut program = Program::load()?;
    program.allow(&arguments.sources)?;
    let mode = program.attach(&arguments.interface, arguments.mode)?;
    println!("ready: {} {mode}, {} sources", arguments.interface, arguments.sources.len());
    notify::ready()?;

    let counters = program.counters();
    let report = report_every(Duration::from_secs(arguments.stats_interval), counters);
    tokio::select! {
        () = metrics::serve(listener, counters) => {}
        () = report => {}
        () = end.comes() => {}
    }
    tracing::info!(interface = arguments.interface, "detached");
    Ok(())
}

async fn listen(address: Option<SocketAddr>) -> Result<Option<TcpListener>, String> {
    let Some(address) = address else { return Ok(None) };
    let listener = TcpListener::bind(address).await;
    listener.map(Some).map_err(|error| format!("cannot serve metrics on {address}: {error}"))
}

/// What asks the agent to end.
struct End {
    terminate: Signal,
    interrupt: Signal,
}

impl End {
    fn new() -> Result<End, String> {
        let handler =
            |kind| signal(kind).map_err(|error| format!("cannot handle signals: {error}"));
        Ok(End {
            terminate: handler(SignalKind::terminate())?,
            interrupt: handler(SignalKind::interrupt())?,
        })
    }

    async fn comes(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Logs the counters that are not zero; never, for an interval of zero.
async fn report_every(interval: Duration, counters: &program::Counters) {
    if interval.is_zero() {
        return std::future::pending().await;
    }
    let mut ticks = time::interval(interval);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        match counters.read() {
            Ok(counts) => tracing::info!("{}", outcome::line(&counts)),
            Err(problem) => tracing::warn!("{problem}"),
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
