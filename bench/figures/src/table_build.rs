//! Time to build a lookup table (paper 5.3: 1.8 and 22.9 ms for 65537 and
//! 655373 entries, 1000 backends).

use plan::select::maglev;

use crate::machine;
use crate::names;
use crate::report::{Report, Table};
use crate::stats::Range;
use crate::svg;

/// What may be varied.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Backends of each table
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub backends: u32,
    /// Table sizes: primes
    #[arg(long, value_delimiter = ',', default_value = "65537,655373")]
    pub sizes: Vec<u32>,
    /// Tables of each size, each of other names
    #[arg(long, default_value_t = 51, value_parser = clap::value_parser!(u64).range(1..))]
    pub runs: u64,
}

/// Builds tables, from names to the fingerprint, and takes the time.
#[must_use]
pub fn run(options: &Options) -> Report {
    let mut table = Table::new(["table size", "ms, median (minimum - maximum)", "paper, ms"]);
    let mut line = svg::Series { name: "median".into(), points: Vec::new() };
    for size in &options.sizes {
        let times: Vec<f64> = (0..options.runs).map(|run| build_ms(options, *size, run)).collect();
        let range = Range::of(&times);
        let paper = match size {
            65_537 => "1.8",
            655_373 => "22.9",
            _ => "-",
        };
        table.row([size.to_string(), range.show(2), paper.to_owned()]);
        line.points.push((f64::from(*size), range.median));
    }
    let text = format!(
        "Time to build a lookup table\n\
         {} backends, {} runs, CPU time, names hashed and fingerprint taken included.\n\
         Machine: {}\n\n{table}",
        options.backends,
        options.runs,
        machine::label()
    );
    let frame = svg::Frame { title: "Time to build a lookup table", x: "entries", y: "ms" };
    Report { name: "table-build", text, svg: svg::lines(&frame, &[line]) }
}

fn build_ms(options: &Options, size: u32, run: u64) -> f64 {
    let candidates = names::candidates(run, options.backends);
    let start = machine::thread_time();
    let table = std::hint::black_box(maglev::selector(&candidates, size));
    let took = machine::thread_time() - start;
    drop(table);
    took.as_secs_f64() * 1000.0
}
