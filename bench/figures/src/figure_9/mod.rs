//! Figure 9: throughput by type of TCP packets.
//!
//! Paper 5.2.2: SYN (a new five-tuple in each packet: select and remember), non-SYN (many
//! connections, tracked) and constant five-tuple (one connection, in the cache). Here
//! without a NIC: frames are in memory and go through `Datapath::forward_batch`, so the
//! result is the limit of a packet thread. Each worker has its own table, as in the
//! forwarder.
//!
//! The loop around it (putting 64 frames in and taking them out) is measured alternately
//! and subtracted. CPU time is measured, so waiting for a core on a busy machine does not
//! count.

mod worker;

use std::sync::Barrier;
use std::thread;

use crate::machine;
use crate::report::{Report, Table};
use crate::stats::Range;
use crate::svg;
use crate::traffic::shuffled;
use worker::Worker;

/// What may be varied.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Workers: 1 to this many [default: as many as there are cores]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: Option<u16>,
    /// Connections of the non-SYN type, for each worker
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
    pub connections: u32,
    /// Connections that each worker's table is made for
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=64_000_000))]
    pub connections_max: u64,
    /// Backends
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub backends: u32,
    /// Rounds, with and without forwarding in turns
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Packets of a round
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u32).range(64..))]
    pub packets: u32,
}

/// A type of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Each packet opens a connection.
    Syn,
    /// Packets of many connections in no order.
    NonSyn,
    /// Packets of one connection.
    Constant,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Syn, Kind::NonSyn, Kind::Constant];

    /// The paper's name.
    fn name(self) -> &'static str {
        match self {
            Kind::Syn => "SYN",
            Kind::NonSyn => "non-SYN",
            Kind::Constant => "constant 5-tuple",
        }
    }

    /// What its section 5.2.2 says.
    fn paper(self) -> &'static str {
        match self {
            Kind::Syn => "6 threads saturate",
            Kind::NonSyn | Kind::Constant => "5 threads saturate",
        }
    }

    /// The connection of the packet with that number.
    #[inline]
    fn connection(self, packet: u64, connections: u32) -> u32 {
        match self {
            Kind::Syn => packet as u32,
            Kind::NonSyn => shuffled(packet, connections),
            Kind::Constant => 0,
        }
    }
}

/// What one worker took for a packet, in nanoseconds of CPU time.
#[derive(Debug, Clone, Copy)]
struct Cost {
    whole: f64,
    floor: f64,
}

impl Cost {
    fn forwarding(self) -> f64 {
        self.whole - self.floor
    }
}

/// Forwards in memory, with one worker and more.
pub fn run(options: &Options) -> Result<Report, String> {
    let workers_max = options.workers.map_or_else(machine::cores, usize::from);
    let mut table = Table::new([
        "packets, workers",
        "ns per packet",
        "of it the loop",
        "forwarding",
        "Mpps of forwarding",
        "paper (whole machine)",
    ]);
    let mut lines = Vec::new();
    for kind in Kind::ALL {
        let mut line = svg::Series { name: kind.name().into(), points: vec![(0.0, 0.0)] };
        for workers in 1..=workers_max {
            let costs = measure(options, kind, workers)?;
            let mean =
                |of: fn(&Cost) -> f64| costs.iter().map(of).sum::<f64>() / costs.len() as f64;
            // Each worker does what it can: rates add up, not times.
            let mpps: f64 = costs.iter().map(|cost| 1000.0 / cost.forwarding()).sum();
            table.row([
                format!("{}, {workers}", kind.name()),
                format!("{:.1}", mean(|cost| cost.whole)),
                format!("{:.1}", mean(|cost| cost.floor)),
                format!("{:.1}", mean(|cost| cost.forwarding())),
                format!("{mpps:.1}"),
                kind.paper().to_owned(),
            ]);
            line.points.push((workers as f64, mpps));
        }
        lines.push(line);
    }
    let frame = svg::Frame {
        title: "Figure 9: forwarding in memory by type of TCP packets",
        x: "workers (packet threads)",
        y: "Mpps",
    };
    Ok(Report { name: "figure-9", text: text(options, &table), svg: svg::lines(&frame, &lines) })
}

/// The median cost of each of `workers` that run at the same time.
fn measure(options: &Options, kind: Kind, workers: usize) -> Result<Vec<Cost>, String> {
    // Plans and tables are made one after the other: memory of one worker
    // must not depend on the others' making theirs.
    let workers: Vec<Worker> =
        (0..workers).map(|_| Worker::new(options, kind)).collect::<Result<_, _>>()?;
    let together = Barrier::new(workers.len());
    let costs: Vec<Result<Cost, String>> = thread::scope(|scope| {
        let start = |worker: Worker| scope.spawn(|| rounds(options, worker, &together));
        let threads: Vec<_> = workers.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker panicked")).collect()
    });
    costs.into_iter().collect()
}

fn rounds(options: &Options, mut worker: Worker, together: &Barrier) -> Result<Cost, String> {
    worker.warm_up();
    let (mut whole, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        together.wait();
        whole.push(worker.forward(options.packets));
        floor.push(worker.only_loop(options.packets));
    }
    worker.check()?;
    Ok(Cost { whole: Range::of(&whole).median, floor: Range::of(&floor).median })
}

fn text(options: &Options, table: &Table) -> String {
    format!(
        "Figure 9: throughput with different TCP packet types, in memory\n\
         Frames of 60 bytes; non-SYN: {} connections for each worker; tables for {}; {} backends.\n\
         CPU time, medians of {} rounds of {} packets, forwarding and bare loop in turns.\n\
         Machine: {}\n\n{table}\n\
         Paper: a NIC of 10 Gbit/s is saturated (14.88 Mpps at 64 bytes, by Ethernet's arithmetic) by the number of\n\
         packet threads shown in its figure, beside a thread that steers; \"about 350ns\" per packet and thread (3.2) is 2.9 Mpps.\n",
        options.connections,
        options.connections_max,
        options.backends,
        options.rounds,
        options.packets,
        machine::label()
    )
}
