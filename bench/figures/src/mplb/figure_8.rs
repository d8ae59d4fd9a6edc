//! Figure 8: latency by load.
//!
//! The paper pings between two idle machines while others flood. Here the sender measures
//! the round-trip time of some packets of the load itself.

use super::Forwarder;
use crate::machine;
use crate::report::{Report, Table};
use crate::stats::Range;
use crate::svg;
use crate::veth::{self, Load, Mode, Packets, Place, Rounds};

/// MP_CAPABLE, with room for a number at the end.
const FRAME_BYTES: usize = 86;

/// What may be varied.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Loads, in per cent of the rate that comes back of a flood
    #[arg(long, value_delimiter = ',', default_value = "10,25,50,75,90", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub loads: Vec<u32>,
    /// The program.
    #[command(flatten)]
    pub forwarder: Forwarder,
    /// How often, how long.
    #[command(flatten)]
    pub rounds: Rounds,
}

#[derive(Default)]
struct Measured {
    offered: Vec<f64>,
    lost_percent: Vec<f64>,
    microseconds: Vec<f64>,
}

impl Measured {
    fn add(&mut self, place: &Place, load: &Load) -> Result<f64, String> {
        let answer = place.send(load, Mode::Probe)?;
        let number = |name: &str| answer[name].as_f64().unwrap_or(f64::NAN);
        let (sent, received) = (number("sent"), number("received"));
        self.offered.push(sent / number("seconds") / 1e6);
        self.lost_percent.push((1.0 - received / sent) * 100.0);
        self.microseconds.extend(veth::microseconds(&answer));
        Ok(received / number("seconds"))
    }
}

/// Times packets at each load in turn, and among as many as go.
///
/// # Errors
/// Without root or the forwarder, or if one of both ends fails.
pub fn run(options: &Options) -> Result<Report, String> {
    let rounds = &options.rounds;
    veth::check(rounds.seconds, &[&options.forwarder.program])?;
    let before = machine::load();
    let flood = rounds.load(Packets::Capable, FRAME_BYTES);
    let place = options.forwarder.start("m8", &flood)?;
    let mut warm_up = Measured::default();
    let capacities: Vec<f64> =
        (0..5).map(|_| warm_up.add(&place, &flood)).collect::<Result<_, _>>()?;
    let capacity = Range::of(&capacities).median;
    let mut loads: Vec<(String, Load, Measured)> = options
        .loads
        .iter()
        .map(|percent| {
            let rate = (capacity * f64::from(*percent) / 100.0).max(1.0) as u32;
            (format!("{percent} %"), Load { rate, ..flood }, Measured::default())
        })
        .collect();
    loads.push(("as many as go".into(), flood, Measured::default()));
    for _ in 0..rounds.rounds {
        for (_, load, measured) in &mut loads {
            measured.add(&place, load)?;
        }
    }
    let frame = svg::Frame {
        title: "MPLB, figure 8: latency by load, over veth (part of the packets within)",
        x: "us, there and back, up to the 99th percentile",
        y: "%",
    };
    let lines: Vec<svg::Series> =
        loads.iter().map(|(name, _, measured)| cdf(name, measured)).collect();
    let text = text(options, &before, capacity, &loads);
    Ok(Report { name: "mplb-figure-8", text, svg: svg::lines(&frame, &lines) })
}

fn cdf(name: &str, measured: &Measured) -> svg::Series {
    let point = |percent| (veth::percentile(&measured.microseconds, percent), percent);
    let points = (0..=99).map(f64::from).map(point).filter(|(x, _)| !x.is_nan()).collect();
    svg::Series { name: name.to_owned(), points }
}

fn text(
    options: &Options,
    before: &str,
    capacity: f64,
    loads: &[(String, Load, Measured)],
) -> String {
    let mut table = Table::new([
        "load",
        "offered, Mpps",
        "lost, %",
        "p50, us",
        "p90, us",
        "p99, us",
        "best, us",
        "paper",
    ]);
    for (name, load, measured) in loads {
        let percentile = |of| format!("{:.0}", veth::percentile(&measured.microseconds, of));
        let [p50, p90, p99, best] = [50.0, 90.0, 99.0, 0.0].map(percentile);
        table.row([
            name.clone(),
            Range::of(&measured.offered).show(3),
            Range::of(&measured.lost_percent).show(1),
            p50,
            p90,
            p99,
            best,
            if load.rate == 0 { "3 to 4 ms, 14 % lost" } else { "< 500 us" }.to_owned(),
        ]);
    }
    format!(
        "MPLB, figure 8: latency by load\n\
         SYNs with MP_CAPABLE, version 1, in frames of {FRAME_BYTES} bytes; one worker. One packet in a millisecond is\n\
         timed, there and back. 100 % are {:.3} Mpps: what came back of a flood, median of 5 before.\n\
         {}\n{table}\n\
         Paper: median and worst latencies \"stay below 0.5ms\" as long as the CPU is not fully utilized.\n",
        capacity / 1e6,
        options.rounds.label(before)
    )
}
