//! Figure 9: load balancers added one by one, each with the same share of a core.
//!
//! In the paper each has a machine, and a switch splits the load. Here each is a forwarder
//! in a control group that limits its CPU time, with a sender of its own; all senders have
//! the same share of the load.

use std::process::id;
use std::thread;

use super::Forwarder;
use crate::machine;
use crate::report::{Report, Table};
use crate::stats::Range;
use crate::svg;
use crate::veth::{self, Flood, Load, Packets, Place, Quota, Rounds};

/// The smallest data of the paper; MP_CAPABLE needs less.
const FRAME_BYTES: usize = 86;

/// What may be varied.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Load balancers in the end
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub load_balancers: u8,
    /// Per cent of a core that each may use
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(10..=100))]
    pub quota: u32,
    /// Packets a second, of all senders together
    #[arg(long, default_value_t = 600_000, value_parser = clap::value_parser!(u32).range(1000..))]
    pub rate: u32,
    /// The program.
    #[command(flatten)]
    pub forwarder: Forwarder,
    /// How often, how long.
    #[command(flatten)]
    pub rounds: Rounds,
}

/// A load balancer and its bound.
struct Limited {
    // Ends before its group does.
    place: Place,
    _quota: Quota,
}

/// What all of them did together in a round.
struct Sum {
    offered: f64,
    forwarded: f64,
    cores: f64,
}

/// Adds one after another.
///
/// # Errors
/// Without root, the forwarder or the kernel's bounds of CPU time, or if one of both ends
/// fails.
pub fn run(options: &Options) -> Result<Report, String> {
    let rounds = &options.rounds;
    veth::check(rounds.seconds, &[&options.forwarder.program])?;
    let before = machine::load();
    let mut table = Table::new([
        "load balancers",
        "offered, Mpps",
        "forwarded, Mpps",
        "times the first",
        "paper, Mpps",
        "CPU, per cent of a core",
    ]);
    let mut line = svg::Series { name: "forwarded, median".into(), points: vec![(0.0, 0.0)] };
    let mut running = Vec::new();
    for count in 1..=options.load_balancers {
        running.push(start(options, count)?);
        let sums: Vec<Sum> =
            (0..rounds.rounds).map(|_| round(options, &running)).collect::<Result<_, _>>()?;
        let range = |of: fn(&Sum) -> f64| Range::of(&sums.iter().map(of).collect::<Vec<_>>());
        let forwarded = range(|sum| sum.forwarded);
        line.points.push((f64::from(count), forwarded.median));
        table.row([
            count.to_string(),
            range(|sum| sum.offered).show(3),
            forwarded.show(3),
            format!("{:.2}", forwarded.median / line.points[1].1),
            format!("{count}.0"),
            range(|sum| sum.cores * 100.0).show(0),
        ]);
    }
    let text = format!(
        "MPLB, figure 9: load balancers added one by one\n\
         Each with one worker and {} % of a core (a control group, periods of 10 ms); SYNs with MP_CAPABLE, version 1,\n\
         {} a second, split evenly, in frames of {FRAME_BYTES} bytes.\n\
         {}\n{table}\n\
         Paper: Mpps, of which every additional one, on a core, adds 1.\n",
        options.quota,
        options.rate,
        rounds.label(&before)
    );
    let frame = svg::Frame {
        title: "MPLB, figure 9: load balancers added one by one, each with the same part of a core",
        x: "load balancers",
        y: "Mpps",
    };
    Ok(Report { name: "mplb-figure-9", text, svg: svg::lines(&frame, &[line]) })
}

fn start(options: &Options, number: u8) -> Result<Limited, String> {
    let load = options.rounds.load(Packets::Capable, FRAME_BYTES);
    let place = options.forwarder.start(&format!("m9-{number}"), &load)?;
    let quota = Quota::new(&format!("gw-fig-{}-{number}", id()), options.quota)?;
    quota.add(place.process())?;
    Ok(Limited { place, _quota: quota })
}

/// All of them at the same time, with the same part of the load.
fn round(options: &Options, running: &[Limited]) -> Result<Sum, String> {
    let rate = options.rate / running.len() as u32;
    let load = Load { rate, ..options.rounds.load(Packets::Capable, FRAME_BYTES) };
    let floods: Vec<Result<Flood, String>> = thread::scope(|scope| {
        let send = |limited: &'_ Limited| limited.place.flood(&load);
        let threads: Vec<_> =
            running.iter().map(|limited| scope.spawn(move || send(limited))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a sender panicked")).collect()
    });
    let floods: Vec<Flood> = floods.into_iter().collect::<Result<_, _>>()?;
    let sum = |of: fn(&Flood) -> f64| floods.iter().map(of).sum();
    Ok(Sum {
        offered: sum(|flood| flood.offered_mpps),
        forwarded: sum(|flood| flood.forwarded_mpps),
        // Nanoseconds a packet times packets a microsecond are thousandths of a core.
        cores: sum(|flood| flood.cpu_ns * flood.forwarded_mpps / 1000.0),
    })
}
