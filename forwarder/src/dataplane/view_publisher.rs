//! Where the control thread publishes a view, and workers report their state.
//!
//! ```text
//!  control: post(view) ─► epoch ─► each worker, between batches: takes the view, acknowledges
//!  control: all acknowledged ─► frees the old view
//!
//!  control: rest(stage) ─► each thread of that stage finishes what it has, says so, stands still
//! ```
//!
//! **Invariant:** a worker never frees a view: it gives up its reference before it
//! acknowledges, and the control thread keeps its own until then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use datapath::View;

use crate::dataplane::threads::{Heartbeat, REST_PAUSE, Role, Stage, ThreadStatus, monotonic_ms};

/// What to forward by, for all threads.
#[derive(Debug)]
pub struct ViewPublisher {
    view: ArcSwap<View>,
    epoch: AtomicU64,
    stop: AtomicBool,
    /// A [`Stage`].
    rest: AtomicU32,
    threads: Box<[ThreadStatus]>,
    punt: Heartbeat,
}

impl ViewPublisher {
    /// A publisher for `workers` workers, the slow path, and the steering thread if
    /// there is one. Worker i is thread i.
    #[must_use]
    pub fn new(view: Arc<View>, workers: usize, steered: bool) -> ViewPublisher {
        let steering = steered.then_some(Role::Steering);
        let roles = (0..workers).map(Role::Worker).chain([Role::SlowPath]).chain(steering);
        ViewPublisher {
            view: ArcSwap::new(view),
            epoch: AtomicU64::new(1),
            stop: AtomicBool::new(false),
            rest: AtomicU32::new(Stage::Work as u32),
            threads: roles.map(ThreadStatus::new).collect(),
            punt: Heartbeat::default(),
        }
    }

    /// Of the thread that gives back to the kernel what is the kernel's: it forwards by
    /// no view.
    #[must_use]
    pub fn punt(&self) -> &Heartbeat {
        &self.punt
    }

    /// The index of the thread with that role.
    ///
    /// # Panics
    /// If there is no such thread.
    #[must_use]
    pub fn thread_of(&self, role: Role) -> usize {
        let thread = self.threads.iter().position(|thread| thread.role() == role);
        thread.expect("a thread is started only if the publisher has a thread for it")
    }

    /// Replaces the view; the old one, to be kept until all have
    /// acknowledged. Workers that sleep are to be woken by the caller.
    #[must_use]
    pub fn post(&self, view: Arc<View>) -> Arc<View> {
        let old = self.view.swap(view);
        self.epoch.fetch_add(1, Ordering::Release);
        old
    }

    /// Gives the thread of that index what was posted since `epoch`. Its old
    /// view is given up before that is acknowledged: the invariant.
    #[inline]
    pub fn adopt(&self, thread: usize, epoch: &mut u64, view: &mut Arc<View>) {
        let posted = self.epoch();
        if posted != *epoch {
            *view = self.view();
            *epoch = posted;
            self.threads[thread].acknowledge(posted, view.plan.generation);
        }
    }

    /// Waits until every thread forwards by what was posted last. Err: those
    /// that do not go round.
    pub fn wait(&self, timeout: Duration) -> Result<(), Vec<Role>> {
        let epoch = self.epoch();
        wait_for(&self.threads, |thread| thread.acknowledged() >= epoch, timeout)
    }

    /// Orders all workers to end.
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

    /// Has the calling thread, whose status that is, report that it has reached the
    /// stage, and sleep until it may go on.
    pub fn stand_still(&self, thread: &ThreadStatus, stage: Stage) {
        thread.set_resting(stage);
        while self.rests(stage) && !self.stopped() {
            thread.beat(monotonic_ms());
            std::thread::sleep(REST_PAUSE);
        }
    }

    /// Waits until these threads have reached the stage. Err: those that have
    /// not.
    pub fn wait_at_rest(
        &self,
        threads: std::ops::Range<usize>,
        stage: Stage,
        timeout: Duration,
    ) -> Result<(), Vec<Role>> {
        wait_for(&self.threads[threads], |thread| thread.resting() >= stage as u32, timeout)
    }

    /// Waits until no thread rests. Err: those that do.
    pub fn wait_at_work(&self, timeout: Duration) -> Result<(), Vec<Role>> {
        wait_for(&self.threads, |thread| thread.resting() == Stage::Work as u32, timeout)
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

    /// What each thread reports of itself.
    #[must_use]
    pub fn threads(&self) -> &[ThreadStatus] {
        &self.threads
    }
}

/// Waits until every thread is as wanted. Err: those that are not.
fn wait_for(
    threads: &[ThreadStatus],
    is_so: impl Fn(&ThreadStatus) -> bool,
    timeout: Duration,
) -> Result<(), Vec<Role>> {
    let start = Instant::now();
    loop {
        let others = threads.iter().filter(|thread| !is_so(thread));
        let others: Vec<Role> = others.map(ThreadStatus::role).collect();
        if others.is_empty() {
            return Ok(());
        }
        if start.elapsed() > timeout {
            return Err(others);
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}
