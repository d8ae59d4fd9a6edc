//! The cost in the driver: processor time of the whole machine for each frame, sent as a
//! driver delivers it, next to that of an XDP program that looks nothing up. Also: how many
//! first packets of flows are forwarded of those that such a sender offers.
//!
//! All of them include sending, the cable and counting; the difference from the reflector
//! is the cost of the program itself.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Options;
use crate::report::Table;
use crate::stats::Range;
use crate::veth::{self, LiveSender, Net, Running, Service};

/// Who forwards, and what is sent.
struct Row {
    /// In the report.
    name: &'static str,
    label: &'static str,
    /// 0: each frame is a SYN of another.
    flows: u32,
    by: By,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Reflector,
    /// The kernel flow cache, of a service that is tracked.
    Cache,
    /// The same of a stateless one, whose buckets it has.
    Buckets,
}

const ROWS: [Row; 7] = [
    Row::new("reflector", "bare reflector, xdp", 64, By::Reflector),
    Row::new("flows_64", "64 flows", 64, By::Cache),
    Row::new("flows_8192", "8,192 flows", 8192, By::Cache),
    Row::new("flows_1m", "1,048,576 flows", 1 << 20, By::Cache),
    Row::new("flood_reflector", "flood of SYNs, bare reflector", 0, By::Reflector),
    Row::new("flood", "flood of SYNs", 0, By::Cache),
    Row::new("flood_stateless", "flood of SYNs, stateless", 0, By::Buckets),
];
const FLOOD: [&str; 3] = ["flood_reflector", "flood", "flood_stateless"];

impl Row {
    const fn new(name: &'static str, label: &'static str, flows: u32, by: By) -> Row {
        Row { name, label, flows, by }
    }

    fn start(&self, options: &Options, net: &Net) -> Result<Running, String> {
        let service = match self.by {
            By::Reflector => return veth::kernel_reflector(&options.reflector, net, "xdp"),
            By::Cache => Service::Cached,
            By::Buckets => Service::Buckets,
        };
        veth::forwarder(&options.forwarder, &net.tested, &service.plan("DRIVER_AF_XDP", 0))
    }
}

/// Frames of a round: half a second and more of them, as processor time is told in
/// hundredths of seconds.
const FRAMES: u32 = 1 << 20;
/// All flows are known after so many frames of each, of which some are lost on the way to
/// user space.
const WARM_UP: Duration = Duration::from_secs(3);
const WARM_UP_FRAMES_EACH: u32 = 24;

/// A row that runs. The sender ends first, and then the one under test.
struct Place {
    sender: LiveSender,
    _running: Running,
    _net: Net,
}

/// What was measured of a row, round by round.
#[derive(Debug, Default)]
pub(super) struct Measured {
    cpu_ns: Vec<f64>,
    offered_mpps: Vec<f64>,
    returned_mpps: Vec<f64>,
}

/// By row, in their order.
pub(super) type Measurements = [Measured; ROWS.len()];

/// All take turns.
pub(super) fn measure(options: &Options) -> Result<Measurements, String> {
    let mut places = Vec::new();
    for (number, row) in ROWS.iter().enumerate() {
        let place = Place::new(row, number, options);
        places.push(place.map_err(|error| format!("{}: {error}", row.label))?);
    }
    let mut all = Measurements::default();
    for _ in 0..options.rounds.rounds {
        for (place, measured) in places.iter_mut().zip(&mut all) {
            measured.add(&mut place.sender)?;
        }
    }
    Ok(all)
}

impl Place {
    fn new(row: &Row, number: usize, options: &Options) -> Result<Place, String> {
        let net = Net::new(&format!("d{number}"), 1)?;
        // First: the cache is there only if the cable's other end has an XDP program.
        let sender = LiveSender::new(&options.live_sender, &net, row.flows)?;
        let running = row.start(options, &net)?;
        let mut place = Place { sender, _running: running, _net: net };
        place.wait_until_something_returns()?;
        place.warm_up(row)?;
        Ok(place)
    }

    fn wait_until_something_returns(&mut self) -> Result<(), String> {
        for _ in 0..50 {
            thread::sleep(Duration::from_millis(100));
            if self.sender.send(64)?.returned > 0 {
                return Ok(());
            }
        }
        Err("nothing comes back".to_owned())
    }

    fn warm_up(&mut self, row: &Row) -> Result<(), String> {
        let (start, mut sent) = (Instant::now(), 0);
        while start.elapsed() < WARM_UP || sent < row.flows.saturating_mul(WARM_UP_FRAMES_EACH) {
            sent += FRAMES / 8;
            self.sender.send(FRAMES / 8)?;
        }
        Ok(())
    }
}

impl Measured {
    fn add(&mut self, sender: &mut LiveSender) -> Result<(), String> {
        let before = veth::machine_cpu_ns()?;
        let sent = sender.send(FRAMES)?;
        self.cpu_ns.push((veth::machine_cpu_ns()? - before) as f64 / f64::from(FRAMES));
        let microseconds = sent.taken.as_secs_f64() * 1e6;
        self.offered_mpps.push(f64::from(FRAMES) / microseconds);
        self.returned_mpps.push(sent.returned as f64 / microseconds);
        Ok(())
    }
}

/// Of each row what it takes more than the reflector that is the last before it, round by
/// round.
fn added(all: &Measurements) -> Vec<Range> {
    let mut floor = &all[0];
    let rows = ROWS.iter().zip(all).map(|(row, measured)| {
        if row.by == By::Reflector {
            floor = measured;
        }
        let pairs = measured.cpu_ns.iter().zip(&floor.cpu_ns);
        Range::of(&pairs.map(|(one, floor)| one - floor).collect::<Vec<_>>())
    });
    rows.collect()
}

pub(super) fn text(all: &Measurements) -> String {
    let mut table = Table::new([
        "frames as a driver gives them",
        "CPU ns per frame, the machine's",
        "more than the reflector",
        "offered, Mpps",
        "returned, Mpps",
    ]);
    for ((row, measured), added) in ROWS.iter().zip(all).zip(added(all)) {
        table.row([
            row.label.to_owned(),
            Range::of(&measured.cpu_ns).show(0),
            added.show(0),
            Range::of(&measured.offered_mpps).show(2),
            Range::of(&measured.returned_mpps).show(2),
        ]);
    }
    table.to_string()
}

pub(super) fn summary(all: &Measurements) -> Value {
    let rows = || ROWS.iter().zip(all);
    let is_flood = |name: &str| FLOOD.contains(&name);
    let path: serde_json::Map<String, Value> = rows()
        .filter(|(row, _)| !is_flood(row.name))
        .map(|(row, measured)| (row.name.to_owned(), json!(Range::of(&measured.cpu_ns).median)))
        .collect();
    let flood = |name, of: fn(&Measured) -> &Vec<f64>| {
        let (_, measured) = rows().find(|(row, _)| row.name == name).expect("a row");
        Range::of(of(measured)).median
    };
    let [reflector, ours, stateless] = FLOOD;
    json!({
        "kernel_path_ns": path,
        "flood_mpps": {
            "offered": flood(ours, |of| &of.offered_mpps),
            "reflector": flood(reflector, |of| &of.returned_mpps),
            "guideway": flood(ours, |of| &of.returned_mpps),
            "guideway_stateless": flood(stateless, |of| &of.returned_mpps),
        },
    })
}
