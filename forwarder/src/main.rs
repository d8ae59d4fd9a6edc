//! The program `guideway-forwarder`: its command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use daemon::logging;
use datapath::explain::Details;
use guideway_forwarder::offline::replay;
use guideway_forwarder::options::Options;
use guideway_forwarder::{offline, run};

const WORKERS_MAX: i64 = plan::limits::WORKERS_MAX as i64;

/// Guideway's forwarder: receives frames, selects backends, sends frames.
#[derive(Debug, Parser)]
#[command(name = "guideway-forwarder", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Forward (the default): by the last plan on disk, and by those pushed to the socket
    Run(RunArgs),
    /// Forward a capture file into another, as the real thing would
    Replay(ReplayArgs),
    /// Name the backend of each flow on stdin, by hash and table alone
    ///
    /// Flows are lines of `protocol source source-port destination
    /// destination-port`; answers are lines of JSON.
    Select(SelectArgs),
    /// Say what becomes of one flow and why, by hash and table alone, as JSON
    Explain(ExplainArgs),
    /// Count the table entries that differ between two plans, by service
    Diff(DiffArgs),
    /// Print the version
    Version,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Where forwarder.sock is
    #[arg(long, default_value = "/run/guideway")]
    run_dir: PathBuf,
    /// Where the last plan is kept: a directory that no other user may write
    #[arg(long, default_value = "/var/lib/guideway-forwarder")]
    state_dir: PathBuf,
    /// Where the connection tables are: tmpfs or hugetlbfs, not writable by others [default: tables in RUN_DIR]
    #[arg(long)]
    tables_dir: Option<PathBuf>,
    /// The cluster's secret, for plans that were made with it
    ///
    /// The file that cluster.secret_file names in the config, the same on
    /// every machine of the cluster.
    #[arg(long, overrides_with = "secret_file")]
    secret_file: Option<PathBuf>,
    /// Whose plans are taken: the controller's user, by name or number [default: the own]
    #[arg(long, value_name = "USER")]
    controller_user: Option<String>,
    /// How to log: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = logging::Format::parse)]
    log_format: logging::Format,
    /// Serve Prometheus metrics at http://ADDRESS/metrics
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<std::net::SocketAddr>,
    /// Let the kernel place the workers instead of pinning each to a core
    #[arg(long)]
    no_pin: bool,
    /// Workers behind the steering thread, with `steering: software` [default: one for each other core]
    #[arg(long, value_name = "WORKERS", value_parser = clap::value_parser!(u16).range(1..=WORKERS_MAX))]
    steered_workers: Option<u16>,
    /// Never sleep: for workers with a core of their own
    #[arg(long)]
    busy_poll: bool,
    /// Go on in the place of the forwarder that runs with this run directory
    ///
    /// Sockets, packet memory, connection tables and plan are handed over;
    /// packets wait for some milliseconds, and none is lost. Where that cannot
    /// be done, the running forwarder goes on and this one says why. Without
    /// a running forwarder this one just starts.
    #[arg(long)]
    take_over: bool,
    /// With --take-over: return when packets flow, and go on in the background
    ///
    /// For ExecReload= of a systemd unit: the running forwarder reports to systemd
    /// which process is the service from then on.
    #[arg(long, requires = "take_over")]
    detach: bool,
    /// What --detach starts
    #[arg(long, hide = true, requires = "take_over")]
    announce: bool,
}

#[derive(Debug, Args)]
struct ReplayArgs {
    /// The plan, as proto JSON
    #[arg(long)]
    plan: PathBuf,
    /// The capture to forward: pcap or pcapng, Ethernet
    #[arg(long = "in", value_name = "PCAP")]
    input: PathBuf,
    /// Where everything emitted goes: pcap
    #[arg(long = "out", value_name = "PCAP")]
    output: PathBuf,
    /// Where frames passed to the kernel go: pcap
    #[arg(long, value_name = "PCAP")]
    passed: Option<PathBuf>,
    /// Where the counters go [default: stdout]
    #[arg(long, value_name = "JSON")]
    counters: Option<PathBuf>,
    /// Where the journey of each frame goes
    #[arg(long, value_name = "JSON")]
    journeys: Option<PathBuf>,
    /// The cluster's secret [default: a key derived from the cluster's name]
    #[arg(long)]
    secret_file: Option<PathBuf>,
    /// The longest IP packet that fits the egress link, in bytes
    #[arg(long, default_value_t = 65535)]
    egress_mtu: u16,
    /// Frames handled together
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u8).range(1..=64))]
    batch: u8,
}

#[derive(Debug, Args)]
struct SelectArgs {
    /// The plan, as proto JSON
    #[arg(long)]
    plan: PathBuf,
    /// The cluster's secret
    #[arg(long)]
    secret_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct ExplainArgs {
    /// The plan, as proto JSON
    #[arg(long)]
    plan: PathBuf,
    /// The cluster's secret
    #[arg(long)]
    secret_file: Option<PathBuf>,
    /// PROTOCOL SOURCE SOURCE-PORT DESTINATION DESTINATION-PORT, as in
    /// `tcp 192.0.2.1 40000 203.0.113.10 80`
    #[arg(num_args = 5, required = true, value_name = "FLOW")]
    flow: Vec<String>,
    /// A QUIC connection id that the packet has, in hexadecimal digits
    #[arg(long, value_name = "HEX", value_parser = |text: &str| parse_bytes(text, 1, 20))]
    connection_id: Option<Bytes>,
    /// The packet's TCP header, in hexadecimal digits
    #[arg(long, value_name = "HEX", value_parser = |text: &str| parse_bytes(text, 20, 60))]
    tcp_header: Option<Bytes>,
}

/// Bytes as they were given.
#[derive(Debug, Clone)]
struct Bytes(Vec<u8>);

fn parse_bytes(text: &str, least: usize, most: usize) -> Result<Bytes, String> {
    let digits = text.as_bytes().chunks_exact(2);
    let is_hex = digits.remainder().is_empty() && (least..=most).contains(&digits.len());
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes = digits.map(byte).collect::<Option<_>>().filter(|_| is_hex);
    bytes.map(Bytes).ok_or_else(|| format!("give {least} to {most} bytes in hexadecimal digits"))
}

#[derive(Debug, Args)]
struct DiffArgs {
    /// The plan before; then, again, the plan after
    #[arg(long, num_args = 1, required = true)]
    plan: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command.unwrap_or(Command::Run(cli.run)) {
        Command::Run(args) if args.detach => run::detach(),
        Command::Run(args) => run::run(options(args)),
        Command::Replay(args) => replay(args),
        Command::Select(args) => select(&args),
        Command::Explain(args) => explain(&args),
        Command::Diff(args) => diff(&args),
        Command::Version => {
            println!("guideway-forwarder {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::fail("guideway-forwarder", &error);
            ExitCode::FAILURE
        }
    }
}

fn options(args: RunArgs) -> Options {
    Options {
        tables_dir: args.tables_dir.unwrap_or_else(|| args.run_dir.join("tables")),
        run_dir: args.run_dir,
        state_dir: args.state_dir,
        secret_file: args.secret_file,
        metrics_listen: args.metrics_listen,
        pin: !args.no_pin,
        steered_workers: args.steered_workers.map(usize::from),
        busy_poll: args.busy_poll,
        take_over: args.take_over,
        announce: args.announce,
        log_format: args.log_format,
        controller_user: args.controller_user,
    }
}

fn replay(args: ReplayArgs) -> Result<(), Box<dyn std::error::Error>> {
    let print = args.counters.is_none();
    let counters = replay::replay(&replay::Options {
        plan: args.plan,
        input: args.input,
        output: args.output,
        passed: args.passed,
        counters: args.counters,
        journeys: args.journeys,
        secret_file: args.secret_file,
        egress_mtu: args.egress_mtu,
        batch: usize::from(args.batch),
    })?;
    if print {
        println!("{counters:#}");
    }
    Ok(())
}

fn select(args: &SelectArgs) -> Result<(), Box<dyn std::error::Error>> {
    let out = std::io::BufWriter::new(std::io::stdout().lock());
    offline::select(&args.plan, args.secret_file.as_deref(), std::io::stdin().lock(), out)
}

fn explain(args: &ExplainArgs) -> Result<(), Box<dyn std::error::Error>> {
    let out = std::io::stdout().lock();
    let details = Details {
        connection_id: args.connection_id.as_ref().map(|given| given.0.as_slice()),
        tcp_header: args.tcp_header.as_ref().map(|given| given.0.as_slice()),
    };
    offline::explain(&args.plan, args.secret_file.as_deref(), &args.flow.join(" "), details, out)
}

fn diff(args: &DiffArgs) -> Result<(), Box<dyn std::error::Error>> {
    let [before, after] = args.plan.as_slice() else {
        return Err("diff takes --plan twice: the plan before and the plan after".into());
    };
    offline::diff(before, after, &mut std::io::stdout().lock())
}
