//! `guideway-bench`: what a packet costs on one core, in memory, beside what
//! the machine itself costs in the same run (DESIGN section 10).
//!
//! Every figure is processor time of this thread. All measurements take
//! their samples in turn, in many short rounds, so that what disturbs the
//! machine disturbs all alike; medians and minima are shown.

mod clock;
mod machine;
mod measure;
mod random;
mod report;
mod setup;
mod tables;
mod traffic;

use std::error::Error;

use clap::Parser;
use plan::proto::Encap;

use crate::clock::Samples;
use crate::machine::Chase;
use crate::measure::Measurement;
use crate::setup::Setup;
use crate::tables::Builds;
use crate::traffic::{Frames, Kind, Traffic};

/// Measures what a packet costs. BENCH_REPORT=file.json also writes a report.
#[derive(Parser, Debug)]
struct Options {
    /// Flows of the measurement that is called 1 M; others in proportion
    #[arg(long, default_value_t = 1_000_000)]
    flows: u64,
    /// Services of most measurements
    #[arg(long, default_value_t = 1)]
    services: u32,
    /// Backends behind each service
    #[arg(long, default_value_t = 100)]
    backends: u32,
    /// Backends of the tables whose building is timed
    #[arg(long, default_value_t = 1000)]
    table_backends: u32,
    /// Bytes of the inner IP packet (a TCP header must fit)
    #[arg(long, default_value_t = 46)]
    packet_bytes: usize,
    /// Rounds; each takes one sample of every measurement
    #[arg(long, default_value_t = 25)]
    rounds: u32,
    /// Passes over all frames in a sample
    #[arg(long, default_value_t = 16)]
    passes: u32,
    /// Frames of packet memory that are forwarded in turn
    #[arg(long, default_value_t = 1024)]
    frames: usize,
    /// Only measurements whose name has this in it
    #[arg(long, default_value = "")]
    only: String,
    /// Leave out what the machine itself costs (for profilers)
    #[arg(long)]
    skip_machine: bool,
}

impl Options {
    fn setup(&self) -> Setup {
        Setup {
            services: self.services,
            backends: self.backends,
            weight_max: 1,
            flows: self.flows,
            connections: self.flows,
            packet_bytes: self.packet_bytes,
            ipv6: false,
            encap: Encap::Gre,
            hash_only: false,
        }
    }

    fn with_flows(&self, flows: u64) -> Setup {
        Setup { flows: flows.max(1), connections: flows.max(1 << 16), ..self.setup() }
    }

    /// Name, set-up and kind of packets of every measurement.
    fn measurements(&self) -> Vec<(&'static str, Setup, Kind)> {
        let v6_bytes = self.packet_bytes.max(60);
        let one = || self.with_flows(1);
        vec![
            ("one_flow", one(), Kind::Data),
            ("flows_64k", self.with_flows(self.flows / 16), Kind::Data),
            ("flows_1m", self.with_flows(self.flows), Kind::Data),
            ("flows_8m", self.with_flows(self.flows * 8), Kind::Data),
            ("syn_insert", self.with_flows(self.flows), Kind::Syn),
            ("hash_only_1m", Setup { hash_only: true, ..self.with_flows(self.flows) }, Kind::Data),
            ("ipv6_one_flow", Setup { ipv6: true, packet_bytes: v6_bytes, ..one() }, Kind::Data),
            (
                "ipv6_1m",
                Setup { ipv6: true, packet_bytes: v6_bytes, ..self.with_flows(self.flows) },
                Kind::Data,
            ),
            ("gue_1m", Setup { encap: Encap::Gue, ..self.with_flows(self.flows) }, Kind::Data),
            ("weighted_1m", Setup { weight_max: 10, ..self.with_flows(self.flows) }, Kind::Data),
            (
                "services_10k_1m",
                Setup { services: 10_000, ..self.with_flows(self.flows) },
                Kind::Data,
            ),
        ]
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let mut frames = Frames::new(options.frames);
    let mut measurements: Vec<Measurement> = options
        .measurements()
        .into_iter()
        .filter(|(name, ..)| name.contains(&options.only))
        .map(|(name, setup, kind)| Measurement::new(name, setup, kind, &mut frames))
        .collect();
    let mut floor = (Samples::default(), Traffic::new(&options.setup(), Kind::Data));
    let mut builds =
        [Builds::new(65_537, options.table_backends), Builds::new(655_373, options.table_backends)];
    let mut machine = if options.skip_machine { Vec::new() } else { machine_samples() };
    for _ in 0..options.rounds {
        floor.0.push(measure::floor_ns(&mut frames, &mut floor.1));
        machine.iter_mut().for_each(MachineSamples::sample);
        builds.iter_mut().for_each(Builds::sample);
        for measurement in &mut measurements {
            measurement.sample(&mut frames, options.passes);
        }
    }
    print(&measurements, &floor.0, &machine, &builds);
    match std::env::var_os("BENCH_REPORT") {
        Some(path) => report::write(path.as_ref(), &measurements, &floor.0, &builds),
        None => Ok(()),
    }
}

struct MachineSamples {
    name: String,
    ns: Samples,
    take: Box<dyn FnMut() -> f64>,
}

impl MachineSamples {
    fn sample(&mut self) {
        self.ns.push((self.take)());
    }
}

fn machine_samples() -> Vec<MachineSamples> {
    let (hash, mut blocks) = (machine::hash(), [Default::default(); wire::BATCH_MAX]);
    let aes: Box<dyn FnMut() -> f64> = Box::new(move || machine::aes_ns(&mut blocks, &hash));
    let mut all = vec![MachineSamples {
        name: "AES per IPv4 tuple, a batch at once".into(),
        ns: Samples::default(),
        take: aes,
    }];
    for megabytes in [4usize, 64, 1024] {
        let mut chase = Chase::new(megabytes << 20);
        let take: Box<dyn FnMut() -> f64> = Box::new(move || chase.load_ns());
        all.push(MachineSamples {
            name: format!("dependent load in {megabytes} MB"),
            ns: Samples::default(),
            take,
        });
    }
    all
}

fn print(
    measurements: &[Measurement],
    floor: &Samples,
    machine: &[MachineSamples],
    builds: &[Builds],
) {
    let row = |name: &str, ns: &Samples, note: &str| {
        println!("{name:<38} {:>8.1} {:>8.1}  {note}", ns.median(), ns.best())
    };
    println!("{:<38} {:>8} {:>8}", "nanoseconds", "median", "best");
    row("floor: a bare loop over the frames", floor, "");
    machine.iter().for_each(|samples| row(&samples.name, &samples.ns, ""));
    for measurement in measurements {
        row(measurement.name, &measurement.ns, &measurement.check());
    }
    println!("{:<38} {:>8} {:>8}", "milliseconds", "median", "best");
    for build in builds {
        println!(
            "{:<38} {:>8.2} {:>8.2}",
            format!("table of {} entries", build.size),
            build.ms.median(),
            build.ms.best()
        );
    }
}
