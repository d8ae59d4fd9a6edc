//! Whether the threads that packets need go round their loops: workers, slow
//! path, steering thread. If any of them hangs, the machine must not attract
//! traffic any more.
//!
//! **Invariant:** reading takes no lock, and waits for nobody: neither for a
//! change of plan, nor for a page, nor for a capture.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;

use crate::worker::{Board, Desk, Role};

/// The heartbeats of the threads that run now.
#[derive(Debug, Default)]
pub struct Liveness {
    board: ArcSwapOption<Board>,
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
    /// From now on the threads of this board.
    pub fn follow(&self, board: &Arc<Board>) {
        let known = self.board.load();
        if !known.as_ref().is_some_and(|known| Arc::ptr_eq(known, board)) {
            self.board.store(Some(Arc::clone(board)));
        }
    }

    /// From now on no thread.
    pub fn forget(&self) {
        self.board.store(None);
    }

    /// Every thread's; none before the first plan.
    #[must_use]
    pub fn heartbeats(&self) -> Vec<Heartbeat> {
        let board = self.board.load();
        board.iter().flat_map(|board| board.desks()).map(Heartbeat::of).collect()
    }

    /// That of the thread that has not gone round for longest; None before the
    /// first plan.
    #[must_use]
    pub fn oldest(&self) -> Option<Heartbeat> {
        self.heartbeats().into_iter().max_by_key(|heartbeat| heartbeat.age)
    }
}

impl Heartbeat {
    fn of(desk: &Desk) -> Heartbeat {
        Heartbeat { role: desk.role(), age: Duration::from_millis(desk.heartbeat_age_ms()) }
    }
}
