//! The latest dropped frames for each reason, which say more than a counter.
//!
//! Each worker writes its own, in words that any thread may read meanwhile: without a lock or
//! an allocation, and without any cost for frames that are not dropped. In a flood, a drop
//! costs a load and a comparison: at most one frame per millisecond is kept for each reason.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use datapath::DropReason;

/// Kept of each reason.
const KEPT: usize = 4;

/// How much of a frame is kept: tunnel, addresses and ports of IPv6 in IPv6.
const START_BYTES: usize = 112;

const WORDS: usize = START_BYTES / 8;

/// One worker's samples.
#[derive(Debug)]
pub struct DropSamples {
    now_ms: AtomicU64,
    reasons: Box<[Samples]>,
}

/// Of one reason: a ring.
#[derive(Debug, Default)]
struct Samples {
    taken: AtomicU64,
    latest_ms: AtomicU64,
    cells: [SampleCell; KEPT],
}

/// A frame. Odd version: being written (a sequence lock).
#[derive(Debug, Default)]
struct SampleCell {
    version: AtomicU64,
    at_ms: AtomicU64,
    frame_bytes: AtomicU64,
    start: [AtomicU64; WORDS],
}

/// A dropped frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Why it was dropped.
    pub reason: DropReason,
    /// When, by the clock of [`crate::dataplane::threads::monotonic_ms`].
    pub at_ms: u64,
    /// Its length.
    pub frame_bytes: u32,
    /// Its beginning.
    pub start: Vec<u8>,
}

impl Default for DropSamples {
    fn default() -> DropSamples {
        let reasons = DropReason::ALL.iter().map(|_| Samples::default()).collect();
        DropSamples { now_ms: AtomicU64::new(0), reasons }
    }
}

impl DropSamples {
    /// Sets the time; the worker's, once a round.
    #[inline]
    pub fn begin(&self, now_ms: u64) {
        self.now_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Keeps a frame that is being dropped; the worker's alone.
    #[cold]
    pub fn note(&self, reason: DropReason, frame: &[u8]) {
        let now_ms = self.now_ms.load(Ordering::Relaxed);
        let samples = &self.reasons[reason.index()];
        let taken = samples.taken.load(Ordering::Relaxed);
        if taken > 0 && samples.latest_ms.load(Ordering::Relaxed) == now_ms {
            return;
        }
        samples.latest_ms.store(now_ms, Ordering::Relaxed);
        samples.cells[taken as usize % KEPT].write(now_ms, frame);
        samples.taken.store(taken + 1, Ordering::Relaxed);
    }

    /// What is kept, in order of reason, the latest first. A frame that is
    /// replaced at this very moment is left out.
    #[must_use]
    pub fn read(&self) -> Vec<Sample> {
        let mut all = Vec::new();
        for (samples, reason) in self.reasons.iter().zip(DropReason::ALL) {
            let mut kept: Vec<Sample> =
                samples.cells.iter().filter_map(|cell| cell.read(*reason)).collect();
            kept.sort_by_key(|sample| std::cmp::Reverse(sample.at_ms));
            all.extend(kept);
        }
        all
    }
}

impl SampleCell {
    fn write(&self, at_ms: u64, frame: &[u8]) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.at_ms.store(at_ms, Ordering::Relaxed);
        self.frame_bytes.store(frame.len() as u64, Ordering::Relaxed);
        let mut start = [0; START_BYTES];
        let kept = frame.len().min(START_BYTES);
        start[..kept].copy_from_slice(&frame[..kept]);
        let (words, _) = start.as_chunks::<8>();
        for (to, word) in self.start.iter().zip(words) {
            to.store(u64::from_le_bytes(*word), Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }

    fn read(&self, reason: DropReason) -> Option<Sample> {
        let version = self.version.load(Ordering::Acquire);
        if version == 0 || !version.is_multiple_of(2) {
            return None;
        }
        let at_ms = self.at_ms.load(Ordering::Relaxed);
        let frame_bytes = self.frame_bytes.load(Ordering::Relaxed) as u32;
        let words = self.start.iter().map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        let mut start: Vec<u8> = words.flatten().collect();
        fence(Ordering::Acquire);
        if self.version.load(Ordering::Relaxed) != version {
            return None;
        }
        start.truncate(frame_bytes as usize);
        Some(Sample { reason, at_ms, frame_bytes, start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_of_each_reason_are_kept() {
        let samples = DropSamples::default();
        for at in 1..=6_u8 {
            samples.begin(u64::from(at));
            samples.note(DropReason::NoService, &[at; 200]);
        }
        samples.note(DropReason::TooBig, b"short");
        let kept = samples.read();
        let times: Vec<u64> = kept.iter().map(|sample| sample.at_ms).collect();
        assert_eq!(times, [6, 5, 4, 3, 6]);
        assert_eq!((kept[0].frame_bytes, &kept[0].start), (200, &vec![6; START_BYTES]));
        assert_eq!((kept[4].reason, &kept[4].start[..]), (DropReason::TooBig, &b"short"[..]));
    }

    #[test]
    fn a_flood_is_sampled_once_a_millisecond() {
        let samples = DropSamples::default();
        samples.begin(7);
        for frame in 0..100_u8 {
            samples.note(DropReason::NoService, &[frame]);
        }
        assert_eq!(samples.read().len(), 1);
    }

    #[test]
    fn a_reader_never_sees_half_a_frame() {
        let samples = DropSamples::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for at in 1..20_000_u64 {
                    samples.begin(at);
                    samples.note(DropReason::NoService, &[at as u8; START_BYTES]);
                }
            });
            for _ in 0..2_000 {
                for sample in samples.read() {
                    assert!(
                        sample.start.iter().all(|byte| *byte == sample.at_ms as u8),
                        "{sample:?}"
                    );
                }
            }
        });
    }
}
