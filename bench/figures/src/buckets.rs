//! Buckets' results for figures 11 and 12. Only the controller assigns buckets, in Go, so
//! its tests count (`controller/buckets/figures_test.go`), and this module reads their
//! results.

use serde::Deserialize;

/// What was counted for a number of backends.
#[derive(Debug, Deserialize)]
pub struct Counted {
    /// Equal backends.
    pub backends: u32,
    /// Buckets that they share.
    pub buckets: u32,
    /// Buckets of the backend that has the fewest ...
    pub least: u32,
    /// ... and the most.
    pub most: u32,
    /// What moved, for each number of failed backends.
    pub failures: Vec<Failed>,
}

/// Buckets that moved when backends failed, which were drawn at random.
#[derive(Debug, Deserialize)]
pub struct Failed {
    /// How many failed at once.
    pub backends: u32,
    /// Draws.
    pub repetitions: u32,
    /// Buckets that moved, over all draws.
    pub sum: u32,
    /// Of these, buckets that the failed backends had.
    pub own: u32,
    /// In the draw with the fewest ...
    pub min: u32,
    /// ... and the most.
    pub max: u32,
}

impl Counted {
    /// What was counted for that many backends; None: nothing was.
    #[must_use]
    pub fn of(backends: u32) -> Option<Counted> {
        const FILE: &str = include_str!("../../../controller/buckets/testdata/figures.json");
        let all: Vec<Counted> =
            serde_json::from_str(FILE).expect("the controller's tests wrote it");
        all.into_iter().find(|counted| counted.backends == backends)
    }

    /// Per cent of all buckets.
    #[must_use]
    pub fn percent(&self, buckets: f64) -> f64 {
        buckets * 100.0 / f64::from(self.buckets)
    }

    /// What moved when that many failed; None: it was not counted.
    #[must_use]
    pub fn failed(&self, backends: u32) -> Option<&Failed> {
        self.failures.iter().find(|failed| failed.backends == backends)
    }
}

impl Failed {
    /// Buckets that moved, on average.
    #[must_use]
    pub fn mean(&self) -> f64 {
        f64::from(self.sum) / f64::from(self.repetitions)
    }

    /// Buckets of others that moved, on average.
    #[must_use]
    pub fn of_others(&self) -> f64 {
        f64::from(self.sum - self.own) / f64::from(self.repetitions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_buckets_are_shared_as_a_service_may_have() {
        let counted = Counted::of(1000).expect("figures 11 and 12 are of 1000 backends");
        assert_eq!(counted.buckets as usize, plan::limits::BUCKETS_MAX);
        assert!(counted.least <= counted.buckets / 1000 && counted.most > counted.buckets / 1000);
    }
}
