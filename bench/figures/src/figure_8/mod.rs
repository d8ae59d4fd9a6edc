//! Figure 8: throughput with and without kernel bypass, and how close the forwarder comes
//! to a program that only sends frames back.
//!
//! Paper 5.2.1: minimum-sized UDP packets from many ports, throughput by number of packet
//! threads, through the Linux stack and past it. Here both ends are in namespaces of one
//! machine, with a veth pair as the cable:
//!
//! ```text
//!  sender ══ veth, a queue per worker ══ forwarder (af_packet | af_xdp, without a kernel cache and with)
//!                                        or reflector (af_xdp | xdp | tc)
//!         ◄══════ what comes back is counted at the sender's interface
//! ```
//!
//! They alternate, so that other load on the machine affects all alike. XDP programs run in
//! the sender's time, so the processor time of the whole machine is counted, too. Over veth
//! nothing is zero-copy: an allocation and a copy per packet in the kernel in each
//! direction cost far more than the forwarder. If there are only as many cores as workers
//! and sender, they share them.

mod driver;
mod short;
mod subject;

use std::path::PathBuf;

use guideway_bench::report::write;
use serde_json::{Value, json};

use crate::machine;
use crate::report::{Report, Table};
use crate::stats::Range;
use crate::svg;
use crate::traffic::FRAME_BYTES;
use crate::veth::{self, Load, Mode, Packets, Place, Rounds};
use subject::Subject;

/// What may be varied.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The forwarder
    #[arg(long, default_value = "bin/guideway-forwarder")]
    pub forwarder: PathBuf,
    /// The reflector (cargo build --release -p nic --example reflector)
    #[arg(long, default_value = "target/release/examples/reflector")]
    pub reflector: PathBuf,
    /// The sender of what a driver gives (cargo build --release -p nic --example live_sender)
    #[arg(long, default_value = "target/release/examples/live_sender")]
    pub live_sender: PathBuf,
    /// Numbers of workers; the ratio to the reflector is that of the first
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: Vec<u16>,
    /// How often, how long.
    #[command(flatten)]
    pub rounds: Rounds,
    /// Write the figures to this file as JSON as well
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// What one subject did.
#[derive(Debug, Default)]
struct Measured {
    forwarded_mpps: Vec<f64>,
    offered_mpps: Vec<f64>,
    /// CPU time of the subject for a packet, system calls included.
    cpu_ns: Vec<f64>,
    /// That of the whole machine.
    machine_cpu_ns: Vec<f64>,
    microseconds: Vec<f64>,
    lost: u64,
}

impl Measured {
    fn percentile(&self, of: f64) -> f64 {
        veth::percentile(&self.microseconds, of)
    }
}

/// Lets all of them forward, with one worker and more.
pub fn run(options: &Options) -> Result<Report, String> {
    let Options { forwarder, reflector, live_sender, .. } = options;
    veth::check(options.rounds.seconds, &[forwarder, reflector, live_sender])?;
    let mut results = Vec::new();
    for workers in &options.workers {
        results.push((*workers, measure(options, *workers)?));
    }
    let by_driver = driver::measure(options)?;
    let short = short::measure(options)?;
    if let Some(file) = &options.json {
        let mut summary = summary(&results);
        summary["driver"] = driver::summary(&by_driver);
        let paths = summary["driver"]["kernel_path_ns"].as_object_mut();
        paths.expect("they are there").extend(short::summary(&short));
        write(file, &summary).map_err(|error| error.to_string())?;
    }
    let text = format!(
        "{}\n{}\n{}",
        text(options, &results),
        driver::text(&by_driver),
        short::text(&short)
    );
    Ok(Report { name: "figure-8", text, svg: plot(&results) })
}

/// By subject, in the order of [`Subject::ALL`].
type Results = [Measured; Subject::ALL.len()];

/// All of them are up at the same time, each at a cable of its own, and sleep
/// while it is not their turn: turns can be short, and what else the machine
/// does hits all alike.
fn measure(options: &Options, workers: u16) -> Result<Results, String> {
    let mut places = Vec::new();
    for subject in Subject::ALL {
        let place = start(options, subject, workers);
        places.push(place.map_err(|error| format!("{}: {error}", subject.name()))?);
    }
    let mut results = Results::default();
    for _ in 0..options.rounds.rounds {
        for (place, measured) in places.iter().zip(&mut results) {
            measured.add(options, place)?;
        }
    }
    Ok(results)
}

fn load(options: &Options) -> Load {
    options.rounds.load(Packets::Udp, FRAME_BYTES)
}

fn start(options: &Options, subject: Subject, workers: u16) -> Result<Place, String> {
    let place = subject.place(options, "", workers, &load(options))?;
    if subject.has_cache() {
        // Not all of a batch's new flows enter it at once.
        place.flood(&Load { seconds: WARM_UP_SECONDS, ..load(options) })?;
    }
    Ok(place)
}

/// By then nearly all connections are in the kernel flow cache.
const WARM_UP_SECONDS: f64 = 3.0;

impl Measured {
    fn add(&mut self, options: &Options, place: &Place) -> Result<(), String> {
        let load = load(options);
        let flood = place.flood(&load)?;
        self.forwarded_mpps.push(flood.forwarded_mpps);
        self.offered_mpps.push(flood.offered_mpps);
        self.cpu_ns.push(flood.cpu_ns);
        self.machine_cpu_ns.push(flood.machine_cpu_ns);
        let answer = place.send(&load, Mode::Ping)?;
        let times = veth::microseconds(&answer);
        self.lost += answer["sent"].as_u64().unwrap_or(0) - times.len() as u64;
        self.microseconds.extend(times);
        Ok(())
    }
}

/// The forwarder's rate over the reflector's, both past the kernel, round by
/// round.
fn ratio(results: &Results) -> Range {
    let [forwarder, reflector, ..] = results;
    quotients(&forwarder.forwarded_mpps, &reflector.forwarded_mpps)
}

/// The same by CPU time, which does not depend on what else runs on the cores:
/// what the reflector takes for a packet over what the forwarder takes.
fn cpu_ratio(results: &Results) -> Range {
    let [forwarder, reflector, ..] = results;
    quotients(&reflector.cpu_ns, &forwarder.cpu_ns)
}

fn quotients(above: &[f64], below: &[f64]) -> Range {
    Range::of(&above.iter().zip(below).map(|(above, below)| above / below).collect::<Vec<_>>())
}

fn summary(results: &[(u16, Results)]) -> Value {
    let of_subject = |subject: &Subject, measured: &Measured| {
        json!({
            "subject": subject.name(),
            "forwarded_mpps": Range::of(&measured.forwarded_mpps).median,
            "offered_mpps": Range::of(&measured.offered_mpps).median,
            "cpu_ns_per_packet": Range::of(&measured.cpu_ns).median,
            "machine_cpu_ns_per_packet": Range::of(&measured.machine_cpu_ns).median,
            "latency_us": {
                "p50": measured.percentile(50.0),
                "p90": measured.percentile(90.0),
                "p99": measured.percentile(99.0),
                "p999": measured.percentile(99.9),
            },
        })
    };
    let of_workers = |(workers, results): &(u16, Results)| {
        let subjects: Vec<Value> = Subject::ALL
            .iter()
            .zip(results)
            .map(|(subject, measured)| of_subject(subject, measured))
            .collect();
        json!({
            "workers": workers,
            "ratio_to_reflector": ratio(results).median,
            "cpu_ratio_to_reflector": cpu_ratio(results).median,
            "subjects": subjects,
        })
    };
    json!({
        "machine": machine::label(),
        "veth_ratio_to_reflector": results.first().map(|(_, results)| ratio(results).median),
        "by_workers": results.iter().map(of_workers).collect::<Vec<_>>(),
    })
}

fn text(options: &Options, results: &[(u16, Results)]) -> String {
    let mut rates = Table::new([
        "workers, subject",
        "offered, Mpps",
        "forwarded, Mpps",
        "of af_xdp",
        "paper",
        "CPU ns per packet",
        "the machine's",
    ]);
    let mut latencies =
        Table::new(["workers, subject", "p50, us", "p90, us", "p99, us", "p99.9, us", "lost"]);
    let mut ratios = Table::new(["workers", "af_xdp over bare reflector: rate", "by CPU time"]);
    for (workers, results) in results {
        let bypass = Range::of(&results[0].forwarded_mpps).median;
        for (subject, measured) in Subject::ALL.into_iter().zip(results) {
            let label = format!("{workers}, {}", subject.name());
            let forwarded = Range::of(&measured.forwarded_mpps);
            rates.row([
                label.clone(),
                Range::of(&measured.offered_mpps).show(2),
                forwarded.show(2),
                format!("{:.0} %", forwarded.median / bypass * 100.0),
                if subject == Subject::AfPacket { "< 30 %" } else { "" }.to_owned(),
                Range::of(&measured.cpu_ns).show(0),
                Range::of(&measured.machine_cpu_ns).show(0),
            ]);
            let percentile = |of| format!("{:.1}", measured.percentile(of));
            let [p50, p90, p99, p999] = [50.0, 90.0, 99.0, 99.9].map(percentile);
            latencies.row([label, p50, p90, p99, p999, measured.lost.to_string()]);
        }
        ratios.row([workers.to_string(), ratio(results).show(3), cpu_ratio(results).show(3)]);
    }
    format!(
        "Figure 8: throughput with and without kernel bypass, over veth\n\
         UDP in frames of 60 bytes, {} connections; median (minimum - maximum) of {} rounds of {} s,\n\
         in which all take turns. Not pinned; sender and workers share the machine's cores. CPU time is that\n\
         of the subject's threads, and that of the whole machine: XDP programs run in the sender's time.\n\
         Machine: {}\n\n{rates}\n\
         Round by round:\n\n{ratios}\n\
         There and back at low load, one packet at a time, veth and both ends' wake-ups included:\n\n{latencies}\n\
         Paper: with the Linux stack \"less than 30% that of kernel bypass\"; with it bypassed, more packet\n\
         threads forward more until a NIC of 10 Gbit/s is full at 5. It had a core for each of them.\n",
        options.rounds.connections,
        options.rounds.rounds,
        options.rounds.seconds,
        machine::label()
    )
}

fn plot(results: &[(u16, Results)]) -> String {
    let bars: Vec<svg::Bar> = Subject::ALL
        .into_iter()
        .enumerate()
        .flat_map(|(index, subject)| {
            results.iter().map(move |(workers, results)| svg::Bar {
                label: format!("{workers} workers"),
                group: subject.name().into(),
                low: 0.0,
                high: Range::of(&results[index].forwarded_mpps).median,
            })
        })
        .collect();
    let frame = svg::Frame {
        title: "Figure 8: with and without kernel bypass, over veth",
        x: "",
        y: "Mpps",
    };
    svg::bars(&frame, &bars)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rates: &[f64]) -> Measured {
        Measured {
            forwarded_mpps: rates.to_vec(),
            offered_mpps: rates.to_vec(),
            cpu_ns: rates.iter().map(|rate| 1000.0 / rate).collect(),
            machine_cpu_ns: rates.iter().map(|rate| 2000.0 / rate).collect(),
            ..Measured::default()
        }
    }

    #[test]
    fn the_ratio_compares_within_a_round() {
        let mut results = Subject::ALL.map(|_| measured(&[1.0, 1.0, 1.0]));
        results[0] = measured(&[1.0, 4.0, 2.0]);
        results[1] = measured(&[1.0, 5.0, 2.5]);
        assert_eq!(ratio(&results), Range { median: 0.8, min: 0.8, max: 1.0 });
        assert_eq!(cpu_ratio(&results).median, 0.8);
        assert_eq!(summary(&[(1, results)])["veth_ratio_to_reflector"], 0.8);
    }

    #[test]
    fn percentiles_of_a_hundred_and_one_times() {
        let times = Measured {
            microseconds: (0..=100).rev().map(f64::from).collect(),
            ..Measured::default()
        };
        assert_eq!(
            (times.percentile(50.0), times.percentile(99.0), times.percentile(100.0)),
            (50.0, 99.0, 100.0)
        );
    }
}
