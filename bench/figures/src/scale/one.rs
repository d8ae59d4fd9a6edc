//! One line of the result: a plan, its workers, and one backend going down and up.

use std::collections::HashSet;
use std::fs;
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::thread;

use datapath::View;
use guideway_bench::setup::{self, Decides, Setup};
use guideway_bench::traffic::{Frames, Kind, Traffic};
use guideway_bench::worker;
use guideway_forwarder::observe::compared::compared;
use plan::proto::Encap;
use plan::{Group, Plan, Planner, proto};
use serde::{Deserialize, Serialize};
use sim::LoadBalancer;
use wire::tcp;

use crate::machine::thread_time;
use crate::stats::Range;

/// What the line is of.
#[derive(Debug, Clone, clap::Args)]
pub struct One {
    /// Services
    #[arg(long)]
    pub services: u32,
    /// Of these, with traffic where not all have
    #[arg(long)]
    pub busy_services: u32,
    /// Backends
    #[arg(long)]
    pub backends: u32,
    /// Pools
    #[arg(long)]
    pub pools: u32,
    /// Workers
    #[arg(long)]
    pub workers: u32,
    /// Flows over all workers
    #[arg(long)]
    pub flows: u64,
    /// Packets over all workers
    #[arg(long)]
    pub packets: u64,
}

/// What it did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Nanoseconds of processor time a packet, traffic on some services.
    pub some_busy_ns: f64,
    /// The same with traffic on all.
    pub all_busy_ns: f64,
    /// Milliseconds of processor time to make the first plan.
    pub plan_ms: f64,
    /// To make the plan in which one backend is down.
    pub flap_ms: f64,
    /// To compare the plan with one of two services, as `config plan` does.
    pub compared_ms: f64,
    /// Tables that this one has not from the first.
    pub tables_built: usize,
    /// Tables in it.
    pub tables: usize,
    /// Milliseconds to make its view, next hops known.
    pub view_ms: f64,
    /// By how much the process grew for the plan, its message included.
    pub plan_mib: f64,
    /// For the view: tunnels, and counters of all workers.
    pub view_mib: f64,
    /// Plan and view, and the plan and view after the flap beside them.
    pub both_mib: f64,
    /// Connection tables of all workers.
    pub connections_mib: f64,
}

/// Frames of a worker.
const FRAMES: usize = 1024;
const ROUNDS: u64 = 5;

impl One {
    /// The command line by which this program does it.
    pub fn arguments(&self) -> Vec<String> {
        let One { services, busy_services, backends, pools, workers, flows, packets } = self;
        format!(
            "scale-one --services {services} --busy-services {busy_services} --backends {backends} \
             --pools {pools} --workers {workers} --flows {flows} --packets {packets}"
        )
        .split(' ')
        .map(str::to_owned)
        .collect()
    }

    fn setup(&self) -> Setup {
        let flows = (self.flows / u64::from(self.workers)).max(1);
        Setup {
            services: self.services,
            busy_services: self.services,
            prefixes: 0,
            pools: self.pools,
            backends: self.backends,
            weight_max: 1,
            table_size: 0,
            flows,
            connections: flows,
            packet_bytes: 46,
            ipv6: false,
            encap: Encap::Gre,
            decides: Decides::Tracking,
        }
    }
}

/// Measures it.
///
/// # Errors
/// If the parameters make no plan, or memory is short.
pub fn run(one: &One) -> Result<Measured, String> {
    if [one.services, one.backends, one.pools, one.workers].contains(&0) {
        return Err("of services, backends, pools and workers there has to be one each".to_owned());
    }
    let setup = one.setup();
    setup.check()?;
    let workers = one.workers as usize;
    let mut planner = Planner::default();
    let start_mib = resident_mib()?;
    let (plan, plan_ms) = timed_ms(|| planner.plan(setup.message()));
    let plan = Arc::new(plan.map_err(|error| error.to_string())?);
    let planned_mib = resident_mib()?;
    let view = Arc::new(setup::view(Arc::clone(&plan), workers));
    let viewed_mib = resident_mib()?;

    let few = Setup { services: setup.services.min(2), pools: setup.pools.min(2), ..setup.clone() };
    let few = planner.clone().plan(few.message()).map_err(|error| error.to_string())?;
    let (_, compared_ms) = timed_ms(|| compared(&few, &plan, &[], |_| false, || true));
    drop(few);
    let message = down(setup.message());
    let (after, flap_ms) = timed_ms(|| planner.plan(message));
    let after = Arc::new(after.map_err(|error| error.to_string())?);
    let (after_view, view_ms) = timed_ms(|| setup::view(Arc::clone(&after), workers));
    let both_mib = resident_mib()?;
    let (before, tables) = (groups(&plan), groups(&after));
    let tables_built = tables.difference(&before).count();
    drop(black_box(after_view));

    let mut crew = Crew::new(one, &setup, &view)?;
    let connections_mib = crew.connections_bytes() / MIB;
    let all_busy_ns = crew.cost(one, &setup)?;
    let some = Setup { busy_services: one.busy_services, ..setup };
    Ok(Measured {
        some_busy_ns: crew.cost(one, &some)?,
        all_busy_ns,
        plan_ms,
        flap_ms,
        compared_ms,
        tables_built,
        tables: tables.len(),
        view_ms,
        plan_mib: planned_mib - start_mib,
        view_mib: viewed_mib - planned_mib,
        both_mib: both_mib - start_mib,
        connections_mib,
    })
}

/// The same plan with its first backend down.
fn down(mut message: proto::Plan) -> proto::Plan {
    message.generation += 1;
    let name = message.backends[0].name.clone();
    let members = message.groups.iter_mut().flat_map(|group| &mut group.members);
    for member in members.filter(|member| member.backend == name) {
        member.state = proto::BackendState::Down as i32;
    }
    message
}

/// Sets of members, each with one table.
fn groups(plan: &Plan) -> HashSet<*const Group> {
    plan.services().map(|service| Arc::as_ptr(&service.group)).collect()
}

/// Workers of one view.
struct Crew(Vec<Hand>);

/// A worker with frames and a clock of its own.
struct Hand {
    worker: LoadBalancer,
    frames: Frames,
    now_ms: u32,
}

impl Crew {
    fn new(one: &One, setup: &Setup, view: &Arc<View>) -> Result<Crew, String> {
        let worker = |index| {
            let worker = worker::new(Arc::clone(view), index, setup.connections)?;
            Ok(Hand { worker, frames: Frames::new(FRAMES)?, now_ms: 0 })
        };
        Ok(Crew((0..one.workers as usize).map(worker).collect::<Result<_, String>>()?))
    }

    fn connections_bytes(&self) -> f64 {
        self.0.iter().map(|hand| hand.worker.table_bytes() as f64).sum()
    }

    /// Nanoseconds of a packet, all workers at work.
    fn cost(&mut self, one: &One, setup: &Setup) -> Result<f64, String> {
        let packets = one.packets / ROUNDS / u64::from(one.workers);
        let together = Barrier::new(self.0.len());
        let costs: Vec<Result<f64, String>> = thread::scope(|scope| {
            let start = |hand| scope.spawn(|| Hand::cost(hand, setup, packets, &together));
            let threads: Vec<_> = self.0.iter_mut().map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("a worker panicked")).collect()
        });
        let costs: Vec<f64> = costs.into_iter().collect::<Result<_, _>>()?;
        Ok(costs.iter().sum::<f64>() / costs.len() as f64)
    }
}

impl Hand {
    /// With all flows of the setup established, and no others.
    fn cost(&mut self, setup: &Setup, packets: u64, together: &Barrier) -> Result<f64, String> {
        let mut traffic = Traffic::new(setup, Kind::Data)?;
        self.worker.clear_tables();
        for flags in [tcp::Flags::SYN, tcp::Flags::ACK] {
            for first in (0..setup.flows).step_by(self.frames.len()) {
                traffic.fill_in_order(&mut self.frames, first, flags);
                self.forward();
            }
            self.now_ms += 200;
        }
        together.wait();
        let passes = (packets as usize).div_ceil(self.frames.len());
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let mut ms = 0.0;
            for _ in 0..passes {
                traffic.fill(&mut self.frames);
                self.now_ms += 1;
                ms += timed_ms(|| self.forward()).1;
            }
            rounds.push(ms * 1e6 / (passes * self.frames.len()) as f64);
        }
        let totals = self.worker.totals();
        if totals.sent != totals.accounted() {
            return Err(format!(
                "only {} of {} packets were sent",
                totals.sent,
                totals.accounted()
            ));
        }
        Ok(Range::of(&rounds).median)
    }

    fn forward(&mut self) {
        for batch in &mut self.frames.batches {
            self.worker.forward_in_place(self.now_ms, batch);
        }
    }
}

fn timed_ms<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let before = thread_time();
    let done = work();
    (done, (thread_time() - before).as_secs_f64() * 1000.0)
}

const MIB: f64 = (1 << 20) as f64;

/// What the process has in memory.
fn resident_mib() -> Result<f64, String> {
    const FILE: &str = "/proc/self/status";
    let text = fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    Ok(kib.ok_or(format!("{FILE} has no VmRSS"))? / 1024.0)
}
