//! Figure 7: how evenly connections are spread over endpoints during a day.
//!
//! The paper (5.1) measured 458 endpoints in production. It gives neither their rates nor
//! their clients, so this is a model of arrivals with the real hash and the real table:
//!
//! ```text
//!  day's curve ─► arrivals ─► five-tuples ─► FlowHash ─► Maglev table ─► connections per endpoint and 5 minutes
//! ```
//!
//! - The rate over the day is 1 - a cos: lowest at 4 o'clock, highest at 16.
//! - Arrivals are independent of each other: in each interval a fixed number of possible
//!   connections each happen with the probability given by the curve. The counts of one
//!   endpoint follow a Poisson distribution to within 1/458.
//! - Each connection has a random client address and an ephemeral port.
//! - All endpoints are equal, up, and in one pool.
//!
//! The rate per endpoint is a parameter, because the paper does not give it; results are
//! shown for several.

use std::fmt::Write;

use datapath::{FlowHash, Secret};
use plan::select::maglev;
use wire::{Family, FlowKey, Protocol};

use crate::names;
use crate::random::Random;
use crate::report::{Report, Table};
use crate::stats::{Range, Spread};
use crate::svg;

/// The paper's "granularity of data collection".
const INTERVAL_SECONDS: u32 = 300;
const INTERVALS: u32 = 86_400 / INTERVAL_SECONDS;
const LOWEST_AT_HOUR: f64 = 4.0;
/// The factor below which the paper's endpoints were "over 60% of the time".
const FACTOR: f64 = 1.2;
const VIP: u128 = 0xcb00_710a; // 203.0.113.10
/// Linux's default ip_local_port_range.
const PORTS: std::ops::Range<u64> = 32_768..61_000;

/// What may be varied.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Endpoints
    #[arg(long, default_value_t = 458, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub endpoints: u32,
    /// Table size: a prime
    #[arg(long, default_value_t = 65_537)]
    pub size: u32,
    /// Connections per second and endpoint, on average over the day; the
    /// first is plotted
    #[arg(long, value_delimiter = ',', default_value = "1,0.1,0.3,3")]
    pub rates: Vec<f64>,
    /// The day's highest rate over its lowest
    #[arg(long, default_value_t = 3.0)]
    pub peak_to_trough: f64,
    /// Days for each rate
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
}

impl Options {
    fn check(&self) -> Result<(), String> {
        if let Some(rate) = self.rates.iter().find(|rate| !(0.001..=1000.0).contains(*rate)) {
            return Err(format!("--rates {rate}: a rate is from 0.001 to 1000 per second"));
        }
        if self.rates.is_empty() {
            return Err("--rates: at least one".to_owned());
        }
        if !(1.0..=1000.0).contains(&self.peak_to_trough) {
            return Err(format!(
                "--peak-to-trough {}: from 1 (a flat day) to 1000",
                self.peak_to_trough
            ));
        }
        Ok(())
    }

    /// The rate at an interval's middle, over the day's average.
    fn curve(&self, interval: u32) -> f64 {
        let swing = (self.peak_to_trough - 1.0) / (self.peak_to_trough + 1.0);
        1.0 - swing * ((hour(interval) - LOWEST_AT_HOUR) / 24.0 * std::f64::consts::TAU).cos()
    }
}

fn hour(interval: u32) -> f64 {
    (f64::from(interval) + 0.5) * f64::from(INTERVAL_SECONDS) / 3600.0
}

/// One day: the spread over endpoints in each interval.
type Day = Vec<Spread>;

fn day(options: &Options, rate: f64, seed: u64) -> Day {
    let table = maglev::selector(&names::candidates(seed, options.endpoints), options.size);
    let hash = FlowHash::new(&Secret::derived(&format!("seed {seed}")));
    let mut random = Random::new(seed);
    (0..INTERVALS)
        .map(|interval| {
            let mut counts = vec![0u32; options.endpoints as usize];
            for _ in 0..arrivals(options, rate, interval, &mut random) {
                let endpoint = table.select(hash.flow(&connection(&mut random)));
                counts[usize::from(endpoint)] += 1;
            }
            Spread::of(&counts)
        })
        .collect()
}

/// How many of the possible connections come: each by a coin of its own.
fn arrivals(options: &Options, rate: f64, interval: u32, random: &mut Random) -> u32 {
    // Twice the average is the highest that any curve reaches.
    let possible = 2.0 * rate * f64::from(INTERVAL_SECONDS) * f64::from(options.endpoints);
    let threshold = (options.curve(interval) / 2.0 * 2f64.powi(64)) as u64;
    (0..possible.round() as u32).map(|_| u32::from(random.bits() < threshold)).sum()
}

fn connection(random: &mut Random) -> FlowKey {
    FlowKey {
        family: Family::V4,
        protocol: Protocol::TCP,
        source: u128::from(random.bits() as u32),
        destination: VIP,
        source_port: (PORTS.start + random.below(PORTS.end - PORTS.start)) as u16,
        destination_port: 443,
    }
}

/// Lets connections arrive and returns how they spread.
pub fn run(options: &Options) -> Result<Report, String> {
    options.check()?;
    let mut summary = Table::new([
        "connections/s per endpoint",
        "CV, %: median of the day",
        "CV, %: lowest - highest",
        "overprovision: median of the day",
        "factor < 1.2, % of the day",
    ]);
    let mut plotted = None;
    for rate in &options.rates {
        let days: Vec<Day> = (0..options.seeds).map(|seed| day(options, *rate, seed)).collect();
        summary.row(summary_row(*rate, &days));
        plotted.get_or_insert_with(|| days.into_iter().next().expect("a seed"));
    }
    summary.row(["paper (rates not given)", "6 - 7 most of the time", "-", "-", "over 60"]);
    let plotted = plotted.expect("a rate");
    Ok(Report { name: "figure-7", text: text(options, &summary, &plotted), svg: plot(&plotted) })
}

fn summary_row(rate: f64, days: &[Day]) -> [String; 5] {
    let of_days = |of: &dyn Fn(&Day) -> f64| Range::of(&days.iter().map(of).collect::<Vec<_>>());
    let variations =
        |day: &Day| Range::of(&day.iter().map(Spread::variation_percent).collect::<Vec<_>>());
    let factors = |day: &Day| Range::of(&day.iter().map(Spread::overprovision).collect::<Vec<_>>());
    let below = |day: &Day| {
        day.iter().filter(|spread| spread.overprovision() < FACTOR).count() as f64 * 100.0
            / day.len() as f64
    };
    let (lowest, highest) =
        (of_days(&|day| variations(day).min).min, of_days(&|day| variations(day).max).max);
    [
        format!("{rate}"),
        of_days(&|day| variations(day).median).show(2),
        format!("{lowest:.2} - {highest:.2}"),
        of_days(&|day| factors(day).median).show(3),
        of_days(&below).show(0),
    ]
}

fn day_average(day: &Day) -> f64 {
    day.iter().map(|spread| spread.mean).sum::<f64>() / day.len() as f64
}

fn text(options: &Options, summary: &Table, plotted: &Day) -> String {
    let Options { endpoints, size, seeds, peak_to_trough, rates } = options;
    let mut hourly =
        Table::new(["time", "average load", "standard deviation", "CV, %", "overprovision"]);
    let average = day_average(plotted);
    for interval in (0..INTERVALS).step_by(12) {
        let spread = plotted[interval as usize];
        hourly.row([
            format!("{:02}:00", interval / 12),
            format!("{:.3}", spread.mean / average),
            format!("{:.4}", spread.deviation / average),
            format!("{:.2}", spread.variation_percent()),
            format!("{:.3}", spread.overprovision()),
        ]);
    }
    let mut text = format!(
        "Figure 7: spread of load over endpoints in the course of a day\n\
         A model: {endpoints} endpoints, table of {size}, independent arrivals, highest rate {peak_to_trough} x the lowest,\n\
         intervals of 5 minutes. {seeds} days (seeds) for each rate; median (minimum - maximum) over the days.\n\
         CV: standard deviation over average of the endpoints' connections in one interval.\n\
         Overprovision: the most loaded endpoint over the average, in one interval.\n\n"
    );
    let rate = rates[0];
    let _ = write!(
        text,
        "{summary}\nOne day at {rate} connections/s per endpoint (seed 0), load over the day's average:\n\n{hourly}"
    );
    text
}

fn plot(day: &Day) -> String {
    let average = day_average(day);
    let series = |name: &str, of: &dyn Fn(&Spread) -> f64| svg::Series {
        name: name.into(),
        points: (0..).zip(day).map(|(interval, spread)| (hour(interval), of(spread))).collect(),
    };
    let frame = svg::Frame {
        title: "Figure 7: load of the endpoints over a day (5-minute intervals)",
        x: "hour of the day",
        y: "load over the day's average; factor",
    };
    svg::lines(
        &frame,
        &[
            series("average load", &|spread| spread.mean / average),
            series("standard deviation", &|spread| spread.deviation / average),
            series("overprovision factor", &Spread::overprovision),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options { endpoints: 50, size: 4099, rates: vec![1.0], peak_to_trough: 3.0, seeds: 1 }
    }

    #[test]
    fn the_curve_has_the_ratio_and_an_average_of_one() {
        let curve: Vec<f64> = (0..INTERVALS).map(|interval| options().curve(interval)).collect();
        let ends = Range::of(&curve);
        assert!((ends.max / ends.min - 3.0).abs() < 0.01);
        assert!((curve.iter().sum::<f64>() / 288.0 - 1.0).abs() < 1e-9);
        assert!(curve[48] < 0.51, "lowest at 4 o'clock");
    }

    /// With independent arrivals the counts are Poisson: CV = 1 / sqrt(mean).
    #[test]
    fn counts_scatter_as_independent_arrivals_must() {
        let day = day(&options(), 1.0, 5);
        let expected: f64 = day.iter().map(|spread| 100.0 / spread.mean.sqrt()).sum();
        let got: f64 = day.iter().map(Spread::variation_percent).sum();
        assert!((got / expected - 1.0).abs() < 0.1, "{got} instead of {expected}");
        assert!((day_average(&day) - 300.0).abs() < 3.0);
    }

    #[test]
    fn senseless_rates_are_refused_by_name() {
        let refused = run(&Options { rates: vec![0.0], ..options() }).unwrap_err();
        assert!(refused.contains("--rates 0"), "{refused}");
        assert!(run(&Options { peak_to_trough: 0.5, ..options() }).is_err());
    }
}
