//! How many connections a table can track, and how often two of them share an entry.
//!
//! By the table's arithmetic: 99 % of a million connections in 16 MiB, 99.9 % in 32 MiB,
//! and a flow takes another's entry for its own with a probability of less than one in a
//! million. Here real packets open connections through the whole journey, and the
//! probability is counted on flows that no client opened:
//!
//! ```text
//!  SYN, a tick later ACK ─► all connections so far send once more: how many find their entry?
//!  the flow hash of a stranger ─► TableReader::find: is there an entry it would take for its own?
//! ```

use datapath::{FlowHash, Secret};
use guideway_bench::setup::{Decides, Setup};
use guideway_bench::traffic::{Frames, Kind, Traffic};
use guideway_bench::worker::{self, CLUSTER};
use plan::proto::Encap;
use sim::LoadBalancer;
use wire::tcp;

use crate::report::{Report, Table};
use crate::svg;

/// What may be varied.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Connections at the end, each table full by its own measure
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=50_000_000))]
    pub connections: u64,
    /// Tables made for this multiple of the connections
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u64).range(1..=64))]
    pub roominess: Vec<u64>,
    /// Shares of the connections at which it is looked, per cent
    #[arg(long, value_delimiter = ',', default_value = "25,50,75,100,125")]
    pub shares: Vec<u64>,
    /// Strangers that are tried for the entry of another flow
    #[arg(long, default_value_t = 100_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub strangers: u64,
}

/// What one table did.
#[derive(Debug, Clone, PartialEq)]
pub struct Tracked {
    /// Its memory.
    pub bytes: usize,
    /// By share of the connections: how many there were, and how many of them
    /// found their entry.
    pub found: Vec<(u64, u64)>,
    /// Strangers that would have taken another's entry, with all connections
    /// there.
    pub sharing: u64,
}

/// Opened at once: fewer than a tick of the table would see on a busy day.
const GROUP: usize = 4096;
/// More than a tick: the next packet confirms.
const CONFIRMED_MS: u32 = 200;

/// Fills tables.
///
/// # Errors
/// If memory is short, or a share is out of order.
pub fn run(options: &Options) -> Result<Report, String> {
    let tables: Vec<Tracked> = options
        .roominess
        .iter()
        .map(|roominess| measure(options, *roominess))
        .collect::<Result<_, _>>()?;
    Ok(Report { name: "tracking", text: text(options, &tables), svg: plot(options, &tables) })
}

/// Fills one table that is made for a multiple of the connections.
///
/// # Errors
/// As [`run`].
pub fn measure(options: &Options, roominess: u64) -> Result<Tracked, String> {
    if !options.shares.is_sorted() || options.shares.contains(&0) {
        return Err(format!("--shares {:?}: from low to high, none of them 0", options.shares));
    }
    let mut filling = Filling::new(options, roominess)?;
    let (mut found, mut sharing) = (Vec::new(), None);
    for share in &options.shares {
        let connections = options.connections * share / 100;
        // Before there are more than the table is sized for.
        if *share > 100 && sharing.is_none() {
            sharing = Some(filling.sharing(options.strangers));
        }
        filling.open(connections);
        found.push((connections, filling.found(connections)));
    }
    let sharing = sharing.unwrap_or_else(|| filling.sharing(options.strangers));
    Ok(Tracked { bytes: filling.worker.table_bytes(), found, sharing })
}

/// A table that is being filled.
struct Filling {
    worker: LoadBalancer,
    traffic: Traffic,
    frames: Frames,
    opened: u64,
    now_ms: u32,
}

impl Filling {
    fn new(options: &Options, roominess: u64) -> Result<Filling, String> {
        let most = options.shares.iter().max().copied().unwrap_or(0).max(100);
        let setup = Setup {
            services: 1,
            busy_services: 1,
            prefixes: 0,
            pools: 1,
            backends: 100,
            weight_max: 1,
            table_size: 0,
            flows: options.connections * most / 100,
            connections: options.connections * roominess,
            packet_bytes: 46,
            ipv6: false,
            encap: Encap::Gre,
            decides: Decides::Tracking,
        };
        Ok(Filling {
            worker: worker::new(setup.view(1)?, 0, setup.connections)?,
            traffic: Traffic::new(&setup, Kind::Data)?,
            frames: Frames::new(GROUP)?,
            opened: 0,
            now_ms: 0,
        })
    }

    /// Opens connections until there are `connections`.
    fn open(&mut self, connections: u64) {
        while self.opened < connections {
            let first = self.opened;
            self.opened = connections.min(first + GROUP as u64);
            for flags in [tcp::Flags::SYN, tcp::Flags::ACK] {
                self.send(first, self.opened, flags);
                self.now_ms += CONFIRMED_MS;
            }
        }
    }

    /// Sends a packet of each connection; how many found their entry.
    fn found(&mut self, connections: u64) -> u64 {
        let (before, _) = worker::hits_and_misses(&self.worker);
        for first in (0..connections).step_by(GROUP) {
            self.send(first, connections.min(first + GROUP as u64), tcp::Flags::ACK);
        }
        worker::hits_and_misses(&self.worker).0 - before
    }

    fn send(&mut self, first: u64, end: u64, flags: tcp::Flags) {
        self.traffic.fill_in_order(&mut self.frames, first, flags);
        let mut left = (end - first) as usize;
        for batch in &mut self.frames.batches {
            // Frames beyond the last connection stay behind.
            let mut sent = batch.drain(..batch.len().min(left)).collect();
            self.worker.forward_in_place(self.now_ms, &mut sent);
            left -= sent.len();
            sent.extend(batch.drain(..));
            *batch = sent;
        }
    }

    fn sharing(&self, strangers: u64) -> u64 {
        let hash = FlowHash::new(&Secret::derived(CLUSTER));
        let service = self.worker.view.plan.services().next().expect("there is one").id;
        // Far behind all connections.
        let strangers = (1 << 32)..(1 << 32) + strangers;
        let shares = |flow: &u64| {
            self.worker.tables[0].find(hash.flow(&self.traffic.key(*flow)), service).is_some()
        };
        strangers.filter(shares).count() as u64
    }
}

fn text(options: &Options, tables: &[Tracked]) -> String {
    let mut tracked =
        Table::new(["table, MiB", "connections", "% of the goal's", "tracked, %", "goal, %"]);
    let mut sharing = Table::new([
        "table, MiB",
        "strangers tried",
        "sharing",
        "in a million (95 % interval)",
        "goal",
    ]);
    for (roominess, table) in options.roominess.iter().zip(tables) {
        let memory = format!("{:.2}", table.bytes as f64 / f64::from(1 << 20));
        for (share, (connections, found)) in options.shares.iter().zip(&table.found) {
            let percent = *found as f64 * 100.0 / *connections as f64;
            tracked.row([
                memory.clone(),
                connections.to_string(),
                share.to_string(),
                format!("{percent:.3}"),
                goal(*roominess, *share).to_owned(),
            ]);
        }
        let millions = options.strangers as f64 / 1e6;
        let (rate, off) =
            (table.sharing as f64 / millions, 1.96 * (table.sharing as f64).sqrt() / millions);
        sharing.row([
            memory,
            options.strangers.to_string(),
            table.sharing.to_string(),
            format!("{rate:.2} ({:.2} - {:.2})", (rate - off).max(0.0), rate + off),
            "1".to_owned(),
        ]);
    }
    format!(
        "Connections tracked, and entries shared\n\
         One worker, one service; established by a SYN and an ACK each, none expired. \"Tracked\": the next\n\
         packet finds its entry. A stranger shares where the table has an entry that its flow would take\n\
         for its own, tried with all connections of the goal open.\n\n{tracked}\n{sharing}"
    )
}

/// Per cent that are to be tracked, in a table made for that number of connections,
/// and for twice.
fn goal(roominess: u64, share: u64) -> &'static str {
    match (roominess, share) {
        (1, 100) => "99",
        (2, 100) => "99.9",
        _ => "",
    }
}

fn plot(options: &Options, tables: &[Tracked]) -> String {
    let line = |(roominess, table): (&u64, &Tracked)| svg::Series {
        name: format!("table for {roominess} x the connections"),
        points: options
            .shares
            .iter()
            .zip(&table.found)
            .map(|(share, (connections, found))| {
                (*share as f64, 100.0 - *found as f64 * 100.0 / *connections as f64)
            })
            .collect(),
    };
    let lines: Vec<svg::Series> = options.roominess.iter().zip(tables).map(line).collect();
    let frame = svg::Frame {
        title: "Connections that are not tracked",
        x: "connections, % of those the first table is made for",
        y: "not tracked, %",
    };
    svg::lines(&frame, &lines)
}
