//! Chooses the worker for a frame. Uses no ring, no frame and no clock.

/// Dispatches frames to workers: a flow's frames to its own worker as long as that
/// has room, else to the others in turn (paper 3.1).
#[derive(Debug)]
pub struct Dispatcher {
    workers: usize,
    next: usize,
}

/// Which worker gets a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatch {
    /// Its flow's own.
    Own(usize),
    /// Another, because that one is full.
    Misdirected(usize),
    /// None: all are full.
    AllFull,
}

impl Dispatcher {
    /// Over `workers` workers, at least one.
    #[must_use]
    pub fn new(workers: usize) -> Dispatcher {
        assert!(workers > 0, "there is at least one worker");
        Dispatcher { workers, next: 0 }
    }

    /// The worker of a flow with that hash: equal shares of all hashes.
    #[inline]
    #[must_use]
    pub fn worker_of(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.workers as u128) >> 64) as usize
    }

    /// The worker of a frame whose flow's own worker is `own`.
    #[inline]
    pub fn dispatch(&mut self, own: usize, has_room: impl Fn(usize) -> bool) -> Dispatch {
        if has_room(own) { Dispatch::Own(own) } else { self.elsewhere(own, has_room) }
    }

    #[cold]
    fn elsewhere(&mut self, own: usize, has_room: impl Fn(usize) -> bool) -> Dispatch {
        for _ in 0..self.workers {
            let worker = self.next;
            self.next = (worker + 1) % self.workers;
            if worker != own && has_room(worker) {
                return Dispatch::Misdirected(worker);
            }
        }
        Dispatch::AllFull
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_all_hashes_equally() {
        let dispatcher = Dispatcher::new(3);
        let third = u64::MAX / 3;
        let hashes = [0, third - 1, third + 2, 2 * third, 2 * third + 3, u64::MAX];
        assert_eq!(hashes.map(|hash| dispatcher.worker_of(hash)), [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn a_flow_stays_at_its_own_worker_while_there_is_room() {
        let mut dispatcher = Dispatcher::new(4);
        for _ in 0..10 {
            assert_eq!(dispatcher.dispatch(2, |_| true), Dispatch::Own(2));
        }
    }

    #[test]
    fn frames_of_a_full_worker_go_round_the_others() {
        let mut dispatcher = Dispatcher::new(4);
        let dispatched: Vec<Dispatch> =
            (0..6).map(|_| dispatcher.dispatch(1, |worker| worker != 1)).collect();
        assert_eq!(dispatched, [0, 2, 3, 0, 2, 3].map(Dispatch::Misdirected));
    }

    #[test]
    fn full_workers_are_left_out_until_all_are() {
        let mut dispatcher = Dispatcher::new(4);
        for _ in 0..3 {
            assert_eq!(dispatcher.dispatch(1, |worker| worker == 3), Dispatch::Misdirected(3));
        }
        assert_eq!(dispatcher.dispatch(1, |_| false), Dispatch::AllFull);
        assert_eq!(Dispatcher::new(1).dispatch(0, |_| false), Dispatch::AllFull);
    }
}
