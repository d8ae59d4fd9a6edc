//! Whether the threads that packets need complete their loops: workers, slow path, steering
//! thread. If any of them hangs, the machine must not attract traffic any more.
//!
//! **Invariant:** reading takes no lock and waits for nothing: no change of plan, no metrics
//! page, no capture.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;

use crate::dataplane::threads::{Role, ThreadStatus};
use crate::dataplane::view_publisher::ViewPublisher;

/// The heartbeats of the threads that run now.
#[derive(Debug, Default)]
pub struct Liveness {
    publisher: ArcSwapOption<ViewPublisher>,
}

/// One thread's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// What the thread does.
    pub role: Role,
    /// Since it last went round its loop.
    pub age: Duration,
}

impl Liveness {
    /// From now on the threads of this publisher.
    pub fn follow(&self, publisher: &Arc<ViewPublisher>) {
        let known = self.publisher.load();
        if !known.as_ref().is_some_and(|known| Arc::ptr_eq(known, publisher)) {
            self.publisher.store(Some(Arc::clone(publisher)));
        }
    }

    /// From now on no thread.
    pub fn forget(&self) {
        self.publisher.store(None);
    }

    /// Every thread's; none before the first plan.
    #[must_use]
    pub fn heartbeats(&self) -> Vec<Heartbeat> {
        let publisher = self.publisher.load();
        publisher.iter().flat_map(|publisher| publisher.threads()).map(Heartbeat::of).collect()
    }

    /// That of the thread that gives frames back to the kernel; None: there is none.
    #[must_use]
    pub fn punt_age(&self) -> Option<Duration> {
        self.publisher.load().as_ref()?.punt().age()
    }

    /// That of the thread that has not gone round for longest; None before the
    /// first plan.
    #[must_use]
    pub fn oldest(&self) -> Option<Heartbeat> {
        self.heartbeats().into_iter().max_by_key(|heartbeat| heartbeat.age)
    }
}

impl Heartbeat {
    fn of(thread: &ThreadStatus) -> Heartbeat {
        Heartbeat { role: thread.role(), age: Duration::from_millis(thread.heartbeat_age_ms()) }
    }
}
