//! The program `guideway-figures`: one subcommand per figure of the papers.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use guideway_figures::report::Report;
use guideway_figures::{
    figure_7, figure_8, figure_9, figure_11, figure_12, mplb, paths, scale, swap, table_build,
    tracking, veth,
};
use plan::select::maglev::is_table_size;

/// Redoes the evaluation of the Maglev paper, and that of the MPLB paper: prints a
/// table, and writes it with a plot into a folder.
#[derive(Debug, Parser)]
#[command(name = "guideway-figures", version)]
struct Cli {
    /// Write NAME.txt and NAME.svg into this folder as well
    #[arg(long, global = true, value_name = "FOLDER")]
    out: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Figure(Figure),
    /// The sending end of figures over veth, which start it themselves
    #[command(hide = true)]
    Sender(veth::sender::Options),
    /// Both ends of the ways over veth, which start them themselves
    #[command(hide = true)]
    PathEnd(paths::EndOptions),
    /// The worker of MPLB's figure 7, which starts it itself
    #[command(hide = true)]
    RingWorker(mplb::ring_worker::Options),
    /// A line of scale, which starts it itself
    #[command(hide = true)]
    ScaleOne(scale::one::One),
}

#[derive(Debug, Subcommand)]
enum Figure {
    /// Spread of load over endpoints in the course of a day (a model)
    #[command(name = "7")]
    Seven(figure_7::Options),
    /// Throughput with and without kernel bypass, over veth (measured; root)
    #[command(name = "8")]
    Eight(figure_8::Options),
    /// Throughput by type of TCP packets, in memory (measured)
    #[command(name = "9")]
    Nine(figure_9::Options),
    /// Shares of a table by Maglev, Karger and Rendezvous hashing
    #[command(name = "11")]
    Eleven(figure_11::Options),
    /// Entries that change when backends fail
    #[command(name = "12")]
    Twelve(figure_12::Options),
    /// Time to build a table (measured)
    TableBuild(table_build::Options),
    /// Connections that a table keeps track of, and entries shared
    Tracking(tracking::Options),
    /// Packets, plans and memory by services, backends and workers (measured)
    Scale(scale::Options),
    /// Packets while the plan changes (measured)
    Swap(swap::Options),
    /// TCP to a server, through nft, and through forwarder and agent, over veth (measured; root)
    Paths(paths::Options),
    /// MPLB: rate by type of packet, in memory (measured)
    #[command(name = "mplb-table-1")]
    MplbTableOne(mplb::table_1::Options),
    /// MPLB: rate by size of rings, over veth (measured; root)
    #[command(name = "mplb-7")]
    MplbSeven(mplb::figure_7::Options),
    /// MPLB: latency by load, over veth (measured; root)
    #[command(name = "mplb-8")]
    MplbEight(mplb::figure_8::Options),
    /// MPLB: load balancers added one by one, over veth (measured; root)
    #[command(name = "mplb-9")]
    MplbNine(mplb::figure_9::Options),
    /// MPLB: rate by size of packets, over veth (measured; root)
    #[command(name = "mplb-10")]
    MplbTen(mplb::figure_10::Options),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Command::Figure(figure) => {
            report(figure).and_then(|report| publish(&report, cli.out.as_deref()))
        }
        Command::Sender(options) => veth::sender::run(options).map(|answer| println!("{answer}")),
        Command::PathEnd(options) => paths::run_end(options),
        Command::RingWorker(options) => mplb::ring_worker::run(options),
        Command::ScaleOne(one) => scale::one::run(one).map(|measured| {
            println!("{}", serde_json::to_string(&measured).expect("numbers are JSON"));
        }),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("guideway-figures: {error}");
            ExitCode::FAILURE
        }
    }
}

fn report(figure: &Figure) -> Result<Report, String> {
    match figure {
        Figure::Seven(options) => {
            check_sizes(&[options.size], options.endpoints)?;
            figure_7::run(options)
        }
        Figure::Eight(options) => figure_8::run(options),
        Figure::Nine(options) => figure_9::run(options),
        Figure::Paths(options) => paths::run(options),
        Figure::Eleven(options) => {
            check_sizes(&options.sizes, options.backends)?;
            Ok(figure_11::run(options))
        }
        Figure::Twelve(options) => {
            check_sizes(&options.sizes, options.backends)?;
            figure_12::run(options)
        }
        Figure::TableBuild(options) => {
            check_sizes(&options.sizes, options.backends)?;
            Ok(table_build::run(options))
        }
        Figure::Tracking(options) => tracking::run(options),
        Figure::Scale(options) => scale::run(options),
        Figure::Swap(options) => swap::run(options),
        Figure::MplbTableOne(options) => mplb::table_1::run(options),
        Figure::MplbSeven(options) => mplb::figure_7::run(options),
        Figure::MplbEight(options) => mplb::figure_8::run(options),
        Figure::MplbNine(options) => mplb::figure_9::run(options),
        Figure::MplbTen(options) => mplb::figure_10::run(options),
    }
}

fn check_sizes(sizes: &[u32], backends: u32) -> Result<(), String> {
    match sizes.iter().find(|size| !is_table_size(**size) || **size <= backends) {
        Some(size) => {
            Err(format!("table size {size}: has to be a prime larger than the {backends} backends"))
        }
        None => Ok(()),
    }
}

fn publish(report: &Report, folder: Option<&std::path::Path>) -> Result<(), String> {
    print!("{}", report.text);
    match folder {
        Some(folder) => {
            report.save(folder).map_err(|error| format!("{}: {error}", folder.display()))
        }
        None => Ok(()),
    }
}
