//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::offline::replay;
use crate::options::Options;

/// Guideway's forwarder: receives frames, selects backends, sends frames.
#[derive(Debug, Parser)]
#[command(name = "guideway-forwarder", version = daemon::VERSION_AND_COMMIT, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    /// What to do, if not to run.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to run.
    #[command(flatten)]
    pub run: Options,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Forward (the default): by the last plan on disk, and by those pushed to the socket
    Run(Options),
    /// Forward a capture file into another, as the real thing would
    Replay(replay::Options),
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

/// Of `select`.
#[derive(Debug, Args)]
pub struct SelectArgs {
    /// The plan, as proto JSON
    #[arg(long)]
    pub plan: PathBuf,
    /// The cluster's secret
    #[arg(long)]
    pub secret_file: Option<PathBuf>,
}

/// Of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The plan, as proto JSON
    #[arg(long)]
    pub plan: PathBuf,
    /// The cluster's secret
    #[arg(long)]
    pub secret_file: Option<PathBuf>,
    /// PROTOCOL SOURCE SOURCE-PORT DESTINATION DESTINATION-PORT, as in
    /// `tcp 192.0.2.1 40000 203.0.113.10 80`
    #[arg(num_args = 5, required = true, value_name = "FLOW")]
    pub flow: Vec<String>,
    /// A QUIC connection id that the packet has, in hexadecimal digits
    #[arg(long, value_name = "HEX", value_parser = |text: &str| parse_bytes(text, 1, 20))]
    pub connection_id: Option<Bytes>,
    /// The packet's TCP header, in hexadecimal digits
    #[arg(long, value_name = "HEX", value_parser = |text: &str| parse_bytes(text, 20, 60))]
    pub tcp_header: Option<Bytes>,
}

/// Of `diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The plan before; then, again, the plan after
    #[arg(long, num_args = 1, required = true)]
    pub plan: Vec<PathBuf>,
}

/// Bytes as they were given.
#[derive(Debug, Clone)]
pub struct Bytes(pub Vec<u8>);

fn parse_bytes(text: &str, least: usize, most: usize) -> Result<Bytes, String> {
    let digits = text.as_bytes().chunks_exact(2);
    let is_hex = digits.remainder().is_empty() && (least..=most).contains(&digits.len());
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes = digits.map(byte).collect::<Option<_>>().filter(|_| is_hex);
    bytes.map(Bytes).ok_or_else(|| format!("give {least} to {most} bytes in hexadecimal digits"))
}
