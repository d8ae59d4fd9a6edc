//! How long packets wait while the plan is replaced.
//!
//! It runs the forwarder's own engine, with a worker on a queue in memory. Frames arrive in
//! batches at a fixed rate, whether or not the worker has taken the last one; a batch's
//! delay is the time from when it was due until it was sent. Meanwhile another thread
//! alternates:
//!
//! ```text
//!  nothing                      what the machine does to a packet by itself
//!  makes plans, keeps them      and what a core in use next door does
//!  makes plans and swaps them   and what the swap does
//! ```
//!
//! Everything else that runs on the core delays packets too, in all three cases alike. So
//! the worker's own processor time for each batch is shown as well: a swap that costs the
//! worker time would show there.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use datapath::{Secret, View};
use guideway_bench::clock::thread_ns;
use guideway_bench::setup::{self, Decides, Setup};
use guideway_bench::traffic::{Frames, Kind, Traffic};
use guideway_bench::worker::CLUSTER;
use guideway_forwarder::dataplane::engine::{Engine, Inherited, Start};
use guideway_forwarder::dataplane::tables::Tables;
use nic::{Meter, Pool, Queue, WorkerIo};
use plan::proto::{self, Encap};
use plan::{Plan, Planner};
use wire::{BATCH_MAX, Batch};

use crate::machine;
use crate::report::{Report, Table};
use crate::stats::Range;
use crate::svg;

/// What may be varied.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Services
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub services: u32,
    /// Backends
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=65_000))]
    pub backends: u32,
    /// Pools that services share
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub pools: u32,
    /// Flows, over all services
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub flows: u64,
    /// Packets that come in a second
    #[arg(long, default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1000..=10_000_000))]
    pub rate: u64,
    /// Turns, each of which does all three things once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub turns: u32,
    /// Plans made in a turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub plans: u32,
}

/// What the other thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meanwhile {
    /// Nothing.
    Nothing,
    /// Makes plans, and does not use them.
    Plans,
    /// Makes plans, and has the worker forward by them.
    Swaps,
}

impl Meanwhile {
    /// All, in the order of the table.
    pub const ALL: [Meanwhile; 3] = [Meanwhile::Nothing, Meanwhile::Plans, Meanwhile::Swaps];

    fn name(self) -> &'static str {
        match self {
            Meanwhile::Nothing => "nothing",
            Meanwhile::Plans => "plans made, not used",
            Meanwhile::Swaps => "plans made and swapped",
        }
    }
}

/// What a batch saw, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// From when it was due to when it was sent.
    pub delay: u64,
    /// The worker's processor time for it.
    pub own: u64,
}

/// All turns of one thing.
#[derive(Debug, Default)]
pub struct Measured {
    /// By batch.
    pub seen: Vec<Seen>,
    /// Milliseconds to make a plan and its view.
    pub plan_ms: Vec<f64>,
    /// Milliseconds until the worker had taken it and the old one was freed.
    pub swap_ms: Vec<f64>,
}

/// Forwards, and changes plans meanwhile.
///
/// # Errors
/// If the parameters make no plan, or memory is short.
pub fn run(options: &Options) -> Result<Report, String> {
    let results = measure(options)?;
    Ok(Report { name: "swap", text: text(options, &results), svg: plot(&results) })
}

/// The same, in the order of [`Meanwhile::ALL`].
///
/// # Errors
/// As [`run`].
pub fn measure(options: &Options) -> Result<[Measured; 3], String> {
    let mut rig = Rig::new(options)?;
    let mut results: [Measured; 3] = Default::default();
    for turn in 0..=options.turns {
        for (meanwhile, measured) in Meanwhile::ALL.into_iter().zip(&mut results) {
            let seen = rig.turn(options, meanwhile, measured)?;
            // In the first one memory is touched for the first time.
            if turn > 0 {
                measured.seen.extend(seen);
            }
        }
    }
    Ok(results)
}

/// The queue's schedule and what it saw; written by the worker, read between
/// turns.
#[derive(Default)]
struct Line {
    /// When the next batch is due, in nanoseconds of `since`; 0: none is.
    open_at: AtomicU64,
    /// Batches so far.
    taken: AtomicUsize,
    seen: Mutex<Vec<Seen>>,
}

/// Frames at a fixed rate.
struct Timetable {
    frames: Vec<Vec<u8>>,
    at: usize,
    since: Instant,
    interval_ns: u64,
    line: Arc<Line>,
    /// Of the batch under way: when it was due, and the processor time then.
    under_way: (u64, u64),
    seen: Vec<Seen>,
}

impl Timetable {
    fn now(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64
    }
}

impl Queue for Timetable {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>) {
        let due = self.line.open_at.load(Ordering::Relaxed);
        if due == 0 {
            // Between turns: what was seen is handed over.
            if !self.seen.is_empty() {
                self.line.seen.lock().expect("no thread panics with it").append(&mut self.seen);
            }
            return;
        }
        if self.now() < due {
            return;
        }
        self.under_way = (due, thread_ns());
        while !batch.is_full() {
            batch.push(pool.frame_of(&self.frames[self.at]).expect("chunks for a batch"));
            self.at = (self.at + 1) % self.frames.len();
        }
        // The next is due in its time, however late this one was. If the turn
        // ended at this moment it stays ended.
        let next = due + self.interval_ns;
        let _ = self.line.open_at.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>) {
        batch.drain(..).for_each(|frame| pool.give_frame(frame));
        let (due, own_before) = self.under_way;
        self.seen.push(Seen { delay: self.now() - due, own: thread_ns() - own_before });
        self.line.taken.fetch_add(1, Ordering::Relaxed);
    }

    fn fd(&self) -> Option<RawFd> {
        None
    }

    fn meter(&self) -> Meter {
        Meter::default()
    }
}

/// A worker that forwards, and the plans it gets.
struct Rig {
    engine: Engine,
    planner: Planner,
    message: proto::Plan,
    plans_made: u32,
    line: Arc<Line>,
    since: Instant,
    _folder: tempfile::TempDir,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

impl Rig {
    fn new(options: &Options) -> Result<Rig, String> {
        let told = |error: &dyn std::fmt::Display| error.to_string();
        let setup = setup(options);
        setup.check()?;
        let (mut planner, message) = (Planner::default(), setup.message());
        let plan = planner.plan(message.clone()).map_err(|error| told(&error))?;
        let (line, since) = (Arc::<Line>::default(), Instant::now());
        let queue = Timetable {
            frames: frames(&setup)?,
            at: 0,
            since,
            interval_ns: 1_000_000_000 * BATCH_MAX as u64 / options.rate,
            line: Arc::clone(&line),
            under_way: (0, 0),
            // Enough for a turn of a minute, so that it does not grow in one.
            seen: Vec::with_capacity((options.rate / BATCH_MAX as u64 * 60) as usize),
        };
        let pool = Pool::new(4 * BATCH_MAX).map_err(|error| told(&error))?;
        let folder = tempfile::tempdir().map_err(|error| told(&error))?;
        let engine = Engine::start(Start {
            io: vec![WorkerIo { pool, queues: vec![Box::new(queue)] }],
            interfaces: Vec::new(),
            view: Arc::new(setup::view(Arc::new(plan), 1)),
            secret: Secret::derived(CLUSTER),
            tables: &Tables::open(folder.path()).map_err(|error| told(&error))?.0,
            key_digest: 1,
            connections_max: options.flows,
            cpus: Vec::new(),
            // It stands for a worker under load: it does not sleep.
            busy_poll: true,
            inherited: Inherited::default(),
            kernel_caches: None,
        })
        .map_err(|error| told(&error))?;
        Ok(Rig { engine, planner, message, plans_made: 1, line, since, _folder: folder })
    }

    /// Forwards while that is done, and for as long where it is nothing.
    fn turn(
        &mut self,
        options: &Options,
        meanwhile: Meanwhile,
        measured: &mut Measured,
    ) -> Result<Vec<Seen>, String> {
        let taken_before = self.line.taken.load(Ordering::Relaxed);
        let now = self.since.elapsed().as_nanos() as u64;
        self.line.open_at.store(now.max(1), Ordering::Relaxed);
        for _ in 0..options.plans {
            if meanwhile == Meanwhile::Nothing {
                std::thread::sleep(Duration::from_millis(200));
                continue;
            }
            let start = Instant::now();
            let view = self.next_view()?;
            measured.plan_ms.push(start.elapsed().as_secs_f64() * 1000.0);
            if meanwhile == Meanwhile::Swaps {
                let start = Instant::now();
                self.engine.swap(view).map_err(|error| error.to_string())?;
                measured.swap_ms.push(start.elapsed().as_secs_f64() * 1000.0);
            }
        }
        // On a busy machine the worker may not have had its turn yet.
        while self.line.taken.load(Ordering::Relaxed) == taken_before {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.line.open_at.store(0, Ordering::Relaxed);
        Ok(self.take_seen())
    }

    /// The worker hands over what it saw, soon after the turn's end.
    fn take_seen(&self) -> Vec<Seen> {
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let seen =
                std::mem::take(&mut *self.line.seen.lock().expect("no thread panics with it"));
            if !seen.is_empty() {
                return seen;
            }
        }
    }

    /// By a plan in which another backend is down.
    fn next_view(&mut self) -> Result<Arc<View>, String> {
        self.plans_made += 1;
        let mut message = self.message.clone();
        message.generation = u64::from(self.plans_made);
        let which = self.plans_made as usize % message.backends.len();
        let name = message.backends[which].name.clone();
        let members = message.groups.iter_mut().flat_map(|group| &mut group.members);
        for member in members.filter(|member| member.backend == name) {
            member.state = proto::BackendState::Down as i32;
        }
        let plan: Plan = self.planner.plan(message).map_err(|error| error.to_string())?;
        Ok(Arc::new(setup::view(Arc::new(plan), 1)))
    }
}

fn setup(options: &Options) -> Setup {
    Setup {
        services: options.services,
        busy_services: options.services,
        prefixes: 0,
        pools: options.pools.min(options.services).min(options.backends),
        backends: options.backends,
        weight_max: 1,
        table_size: 0,
        flows: options.flows,
        connections: options.flows,
        packet_bytes: 46,
        ipv6: false,
        encap: Encap::Gre,
        decides: Decides::Tracking,
    }
}

/// A packet of each flow.
fn frames(setup: &Setup) -> Result<Vec<Vec<u8>>, String> {
    let traffic = Traffic::new(setup, Kind::Data)?;
    let mut memory = Frames::new(BATCH_MAX)?;
    let mut frames = Vec::with_capacity(setup.flows as usize);
    for first in (0..setup.flows).step_by(BATCH_MAX) {
        traffic.fill_in_order(&mut memory, first, wire::tcp::Flags::ACK);
        frames.extend(memory.batches[0].iter().map(|frame| frame.bytes().to_vec()));
    }
    frames.truncate(setup.flows as usize);
    Ok(frames)
}

/// The value that this number of a million are not above, in microseconds.
fn quantile_us(sorted: &[u64], of_million: usize) -> f64 {
    let last = sorted.len() - 1;
    sorted[last * of_million / 1_000_000] as f64 / 1000.0
}

fn sorted(seen: &[Seen], of: fn(&Seen) -> u64) -> Vec<u64> {
    let mut sorted: Vec<u64> = seen.iter().map(of).collect();
    sorted.sort_unstable();
    sorted
}

const QUANTILES: [(&str, usize); 5] = [
    ("50 %", 500_000),
    ("99 %", 990_000),
    ("99.9 %", 999_000),
    ("99.99 %", 999_900),
    ("most", 1_000_000),
];

fn text(options: &Options, results: &[Measured; 3]) -> String {
    let headings = ["meanwhile", "batches"].into_iter().chain(QUANTILES.map(|(name, _)| name));
    let headings: Vec<&str> = headings.chain(["above 1 ms"]).collect();
    let table = |of: fn(&Seen) -> u64| {
        let mut table = Table::new(headings.clone());
        for (meanwhile, measured) in Meanwhile::ALL.into_iter().zip(results) {
            let sorted = sorted(&measured.seen, of);
            let mut row = vec![meanwhile.name().to_owned(), sorted.len().to_string()];
            let cells = QUANTILES.map(|(_, share)| format!("{:.1}", quantile_us(&sorted, share)));
            row.extend(cells);
            row.push(sorted.iter().filter(|ns| **ns > 1_000_000).count().to_string());
            table.row(row);
        }
        table
    };
    let (own, delays) = (table(|seen| seen.own), table(|seen| seen.delay));
    let Measured { plan_ms, swap_ms, .. } = &results[2];
    let Options { services, backends, pools, flows, rate, turns, .. } = options;
    format!(
        "Swap: packets while the plan changes\n\
         {services} services, {backends} backends in {pools} pools, {flows} flows over all services; batches of {BATCH_MAX}, {rate}\n\
         packets a second; {turns} turns. Each plan has another backend down.\n\
         Machine: {}\n\n\
         The worker's own processor time from taking a batch to sending it, microseconds:\n\n{own}\n\
         From when a batch was due to when it was sent, microseconds; who else uses the core included:\n\n{delays}\n\
         A plan and its view took {} ms to make, and {} ms until the worker had\n\
         taken it and the one before was freed: median (minimum - maximum), off the worker.\n",
        machine::label(),
        Range::of(plan_ms).show(0),
        Range::of(swap_ms).show(1),
    )
}

fn plot(results: &[Measured; 3]) -> String {
    let bars: Vec<svg::Bar> = Meanwhile::ALL
        .into_iter()
        .zip(results)
        .flat_map(|(meanwhile, measured)| {
            let sorted = sorted(&measured.seen, |seen| seen.own);
            QUANTILES.map(|(name, share)| svg::Bar {
                label: name.to_owned(),
                group: meanwhile.name().to_owned(),
                low: 0.0,
                high: quantile_us(&sorted, share),
            })
        })
        .collect();
    let frame = svg::Frame {
        title: "A worker's own time for a batch while plans change",
        x: "",
        y: "microseconds",
    };
    svg::bars(&frame, &bars)
}
