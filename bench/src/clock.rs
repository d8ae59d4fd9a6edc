//! Measures time as this thread's processor time, so that other processes do not count.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of processor time that this thread has used.
#[must_use]
pub fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of processor time that `work` takes.
pub fn timed(work: impl FnOnce()) -> u64 {
    let before = thread_ns();
    work();
    thread_ns() - before
}

/// Samples of one quantity, taken over the whole run.
#[derive(Debug, Clone, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds a sample.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// These in proportion to those taken at the same times.
    #[must_use]
    pub fn over(&self, others: &Samples) -> Samples {
        Samples(self.0.iter().zip(&others.0).map(|(mine, other)| mine / other).collect())
    }

    /// The sample that half of them are below.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// The smallest: what it takes undisturbed.
    #[must_use]
    pub fn best(&self) -> f64 {
        self.at(0.0)
    }

    fn at(&self, quantile: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * quantile) as usize]
    }
}
