//! What grows with the number of services, backends and workers: the cost of a packet,
//! memory, and the time from a changed plan until workers use it.
//!
//! ```text
//!  per line a process of its own:  Setup ─► Plan ─► View ─► workers ─► one backend goes down ─► Plan ─► View
//!                                  memory and processor time of each step; packets in memory
//! ```
//!
//! Each line of the result has its own process, so that the memory is that of the line
//! alone. Lines take turns, several times; medians are shown.

pub mod one;

use std::process::Command;

use crate::machine;
use crate::report::{Report, Table};
use crate::stats::Range;
use crate::svg;
use one::{Measured, One};

/// What may be varied.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Numbers of services
    #[arg(long, value_delimiter = ',', default_value = "1,10,100,1000,10000", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub services: Vec<u32>,
    /// Numbers of backends
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000,10000,20000", value_parser = clap::value_parser!(u32).range(1..=65_000))]
    pub backends: Vec<u32>,
    /// Numbers of workers
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: Vec<u32>,
    /// Pools that services share, where there are as many services and backends
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub pools: u32,
    /// Services while backends and workers are varied
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub usual_services: u32,
    /// Backends while services and workers are varied
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    pub usual_backends: u32,
    /// Services that see traffic where not all do
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub busy_services: u32,
    /// Flows, over all workers
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=50_000_000))]
    pub flows: u64,
    /// Packets of a measurement, over all workers
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(64..))]
    pub packets: u64,
    /// Times that every line is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub turns: u32,
}

impl Options {
    fn one(&self, services: u32, backends: u32, workers: u32) -> One {
        One {
            services,
            backends,
            workers,
            pools: self.pools.min(services).min(backends),
            busy_services: self.busy_services.min(services),
            flows: self.flows,
            packets: self.packets,
        }
    }
}

/// One table: its lines, and what every one of them did.
struct Growth {
    varied: &'static str,
    lines: Vec<(One, Vec<Measured>)>,
}

impl Growth {
    fn new(varied: &'static str, lines: Vec<One>) -> Growth {
        Growth { varied, lines: lines.into_iter().map(|line| (line, Vec::new())).collect() }
    }

    fn measure(&mut self) -> Result<(), String> {
        for (line, measured) in &mut self.lines {
            measured.push(apart(line)?);
        }
        Ok(())
    }

    fn number(&self, line: &One) -> u32 {
        match self.varied {
            "services" => line.services,
            "backends" => line.backends,
            _ => line.workers,
        }
    }

    /// The median of a line, and how many times the first line's it is.
    fn cell(&self, line: usize, of: fn(&Measured) -> f64, decimals: usize) -> String {
        let median =
            |line: usize| Range::of(&self.lines[line].1.iter().map(of).collect::<Vec<_>>()).median;
        format!("{:.decimals$} (x{:.2})", median(line), median(line) / median(0))
    }

    fn times(&self) -> Table {
        let mut table = Table::new([
            self.varied,
            "pools",
            "ns/packet, some busy",
            "ns/packet, all busy",
            "first plan, ms",
            "plan after a flap, ms",
            "its view, ms",
            "compared, ms",
            "tables built",
        ]);
        for (index, (line, measured)) in self.lines.iter().enumerate() {
            table.row([
                self.number(line).to_string(),
                line.pools.to_string(),
                self.cell(index, |one| one.some_busy_ns, 0),
                self.cell(index, |one| one.all_busy_ns, 0),
                self.cell(index, |one| one.plan_ms, 1),
                self.cell(index, |one| one.flap_ms, 1),
                self.cell(index, |one| one.view_ms, 2),
                self.cell(index, |one| one.compared_ms, 1),
                format!("{} of {}", measured[0].tables_built, measured[0].tables),
            ]);
        }
        table
    }

    fn memory(&self) -> Table {
        let mut table = Table::new([
            self.varied,
            "plan, MiB",
            "view, MiB",
            "both, and the next ones, MiB",
            "connections, MiB",
        ]);
        for (index, (line, _)) in self.lines.iter().enumerate() {
            table.row([
                self.number(line).to_string(),
                self.cell(index, |one| one.plan_mib, 1),
                self.cell(index, |one| one.view_mib, 1),
                self.cell(index, |one| one.both_mib, 1),
                self.cell(index, |one| one.connections_mib, 1),
            ]);
        }
        table
    }
}

/// Measures all lines.
///
/// # Errors
/// If one of them cannot be: which parameters, and why.
pub fn run(options: &Options) -> Result<Report, String> {
    let (services, backends) = (options.usual_services, options.usual_backends);
    let lines = |numbers: &[u32], of: &dyn Fn(u32) -> One| numbers.iter().map(|n| of(*n)).collect();
    let mut growths = [
        Growth::new("services", lines(&options.services, &|n| options.one(n, backends, 1))),
        Growth::new("backends", lines(&options.backends, &|n| options.one(services, n, 1))),
        Growth::new("workers", lines(&options.workers, &|n| options.one(services, backends, n))),
    ];
    for _ in 0..options.turns {
        for growth in &mut growths {
            growth.measure()?;
        }
    }
    Ok(Report { name: "scale", text: text(options, &growths), svg: plot(&growths[0]) })
}

/// This program again, for one line.
fn apart(one: &One) -> Result<Measured, String> {
    let failed = |why: String| format!("{one:?}: {why}");
    let own = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let output = Command::new(own)
        .args(one.arguments())
        // What is freed goes back to the kernel at once, or what comes next
        // would be made of it and cost nothing.
        .env("MALLOC_MMAP_THRESHOLD_", "65536")
        .env("MALLOC_TRIM_THRESHOLD_", "65536")
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}

fn text(options: &Options, growths: &[Growth; 3]) -> String {
    let Options { usual_services, usual_backends, busy_services, flows, packets, turns, .. } =
        options;
    let times: Vec<String> = growths.iter().map(|growth| growth.times().to_string()).collect();
    let memory: Vec<String> = growths.iter().map(|growth| growth.memory().to_string()).collect();
    format!(
        "Scale: packets, plans and memory by services, backends and workers\n\
         Where not varied: {usual_services} services, {usual_backends} backends, 1 worker; services share pools, backends are dealt to\n\
         them in turn, tables of 65537 entries. {flows} tracked flows and {packets} packets over all workers, in memory;\n\
         \"some busy\": traffic on {busy_services} of the services at most. Processor time, medians of {turns} turns, each line\n\
         a process of its own; in brackets: times the first line's. \"Flap\": one backend goes down. Memory as\n\
         the process grew by it; \"and the next ones\": with plan and view after the flap, as in a swap.\n\
         Machine: {}\n\n{}\n{}\n\
         Workers here are threads on the machine's cores: with more of them than cores they take turns, and\n\
         come back to caches that others have used.\n",
        machine::label(),
        times.join("\n"),
        memory.join("\n"),
    )
}

fn plot(by_services: &Growth) -> String {
    let line = |name: &str, of: fn(&Measured) -> f64| svg::Series {
        name: name.to_owned(),
        points: (by_services.lines.iter())
            .map(|(line, measured)| {
                let median = Range::of(&measured.iter().map(of).collect::<Vec<_>>()).median;
                (f64::from(line.services).log10(), median)
            })
            .collect(),
    };
    let frame = svg::Frame {
        title: "What a packet costs, by number of services",
        x: "services, as a power of ten",
        y: "ns",
    };
    let lines = [
        line("traffic on some of them", |one| one.some_busy_ns),
        line("traffic on all of them", |one| one.all_busy_ns),
    ];
    svg::lines(&frame, &lines)
}
