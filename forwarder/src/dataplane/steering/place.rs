//! Who gets a frame. Knows no ring, no frame and no clock.

/// Places frames on workers: a flow's frames on its home as long as that has
/// room, else on the others in turn (paper 3.1).
#[derive(Debug)]
pub struct Placement {
    workers: usize,
    next: usize,
}

/// Where a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// To its flow's worker.
    Home(usize),
    /// To another, because that one is full.
    Misdirected(usize),
    /// All are full.
    Nowhere,
}

impl Placement {
    /// Over `workers` workers, at least one.
    #[must_use]
    pub fn new(workers: usize) -> Placement {
        assert!(workers > 0, "there is at least one worker");
        Placement { workers, next: 0 }
    }

    /// The worker of a flow with that hash: equal shares of all hashes.
    #[inline]
    #[must_use]
    pub fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.workers as u128) >> 64) as usize
    }

    /// Where a frame goes whose flow is at `home`.
    #[inline]
    pub fn place(&mut self, home: usize, has_room: impl Fn(usize) -> bool) -> Place {
        if has_room(home) { Place::Home(home) } else { self.elsewhere(home, has_room) }
    }

    #[cold]
    fn elsewhere(&mut self, home: usize, has_room: impl Fn(usize) -> bool) -> Place {
        for _ in 0..self.workers {
            let worker = self.next;
            self.next = (worker + 1) % self.workers;
            if worker != home && has_room(worker) {
                return Place::Misdirected(worker);
            }
        }
        Place::Nowhere
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_share_all_hashes_equally() {
        let placement = Placement::new(3);
        let third = u64::MAX / 3;
        let homes = [0, third - 1, third + 2, 2 * third, 2 * third + 3, u64::MAX];
        assert_eq!(homes.map(|hash| placement.home(hash)), [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn a_flow_stays_at_home_while_there_is_room() {
        let mut placement = Placement::new(4);
        for _ in 0..10 {
            assert_eq!(placement.place(2, |_| true), Place::Home(2));
        }
    }

    #[test]
    fn a_full_homes_frames_go_round_the_others() {
        let mut placement = Placement::new(4);
        let places: Vec<Place> = (0..6).map(|_| placement.place(1, |worker| worker != 1)).collect();
        assert_eq!(places, [0, 2, 3, 0, 2, 3].map(Place::Misdirected));
    }

    #[test]
    fn full_ones_are_left_out_and_only_if_all_are_full_it_is_nowhere() {
        let mut placement = Placement::new(4);
        for _ in 0..3 {
            assert_eq!(placement.place(1, |worker| worker == 3), Place::Misdirected(3));
        }
        assert_eq!(placement.place(1, |_| false), Place::Nowhere);
        assert_eq!(Placement::new(1).place(0, |_| false), Place::Nowhere);
    }
}
