//! Table 1: the throughput of one core and of two, by type of packet, and for the mix of
//! types that the paper found in traces of a backbone link (MAWI).
//!
//! In the paper packets pass through a NIC; ours are in memory and go through
//! `Datapath::forward_batch`. So compare types with one another, next to the paper's, in
//! which all types share the cost of netmap. CPU time is measured, so waiting for a core on
//! a busy machine does not count.

use std::sync::Barrier;
use std::thread;

use guideway_bench::clock::Samples;
use guideway_bench::traffic::{Frames, Segment};

use super::lane::{Lane, Share};
use crate::machine;
use crate::report::{Report, Table};
use crate::svg;

/// What may be varied.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Numbers of workers, each with a core
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: Vec<u16>,
    /// Connections
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub flows: u64,
    /// Backends
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub backends: u32,
    /// Rounds; each takes one sample of every type
    #[arg(long, default_value_t = 41, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Passes over all frames in a sample
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub passes: u32,
    /// Frames of packet memory
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub frames: u32,
}

/// A type of packets.
struct Row {
    name: &'static str,
    /// In the plot.
    short: &'static str,
    shares: &'static [Share],
    /// The counter that all of its packets are in.
    selection: Option<&'static str>,
    /// The paper's Mpps, on one core and on two.
    paper: Option<[f64; 2]>,
}

/// What other rows are compared with.
const USUAL: usize = 4;

const ROWS: [Row; 9] = [
    Row {
        name: "TCP SYN",
        short: "SYN",
        shares: &Share::all(Segment::Syn, 60),
        selection: Some("plain_syn"),
        paper: Some([4.07, 6.48]),
    },
    Row {
        name: "SYN, MP_CAPABLE, version 0",
        short: "MPC v0",
        shares: &Share::all(Segment::SynV0, 66),
        selection: Some("key_v0"),
        paper: Some([1.01, 2.02]),
    },
    Row {
        name: "SYN, MP_CAPABLE, version 1",
        short: "MPC v1",
        shares: &Share::all(Segment::SynV1, 60),
        selection: Some("key_v1"),
        paper: None,
    },
    Row {
        name: "SYN, MP_JOIN",
        short: "JOIN",
        shares: &Share::all(Segment::Join, 66),
        selection: Some("token"),
        paper: Some([3.64, 6.65]),
    },
    Row {
        name: "data, timestamps where kernels put them",
        short: "TS",
        shares: &Share::all(Segment::TimestampFirst, 86),
        selection: Some("timestamp"),
        paper: Some([4.36, 6.99]),
    },
    Row {
        name: "data, timestamps behind 30 NOPs",
        short: "TS worst",
        shares: &Share::all(Segment::TimestampLast, 94),
        selection: Some("timestamp"),
        paper: Some([3.79, 6.89]),
    },
    Row {
        name: "data without timestamps",
        short: "no TS",
        shares: &Share::all(Segment::NoTimestamp, 86),
        selection: Some("no_timestamp"),
        paper: Some([4.23, 7.00]),
    },
    Row {
        name: "data of plain TCP, timestamps alone",
        short: "TS alone",
        shares: &Share::all(Segment::Timestamp, 66),
        selection: Some("timestamp"),
        paper: None,
    },
    Row {
        name: "mix of the paper's traces",
        short: "mix",
        shares: &MIX,
        selection: None,
        paper: None,
    },
];

/// "More than 90% of packets are 128B or less. Of these, only 5% are SYN or FIN packets;
/// the wide majority are TCP acks and small TCP data segments." How large the others are
/// it does not say: full ones here. As many FINs (without timestamps, as the paper has
/// them) as SYNs, of which every other one joins.
const MIX: [Share; 5] = [
    Share { segment: Segment::TimestampFirst, frame_bytes: 1514, share: 80 },
    Share { segment: Segment::SynV1, frame_bytes: 60, share: 9 },
    Share { segment: Segment::Join, frame_bytes: 66, share: 9 },
    Share { segment: Segment::NoTimestamp, frame_bytes: 86, share: 18 },
    Share { segment: Segment::TimestampFirst, frame_bytes: 86, share: 684 },
];

/// What each of several workers took at a type.
type Costs = Vec<Samples>;

/// Forwards in memory, with one worker and more.
///
/// # Errors
/// If memory is short, or a packet was treated otherwise than its row says.
pub fn run(options: &Options) -> Result<Report, String> {
    let load = machine::load();
    let mut table = Table::new([
        "packets, workers",
        "ns, median",
        "best",
        "Mpps, median",
        "best",
        "paper",
        "to usual data",
        "paper",
    ]);
    let mut bars = (Vec::new(), Vec::new());
    for (index, workers) in options.workers.iter().enumerate() {
        let costs = measure(options, usize::from(*workers))?;
        for (row, of_row) in ROWS.iter().zip(&costs) {
            let paper = row.paper.and_then(|paper| paper.get(usize::from(*workers) - 1).copied());
            let usual =
                ROWS[USUAL].paper.and_then(|all| all.get(usize::from(*workers) - 1).copied());
            let two = |number: f64| format!("{number:.2}");
            table.row([
                format!("{}, {workers}", row.name),
                format!("{:.1}", mean(of_row, Samples::median)),
                format!("{:.1}", mean(of_row, Samples::best)),
                format!("{:.1}", rate(of_row, Samples::median)),
                format!("{:.1}", rate(of_row, Samples::best)),
                paper.map_or_else(String::new, two),
                two(to_usual(&costs[USUAL], of_row)),
                paper.zip(usual).map_or_else(String::new, |(paper, usual)| two(paper / usual)),
            ]);
            if index == 0 {
                bars.0.push(bar(row, "ours, in memory", rate(of_row, Samples::median)));
                bars.1.extend(paper.map(|paper| bar(row, "paper, 10 Gbit/s NIC", paper)));
            }
        }
    }
    let frame = svg::Frame {
        title: "MPLB, table 1: by type of packet, the first number of workers",
        x: "",
        y: "Mpps",
    };
    let bars = [bars.0, bars.1].concat();
    let text = text(options, &load, &table);
    Ok(Report { name: "mplb-table-1", text, svg: svg::bars(&frame, &bars) })
}

fn bar(row: &Row, group: &str, mpps: f64) -> svg::Bar {
    svg::Bar { label: row.short.into(), group: group.into(), low: 0.0, high: mpps }
}

fn mean(costs: &Costs, of: fn(&Samples) -> f64) -> f64 {
    costs.iter().map(of).sum::<f64>() / costs.len() as f64
}

/// Each worker does what it can: rates add up, not times.
fn rate(costs: &Costs, of: fn(&Samples) -> f64) -> f64 {
    costs.iter().map(|ns| 1000.0 / of(ns)).sum()
}

/// The rate of a row over that of usual data, round by round.
fn to_usual(usual: &Costs, row: &Costs) -> f64 {
    let ratios = usual.iter().zip(row).map(|(usual, row)| usual.over(row).median());
    ratios.sum::<f64>() / row.len() as f64
}

/// By row, the costs of each of `workers` that run at the same time.
fn measure(options: &Options, workers: usize) -> Result<Vec<Costs>, String> {
    let lanes = || {
        let lane = |row: &Row| Lane::new(row.shares, options.flows, options.backends);
        let lanes: Vec<Lane> = ROWS.iter().map(lane).collect::<Result<_, _>>()?;
        Ok((lanes, Frames::new(options.frames as usize)?))
    };
    let all: Vec<(Vec<Lane>, Frames)> =
        (0..workers).map(|_| lanes()).collect::<Result<_, String>>()?;
    let together = Barrier::new(workers);
    let measured: Vec<Result<Vec<Lane>, String>> = thread::scope(|scope| {
        let start = |(lanes, frames)| scope.spawn(|| rounds(options, lanes, frames, &together));
        let threads: Vec<_> = all.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker panicked")).collect()
    });
    let measured: Vec<Vec<Lane>> = measured.into_iter().collect::<Result<_, _>>()?;
    let of_row = |row: usize| measured.iter().map(|lanes| lanes[row].ns.clone()).collect();
    Ok((0..ROWS.len()).map(of_row).collect())
}

/// All workers are at the same row at the same time.
fn rounds(
    options: &Options,
    mut lanes: Vec<Lane>,
    mut frames: Frames,
    together: &Barrier,
) -> Result<Vec<Lane>, String> {
    for _ in 0..options.rounds {
        for lane in &mut lanes {
            together.wait();
            lane.sample(&mut frames, options.passes);
        }
    }
    for (lane, row) in lanes.iter().zip(&ROWS) {
        lane.check(row.selection).map_err(|error| format!("{}: {error}", row.name))?;
    }
    Ok(lanes)
}

fn mean_frame_bytes(shares: &[Share]) -> f64 {
    let sum = |of: fn(&Share) -> u64| shares.iter().map(of).sum::<u64>() as f64;
    sum(|share| share.share * share.frame_bytes as u64) / sum(|share| share.share)
}

fn text(options: &Options, load: &str, table: &Table) -> String {
    format!(
        "MPLB, table 1: Mpps by type of packet, in memory\n\
         A stateless service with Multipath TCP, Geneve; {} connections, {} backends. CPU time of {} rounds\n\
         of {} packets, in which all types take turns. Rates of workers add up.\n\
         Machine: {}; load average before: {load}\n\n{table}\n\
         \"To usual data\": the rate over that of data with timestamps where kernels put them, median of all rounds.\n\
         Frames: SYNs without other options, 60 bytes, 66 of MP_CAPABLE in version 0 and of MP_JOIN; data 86, the paper's\n\
         smallest (timestamps and a data sequence signal); 94 where NOPs fill the header. The mix: 10 % full frames; of the\n\
         others 5 % are SYNs (MP_CAPABLE, version 1, and MP_JOIN) and FINs; {:.0} bytes on average.\n\
         Paper: a core of a Xeon E5645 with netmap, a NIC of 10 Gbit/s, version 0. Its machine of six cores reached 5.87 Mpps\n\
         of MP_CAPABLE and some 7 of all others, by its NIC; it expects \"10Mpps for an expected HTTP client-to-server load\".\n",
        options.flows,
        options.backends,
        options.rounds,
        u64::from(options.passes) * u64::from(options.frames),
        machine::label(),
        mean_frame_bytes(&MIX),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_that_of_the_papers_traces() {
        let part = |of: &dyn Fn(&Share) -> bool| {
            let shares = |of: &dyn Fn(&Share) -> bool| {
                MIX.iter().filter(|share| of(share)).map(|share| share.share).sum::<u64>()
            };
            (shares(of), shares(&|_| true))
        };
        assert_eq!(part(&|share| share.frame_bytes <= 128), (720, 800));
        let opens_or_ends = |share: &Share| share.segment != Segment::TimestampFirst;
        assert_eq!(part(&opens_or_ends).0 * 20, 720);
    }
}
