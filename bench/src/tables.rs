//! The cost of building a lookup table (paper 5.3 and table 3).

use std::hint::black_box;

use plan::select::maglev::{self, Candidate};

use crate::clock::{Samples, timed};

/// Builds tables of one size.
pub struct Builds {
    /// Entries of a table.
    pub size: u32,
    /// Milliseconds for a table, its permutations and fingerprint included.
    pub ms: Samples,
    /// The goal in milliseconds, with 1,000 backends (docs/performance.md).
    pub goal_ms: Option<f64>,
    candidates: Vec<Candidate>,
}

impl Builds {
    /// Of this number of backends.
    #[must_use]
    pub fn new(size: u32, goal_ms: Option<f64>, backends: u32) -> Builds {
        let name = |index| format!("backend-{index:05}");
        let candidates =
            (0..backends).map(|index| Candidate { name: name(index), weight: 1 }).collect();
        Builds { size, ms: Samples::default(), goal_ms, candidates }
    }

    /// Builds one.
    pub fn sample(&mut self) {
        let ns = timed(|| {
            black_box(maglev::selector(black_box(&self.candidates), self.size));
        });
        self.ms.push(ns as f64 / 1e6);
    }
}
