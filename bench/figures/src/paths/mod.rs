//! TCP over veth on complete paths: to the server directly, with direct routing by nft, and
//! through the forwarder (`af_packet`, kernel flow cache) and the server's agent. Measured
//! are one upload, with everything that a sender's kernel leaves to devices, and
//! connections with one request each.
//!
//! ```text
//!  client ══ 1 ══ load balancer ══ 2 ══ server
//!     ╚═══════════════ 3 ═════════════════╝      what the server says; and the direct way
//! ```
//!
//! All paths are up at the same time and take turns, on one machine, whose processors also
//! run client and server.

mod ends;
mod site;

use std::path::PathBuf;

use guideway_bench::report::write;
use serde_json::{Map, Value, json};

use crate::machine;
use crate::report::{Report, Table};
use crate::stats::Range;
use crate::svg;
use crate::veth;
pub use ends::{Client, Options as EndOptions, run as run_end};
use site::Site;

/// What may be varied.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The forwarder
    #[arg(long, default_value = "bin/guideway-forwarder")]
    pub forwarder: PathBuf,
    /// The servers' agent
    #[arg(long, default_value = "bin/guideway-agent")]
    pub agent: PathBuf,
    /// Rounds, in which all take turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Write the figures to this file as JSON as well
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// How packets come to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// To its own address.
    Direct,
    /// nft in the load balancer's place changes the frame's addresses.
    Nft,
    /// Through forwarder and agent.
    Guideway,
    /// The same of a stateless service, whose buckets the kernel has.
    Stateless,
}

impl Way {
    const ALL: [Way; 4] = [Way::Direct, Way::Nft, Way::Guideway, Way::Stateless];

    /// In the report, and in names of namespaces.
    fn name(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::Nft => "nft",
            Way::Guideway => "guideway",
            Way::Stateless => "guideway_stateless",
        }
    }
}

#[derive(Debug, Default)]
struct Measured {
    upload_gbps: Vec<f64>,
    connections_per_s: Vec<f64>,
    /// CPU time of the forwarder for each connection, in microseconds.
    forwarder_us: Vec<f64>,
    failures: Vec<String>,
}

type Results = [Measured; Way::ALL.len()];

/// Lets all of them carry both.
///
/// # Errors
/// What is missing, or which way does not carry anything.
pub fn run(options: &Options) -> Result<Report, String> {
    veth::check(options.seconds, &[&options.forwarder, &options.agent])?;
    let results = measure(options)?;
    if let Some(file) = &options.json {
        write(file, &summary(&results)).map_err(|error| error.to_string())?;
    }
    Ok(Report { name: "paths", text: text(options, &results), svg: plot(&results) })
}

fn measure(options: &Options) -> Result<Results, String> {
    let mut sites = Vec::new();
    for way in Way::ALL {
        let site = Site::new(way, options);
        sites.push(site.map_err(|error| format!("{}: {error}", way.name()))?);
    }
    let mut results = Results::default();
    for _ in 0..options.rounds {
        for (site, measured) in sites.iter().zip(&mut results) {
            let upload = site.client(Client::Upload, options.seconds)?;
            measured.upload_gbps.push(number(&upload, "gbps")?);
            let before = site.forwarder_cpu_ns()?;
            let requests = site.client(Client::Requests, options.seconds)?;
            let cpu_us = (site.forwarder_cpu_ns()? - before) as f64 / 1e3;
            measured.connections_per_s.push(number(&requests, "per_second")?);
            measured.forwarder_us.push(cpu_us / number(&requests, "done")?);
            let failures = requests["failures"].as_array().into_iter().flatten();
            measured.failures.extend(failures.map(Value::to_string));
        }
    }
    Ok(results)
}

fn number(answer: &Value, name: &str) -> Result<f64, String> {
    answer[name].as_f64().ok_or_else(|| format!("the client said {answer}"))
}

fn summary(results: &Results) -> Value {
    let of = |values: fn(&Measured) -> &Vec<f64>| {
        let pairs = Way::ALL.iter().zip(results);
        let medians =
            pairs.map(|(way, of)| (way.name().to_owned(), Range::of(values(of)).median.into()));
        medians.collect::<Map<String, Value>>()
    };
    json!({
        "upload_gbps": of(|measured| &measured.upload_gbps),
        "new_connections_per_s": of(|measured| &measured.connections_per_s),
    })
}

fn text(options: &Options, results: &Results) -> String {
    let mut table = Table::new([
        "way",
        "one upload, Gbit/s",
        "connections a second",
        "forwarder's CPU us each",
        "failed",
    ]);
    for (way, measured) in Way::ALL.iter().zip(results) {
        table.row([
            way.name().to_owned(),
            Range::of(&measured.upload_gbps).show(1),
            Range::of(&measured.connections_per_s).show(0),
            Range::of(&measured.forwarder_us).show(1),
            measured.failures.len().to_string(),
        ]);
    }
    format!(
        "TCP to a server itself, through direct routing by nft, and through forwarder and agent, over veth\n\
         Median (minimum - maximum) of {} rounds of {} s, in which all take turns; one request a connection.\n\
         Machine: {}\n\n{table}{}",
        options.rounds,
        options.seconds,
        machine::label(),
        results
            .iter()
            .flat_map(|measured| &measured.failures)
            .map(|failure| format!("\n{failure}"))
            .collect::<String>()
    )
}

fn plot(results: &Results) -> String {
    let bars: Vec<svg::Bar> = Way::ALL
        .iter()
        .zip(results)
        .map(|(way, measured)| svg::Bar {
            label: String::new(),
            group: way.name().into(),
            low: 0.0,
            high: Range::of(&measured.upload_gbps).median,
        })
        .collect();
    svg::bars(&svg::Frame { title: "One upload over veth", x: "", y: "Gbit/s" }, &bars)
}
