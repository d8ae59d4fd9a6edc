//! `guideway-bench`: measures the cost of a packet on one core, in memory, next to the
//! machine's own costs in the same run (docs/performance.md).
//!
//! Every figure is processor time of this thread. All measurements take their samples in
//! turn, in many short rounds, so that disturbances affect all alike; medians and minima
//! are shown.

use std::error::Error;

use clap::{Parser, value_parser};
use guideway_bench::clock::Samples;
use guideway_bench::kernel_cache::{self, CacheTimes};
use guideway_bench::keys::{KEY_BACKENDS, Search};
use guideway_bench::machine::{self, Chase};
use guideway_bench::measure::{self, Measurement, Pace, Subject};
use guideway_bench::report;
use guideway_bench::setup::{Decides, Setup};
use guideway_bench::tables::Builds;
use guideway_bench::traffic::{Frames, Kind, Segment, Traffic};
use guideway_bench::veth::{self, Veth};
use plan::proto::Encap;

/// Measures what a packet costs. BENCH_REPORT=file.json also writes a report.
#[derive(Parser, Debug)]
struct Options {
    /// Flows of the measurement that is called 1 M; others in proportion
    #[arg(long, default_value_t = 1_000_000, value_parser = value_parser!(u64).range(1..=100_000_000))]
    flows: u64,
    /// Services of most measurements
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=10_000))]
    services: u32,
    /// Services of those with many
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=10_000))]
    many_services: u32,
    /// Of these, the ones that see traffic where not all do
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u32).range(1..))]
    busy_services: u32,
    /// Prefixes under which every other of the many services has a suffix
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u32).range(..=10_000))]
    prefixes: u32,
    /// Backends behind each service
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u32).range(1..=65_000))]
    backends: u32,
    /// Highest weight in the weighted pool
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(1..=1_000))]
    weight_max: u32,
    /// Backends of the tables whose building is timed
    #[arg(long, default_value_t = 1000, value_parser = value_parser!(u32).range(1..=65_000))]
    table_backends: u32,
    /// Bytes of the inner IP packet (IPv6: 60 at least)
    #[arg(long, default_value_t = 46)]
    packet_bytes: usize,
    /// Rounds; each takes one sample of every measurement
    #[arg(long, default_value_t = 25, value_parser = value_parser!(u32).range(1..))]
    rounds: u32,
    /// Passes over all frames in a sample
    #[arg(long, default_value_t = 16, value_parser = value_parser!(u32).range(1..))]
    passes: u32,
    /// Frames of packet memory that are forwarded in turn
    #[arg(long, default_value_t = 1024, value_parser = value_parser!(u32).range(1..=1_000_000))]
    frames: u32,
    /// Rounds over veth beside a bare reflector (root); 0: none
    #[arg(long, default_value_t = 25)]
    veth_rounds: u32,
    /// Only measurements whose name has this in it
    #[arg(long, default_value = "")]
    only: String,
    /// Leave out what the machine itself costs (for profilers)
    #[arg(long)]
    skip_machine: bool,
}

impl Options {
    fn setup(&self, flows: u64) -> Setup {
        Setup {
            services: self.services,
            busy_services: self.services,
            prefixes: 0,
            pools: 1,
            backends: self.backends,
            weight_max: 1,
            table_size: 0,
            flows: flows.max(1),
            connections: flows.max(1 << 16),
            packet_bytes: self.packet_bytes,
            ipv6: false,
            encap: Encap::Gre,
            decides: Decides::Tracking,
        }
    }

    fn subjects(&self) -> Vec<Subject> {
        [self.tracked(), self.stateless(), self.other_packets(), self.many_services()].concat()
    }

    /// Most packets: IPv4 in GRE, of services with a connection table.
    fn tracked(&self) -> Vec<Subject> {
        let flows = self.flows;
        let hash_only = Setup { decides: Decides::Maglev, ..self.setup(flows) };
        let measured_rate = |name, flows, kind| Subject {
            pace: Pace::Measured,
            ..subject(name, self.setup(flows), kind, None)
        };
        vec![
            data("one_flow", self.setup(1), Some(18.0)),
            data("flows_64k", self.setup(flows / 16), None),
            data("flows_1m", self.setup(flows), Some(26.0)),
            data("flows_8m", self.setup(flows * 8), Some(37.0)),
            subject("syn_insert", self.setup(flows), Kind::Syn, Some(28.0)),
            data("hash_only_1m", hash_only, Some(25.5)),
            measured_rate("flows_1m_measured_rate", flows, Kind::Data),
            measured_rate("flows_8m_measured_rate", flows * 8, Kind::Data),
            measured_rate("syn_insert_measured_rate", flows, Kind::Syn),
        ]
    }

    /// Of services without one.
    fn stateless(&self) -> Vec<Subject> {
        let flows = self.flows;
        let stateless = |flows| Setup {
            decides: Decides::Buckets,
            encap: Encap::Geneve,
            connections: 1 << 16,
            ..self.setup(flows)
        };
        let quic = |encrypted| Setup {
            decides: Decides::ConnectionIds { encrypted },
            packet_bytes: self.packet_bytes.max(46),
            ..stateless(1)
        };
        let multipath = Setup {
            decides: Decides::Multipath,
            packet_bytes: self.packet_bytes.max(20 + Segment::Join.header_bytes()),
            ..stateless(flows)
        };
        let mptcp = |name, segment, goal_ns| {
            subject(name, multipath.clone(), Kind::Multipath(segment), goal_ns)
        };
        vec![
            data("stateless_one_flow", stateless(1), None),
            data("stateless_8m", stateless(flows * 8), None),
            data("quic_plain", quic(false), None),
            data("quic_encrypted", quic(true), None),
            mptcp("mptcp_syn_v0", Segment::SynV0, Some(100.0)),
            mptcp("mptcp_syn_v1", Segment::SynV1, Some(100.0)),
            mptcp("mptcp_join", Segment::Join, None),
            mptcp("mptcp_timestamp", Segment::Timestamp, None),
        ]
    }

    /// Of other families, encapsulations and weights, and in pieces.
    fn other_packets(&self) -> Vec<Subject> {
        let flows = self.flows;
        let v6 = |flows| Setup {
            ipv6: true,
            packet_bytes: self.packet_bytes.max(60),
            ..self.setup(flows)
        };
        let weighted = Setup { weight_max: self.weight_max, ..self.setup(flows) };
        vec![
            data("ipv6_one_flow", v6(1), Some(22.5)),
            data("ipv6_1m", v6(flows), None),
            data("geneve_one_flow", Setup { encap: Encap::Geneve, ..self.setup(1) }, None),
            data("l2_one_flow", Setup { encap: Encap::L2, ..self.setup(1) }, None),
            data("gue_1m", Setup { encap: Encap::Gue, ..self.setup(flows) }, None),
            data("weighted_1m", weighted, None),
            subject("fragments_64k", self.setup(flows / 16), Kind::Fragments, None),
        ]
    }

    fn many_services(&self) -> Vec<Subject> {
        let many = Setup {
            services: self.many_services,
            busy_services: self.many_services,
            prefixes: self.prefixes,
            ..self.setup(self.flows)
        };
        let some_busy = Setup { busy_services: self.busy_services, ..many.clone() };
        vec![
            data("services_many_some_busy_1m", some_busy, None),
            data("services_many_all_busy_1m", many, None),
        ]
    }
}

fn subject(name: &'static str, setup: Setup, kind: Kind, goal_ns: Option<f64>) -> Subject {
    Subject { name, setup, kind, pace: Pace::Fixed, goal_ns }
}

fn data(name: &'static str, setup: Setup, goal_ns: Option<f64>) -> Subject {
    subject(name, setup, Kind::Data, goal_ns)
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let mut frames = Frames::new(options.frames as usize)?;
    let mut measurements: Vec<Measurement> = options
        .subjects()
        .into_iter()
        .filter(|subject| subject.name.contains(&options.only))
        .map(|subject| Measurement::new(subject, &mut frames))
        .collect::<Result<_, _>>()?;
    let mut floor = (Samples::default(), Traffic::new(&options.setup(options.flows), Kind::Data)?);
    let mut builds = [(65_537, 0.9), (655_373, 12.0)]
        .map(|(size, goal_ms)| Builds::new(size, Some(goal_ms), options.table_backends));
    let mut searches = [Search::new("v0"), Search::new("v1")];
    let mut machine = if options.skip_machine { Vec::new() } else { machine_samples() };
    for _ in 0..options.rounds {
        floor.0.push(measure::floor_ns(&mut frames, &mut floor.1));
        machine.iter_mut().for_each(MachineSamples::sample);
        builds.iter_mut().for_each(Builds::sample);
        searches.iter_mut().for_each(Search::sample);
        for measurement in &mut measurements {
            measurement.sample(&mut frames, options.passes);
        }
    }
    print(&measurements, &floor.0, &machine, &builds);
    print_multipath(&measurements, &searches);
    let cache = options.kernel_cache();
    let veth = options.over_veth();
    match std::env::var_os("BENCH_REPORT") {
        Some(path) => report::write(
            path.as_ref(),
            &report::report(
                &measurements,
                &floor.0,
                &builds,
                &searches,
                cache.as_ref(),
                veth.as_ref(),
            ),
        ),
        None => Ok(()),
    }
}

impl Options {
    /// Measures and prints; None, and a line that says why, if it cannot be.
    fn kernel_cache(&self) -> Option<CacheTimes> {
        if !"cache_ns".contains(&self.only) {
            return None;
        }
        match kernel_cache::measure(self.rounds) {
            Ok(times) => {
                for (name, samples) in &times {
                    println!("cache_ns, {name}: {:.1}", samples.median());
                }
                Some(times)
            }
            Err(why) => {
                println!("cache_ns: not measured: {why}");
                None
            }
        }
    }

    /// Measures and prints; None, and a line that says why, if it cannot be.
    fn over_veth(&self) -> Option<Veth> {
        if self.veth_rounds == 0 || !"veth_ratio_to_reflector".contains(&self.only) {
            return None;
        }
        match veth::measure(self.veth_rounds) {
            Ok(veth) => {
                print_veth(&veth);
                Some(veth)
            }
            Err(why) => {
                println!("veth_ratio_to_reflector: not measured: {why}");
                None
            }
        }
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
    let row = |name: &str, ns: &Samples, goal: Option<f64>, note: &str| {
        let goal = goal.map_or_else(String::new, |goal| goal.to_string());
        println!("{name:<38} {:>8.1} {:>8.1} {goal:>6}  {note}", ns.median(), ns.best());
    };
    println!("{:<38} {:>8} {:>8} {:>6}", "nanoseconds of processor time", "median", "best", "goal");
    row("floor: a bare loop over the frames", floor, None, "");
    machine.iter().for_each(|samples| row(&samples.name, &samples.ns, None, ""));
    for measurement in measurements {
        let Subject { name, goal_ns, .. } = measurement.subject;
        row(name, &measurement.ns, goal_ns, &measurement.check());
    }
    if let Some((median, of_bests)) = report::services_ratio(measurements) {
        println!(
            "{:<38} {median:>8.3} {of_bests:>8.3} {:>6}",
            "many services, some busy, to one", 1.2
        );
    }
    println!("{:<38} {:>8} {:>8} {:>6}", "milliseconds", "median", "best", "goal");
    for build in builds {
        println!(
            "{:<38} {:>8.2} {:>8.2} {:>6}",
            format!("table of {} entries", build.size),
            build.ms.median(),
            build.ms.best(),
            build.goal_ms.map_or_else(String::new, |goal| goal.to_string())
        );
    }
}

fn print_multipath(measurements: &[Measurement], searches: &[Search]) {
    for (name, goal) in report::MULTIPATH_GOALS {
        if let Some((median, of_bests)) = report::ratio(measurements, name, "stateless_8m") {
            println!(
                "{:<38} {median:>8.3} {of_bests:>8.3} {goal:>6}",
                format!("{name} to stateless_8m")
            );
        }
    }
    println!("{:<38} {:>8} {:>8}", "microseconds", "median", "best");
    for Search { name, us } in searches {
        println!(
            "{:<38} {:>8.1} {:>8.1}  one of {KEY_BACKENDS} backends; the paper: 2,000",
            format!("a key by brute force, {name}"),
            us.median(),
            us.best()
        );
    }
}

fn print_veth(veth: &Veth) {
    let [p50, p90, p99, p999] = veth::PERCENTILES;
    println!(
        "{:<38} {:>8} {:>8} {p50:>8} {p90:>8} {p99:>8} {p999:>8}",
        "over veth, latency in us", "Mpps", "CPU ns"
    );
    for subject in &veth.subjects {
        let [p50, p90, p99, p999] = subject.latency_us;
        let (name, mpps, cpu_ns) = (&subject.name, subject.mpps, subject.machine_cpu_ns);
        println!(
            "{name:<38} {mpps:>8.2} {cpu_ns:>8.0} {p50:>8.1} {p90:>8.1} {p99:>8.1} {p999:>8.1}"
        );
    }
    for (name, values) in &veth.more {
        println!("{name}: {values}");
    }
    println!(
        "veth_ratio_to_reflector: {:.3} by rate, {:.3} by processor time; goal 0.95",
        veth.ratio, veth.cpu_ratio
    );
}
