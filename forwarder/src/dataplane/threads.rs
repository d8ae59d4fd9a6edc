//! The threads that packets need: what each does and reports, where it runs, and the clock that
//! all share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// The longest sleep: the heartbeat goes on, and the connection table is
/// swept, where nothing arrives.
pub const SLEEP_MAX: Duration = Duration::from_millis(50);

/// A thread at rest looks this often whether it may go on.
pub const REST_PAUSE: Duration = Duration::from_micros(200);

/// The order in which threads come to rest, so that none has frames coming
/// that another would still bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Stage {
    /// No thread rests.
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

/// What one thread says of itself. Written by the thread only, on a cache
/// line of its own.
#[derive(Debug)]
#[repr(align(128))]
pub struct ThreadStatus {
    role: Role,
    acknowledged: AtomicU64,
    generation: AtomicU64,
    heartbeat_ms: AtomicU64,
    busy_permille: AtomicU32,
    cpu: AtomicI32,
    /// The [`Stage`] that it has reached.
    resting: AtomicU32,
}

impl ThreadStatus {
    /// Its thread counts as alive from the beginning, not from its first
    /// round.
    #[must_use]
    pub fn new(role: Role) -> ThreadStatus {
        ThreadStatus {
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

    /// The epoch that it forwards by.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    /// The worker forwards by the plan of `generation` as of `epoch`, and has
    /// given up whatever it had before.
    pub fn acknowledge(&self, epoch: u64, generation: u64) {
        self.generation.store(generation, Ordering::Relaxed);
        self.acknowledged.store(epoch, Ordering::Release);
    }

    /// The stage that it has reached, as a number.
    #[must_use]
    pub fn resting(&self) -> u32 {
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

/// When a thread that packets do not need at once last went round its loop:
/// milliseconds of the monotonic clock; 0: there is no such thread.
#[derive(Debug, Clone, Default)]
pub struct Heartbeat(Arc<AtomicU64>);

impl Heartbeat {
    /// Of a thread that notes its rounds there.
    #[must_use]
    pub fn of(last_round: Arc<AtomicU64>) -> Heartbeat {
        Heartbeat(last_round)
    }

    /// Since then; None: there is no thread.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        let last = self.0.load(Ordering::Relaxed);
        (last > 0).then(|| Duration::from_millis(monotonic_ms().saturating_sub(last)))
    }

    /// The thread goes round its loop.
    pub fn beat(&self) {
        self.0.store(monotonic_ms(), Ordering::Relaxed);
    }

    /// There is no thread any more.
    pub fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
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

/// The cores that this process may use; workers take them in turn.
#[must_use]
pub fn cpus() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()
}

/// Has the calling thread run on that core only; None: the kernel's choice.
pub fn pin(cpu: Option<usize>, thread: Role) -> Option<usize> {
    cpu.filter(|cpu| {
        let mut set = CpuSet::new();
        set.set(*cpu);
        let done = sched_setaffinity(None, &set);
        if let Err(error) = done {
            tracing::warn!(%thread, cpu, %error, "pinning failed");
        }
        done.is_ok()
    })
}
