//! Where the control thread posts what to forward by, and workers say how
//! they are.
//!
//! ```text
//!  control: post(view) ─► epoch ─► each worker, between batches: takes the view, acknowledges
//!  control: all acknowledged ─► frees the old view
//!
//!  control: rest(stage) ─► each thread of that stage finishes what it has, says so, stands still
//! ```
//!
//! **Invariant:** a worker never frees a view: it gives up its reference
//! before it acknowledges, and the control thread keeps its own until then.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use datapath::View;
use rustix::time::{ClockId, clock_gettime};

/// The order in which threads come to rest, so that none has frames coming
/// that another would still bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Stage {
    /// Nobody rests.
    Work,
    /// The steering thread receives no more, but still sends.
    Receiving,
    /// Workers, once everything they have is decided and handed on.
    Workers,
    /// The steering thread, once it has sent everything; the slow path.
    All,
}

/// What a thread that packets need does. Written out it is the name that the
/// operating system shows (`top -H`), the log, status and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Runs packets to completion.
    Worker(usize),
    /// Decides what needs all workers' tables.
    SlowPath,
    /// Receives and sends for all workers (`steering: software`).
    Steering,
}

impl Role {
    /// As the gRPC status has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Worker(_) => "worker",
            Role::SlowPath => "slow_path",
            Role::Steering => "steering",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Worker(index) => write!(f, "worker-{index}"),
            Role::SlowPath => f.write_str("slow-path"),
            Role::Steering => f.write_str("steering"),
        }
    }
}

/// A thread at rest looks this often whether it may go on.
pub const REST_PAUSE: Duration = Duration::from_micros(200);

/// What to forward by, for all threads.
#[derive(Debug)]
pub struct Board {
    view: ArcSwap<View>,
    epoch: AtomicU64,
    stop: AtomicBool,
    /// A [`Stage`].
    rest: AtomicU32,
    desks: Box<[Desk]>,
}

/// What one thread says of itself. Written by the thread only, on a cache
/// line of its own.
#[derive(Debug)]
#[repr(align(128))]
pub struct Desk {
    role: Role,
    acknowledged: AtomicU64,
    generation: AtomicU64,
    heartbeat_ms: AtomicU64,
    busy_permille: AtomicU32,
    cpu: AtomicI32,
    /// The [`Stage`] that it has reached.
    resting: AtomicU32,
}

impl Board {
    /// A board for so many workers, the slow path, and the steering thread if
    /// there is one. Worker i has the desk of that number.
    #[must_use]
    pub fn new(view: Arc<View>, workers: usize, steered: bool) -> Board {
        let steering = steered.then_some(Role::Steering);
        let roles = (0..workers).map(Role::Worker).chain([Role::SlowPath]).chain(steering);
        Board {
            view: ArcSwap::new(view),
            epoch: AtomicU64::new(1),
            stop: AtomicBool::new(false),
            rest: AtomicU32::new(Stage::Work as u32),
            desks: roles.map(Desk::new).collect(),
        }
    }

    /// The desk of the thread with that role.
    ///
    /// # Panics
    /// If there is no such thread.
    #[must_use]
    pub fn desk_of(&self, role: Role) -> usize {
        let desk = self.desks.iter().position(|desk| desk.role == role);
        desk.expect("a thread is started only if the board has a desk for it")
    }

    /// Replaces the view; the old one, to be kept until all have
    /// acknowledged. Workers that sleep are to be woken by the caller.
    #[must_use]
    pub fn post(&self, view: Arc<View>) -> Arc<View> {
        let old = self.view.swap(view);
        self.epoch.fetch_add(1, Ordering::Release);
        old
    }

    /// Gives the thread at that desk what was posted since `epoch`. Its old
    /// view is given up before that is acknowledged: the invariant.
    #[inline]
    pub fn adopt(&self, desk: usize, epoch: &mut u64, view: &mut Arc<View>) {
        let posted = self.epoch();
        if posted != *epoch {
            *view = self.view();
            *epoch = posted;
            self.desks[desk].acknowledge(posted, view.plan.generation);
        }
    }

    /// Waits until every thread forwards by what was posted last. Err: those
    /// that do not go round.
    pub fn wait(&self, patience: Duration) -> Result<(), Vec<Role>> {
        let epoch = self.epoch.load(Ordering::Acquire);
        let start = Instant::now();
        loop {
            let late = self.desks.iter().filter(|desk| desk.acknowledged() < epoch);
            let late: Vec<Role> = late.map(|desk| desk.role).collect();
            if late.is_empty() {
                return Ok(());
            }
            if start.elapsed() > patience {
                return Err(late);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Tells all workers to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// True once they are told.
    #[inline]
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Asks threads to come to rest, up to that stage; [`Stage::Work`]: to go
    /// on. Those that sleep are to be woken by the caller.
    pub fn rest(&self, stage: Stage) {
        self.rest.store(stage as u32, Ordering::Release);
    }

    /// True while threads of that stage are to rest.
    #[inline]
    #[must_use]
    pub fn rests(&self, stage: Stage) -> bool {
        self.rest.load(Ordering::Acquire) >= stage as u32
    }

    /// Has the calling thread, whose desk that is, say that it has reached the
    /// stage, and sleep until it may go on.
    pub fn stand_still(&self, desk: &Desk, stage: Stage) {
        desk.set_resting(stage);
        while self.rests(stage) && !self.stopped() {
            desk.beat(monotonic_ms());
            std::thread::sleep(REST_PAUSE);
        }
    }

    /// Waits until the threads at these desks have reached the stage. Err:
    /// those that have not.
    pub fn wait_at_rest(
        &self,
        desks: std::ops::Range<usize>,
        stage: Stage,
        patience: Duration,
    ) -> Result<(), Vec<Role>> {
        let start = Instant::now();
        loop {
            let busy = self.desks[desks.clone()].iter();
            let busy = busy.filter(|desk| desk.resting() < stage as u32);
            let busy: Vec<Role> = busy.map(|desk| desk.role).collect();
            if busy.is_empty() {
                return Ok(());
            }
            if start.elapsed() > patience {
                return Err(busy);
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// What is posted now.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Counts what was posted: a worker compares it once per batch.
    #[inline]
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// All threads' desks.
    #[must_use]
    pub fn desks(&self) -> &[Desk] {
        &self.desks
    }
}

impl Desk {
    /// Its thread counts as alive from the beginning, not from its first
    /// round.
    fn new(role: Role) -> Desk {
        Desk {
            role,
            acknowledged: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            heartbeat_ms: AtomicU64::new(monotonic_ms()),
            busy_permille: AtomicU32::new(0),
            cpu: AtomicI32::new(-1),
            resting: AtomicU32::new(Stage::Work as u32),
        }
    }

    /// What its thread does.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    /// The worker forwards by the plan of `generation` as of `epoch`, and has
    /// given up whatever it had before.
    pub fn acknowledge(&self, epoch: u64, generation: u64) {
        self.generation.store(generation, Ordering::Relaxed);
        self.acknowledged.store(epoch, Ordering::Release);
    }

    fn resting(&self) -> u32 {
        self.resting.load(Ordering::Acquire)
    }

    /// The thread stands still as that stage asks, and touches nothing; or
    /// goes on ([`Stage::Work`]).
    pub fn set_resting(&self, stage: Stage) {
        self.resting.store(stage as u32, Ordering::Release);
    }

    /// The thread goes round its loop.
    #[inline]
    pub fn beat(&self, now_ms: u64) {
        self.heartbeat_ms.store(now_ms, Ordering::Relaxed);
    }

    /// The share of the latest second spent on frames.
    pub fn set_busy(&self, permille: u32) {
        self.busy_permille.store(permille, Ordering::Relaxed);
    }

    /// The core it is pinned to; None: the kernel's choice.
    pub fn set_cpu(&self, cpu: Option<usize>) {
        self.cpu.store(cpu.map_or(-1, |cpu| cpu as i32), Ordering::Relaxed);
    }

    /// Milliseconds since it last went round.
    #[must_use]
    pub fn heartbeat_age_ms(&self) -> u64 {
        monotonic_ms().saturating_sub(self.heartbeat_ms.load(Ordering::Relaxed))
    }

    /// As the gRPC status has it.
    #[must_use]
    pub fn status(&self) -> crate::proto::Thread {
        crate::proto::Thread {
            role: self.role.name().to_owned(),
            name: self.role.to_string(),
            heartbeat_age_ms: self.heartbeat_age_ms(),
            generation: self.generation.load(Ordering::Relaxed),
            cpu: self.cpu.load(Ordering::Relaxed),
            busy_ratio: self.busy_ratio(),
        }
    }

    /// The share of the latest second spent on frames, 0 to 1.
    #[must_use]
    pub fn busy_ratio(&self) -> f64 {
        f64::from(self.busy_permille.load(Ordering::Relaxed)) / 1000.0
    }
}

/// Nanoseconds of the clock that all processes since boot share, so that a
/// successor's tables go on with the same time.
#[inline]
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The same in milliseconds.
#[inline]
#[must_use]
pub fn monotonic_ms() -> u64 {
    monotonic_ns() / 1_000_000
}
