//! The machine's own costs, as a reference for the other figures.

use std::hint::black_box;

use datapath::Secret;
use datapath::block::Block;
use datapath::flow_hash::FlowHash;
use wire::BATCH_MAX;

use crate::clock::timed;
use crate::random::Random;

/// Nanoseconds of AES a tuple, a batch at once.
pub fn aes_ns(blocks: &mut [Block; BATCH_MAX], hash: &FlowHash) -> f64 {
    const ROUNDS: u64 = 200;
    let ns = timed(|| {
        for _ in 0..ROUNDS {
            hash.encrypt_all(black_box(&mut blocks[..]));
        }
    });
    ns as f64 / (ROUNDS * BATCH_MAX as u64) as f64
}

/// A hash for [`aes_ns`].
#[must_use]
pub fn hash() -> FlowHash {
    FlowHash::new(&Secret::derived("bench"))
}

/// Memory in which every place names the next to go to, all in one circle.
pub struct Chase {
    words: &'static [std::sync::atomic::AtomicU64],
    at: u64,
}

impl Chase {
    /// A circle through `bytes` of memory, one place per cache line.
    ///
    /// # Panics
    /// If memory is short.
    #[must_use]
    pub fn new(bytes: usize) -> Chase {
        const LINE_WORDS: usize = 8;
        let words = nic::mapping::anonymous(bytes / 8).expect("memory to chase through");
        let lines = words.len() / LINE_WORDS;
        // Sattolo's shuffle gives one single circle.
        let mut order: Vec<u32> = (0..lines as u32).collect();
        let mut random = Random::new(1);
        for last in (1..lines).rev() {
            order.swap(last, random.below(last as u64) as usize);
        }
        for (line, next) in order.iter().enumerate() {
            let next = u64::from(*next) * LINE_WORDS as u64;
            words[line * LINE_WORDS].store(next, std::sync::atomic::Ordering::Relaxed);
        }
        Chase { words, at: 0 }
    }

    /// Nanoseconds of a load whose address the load before gave.
    pub fn load_ns(&mut self) -> f64 {
        const LOADS: u64 = 20_000;
        let mut at = self.at;
        // What fits a cache is to be in it.
        for _ in 0..(self.words.len() / 8).min(100_000) {
            at = self.words[at as usize].load(std::sync::atomic::Ordering::Relaxed);
        }
        let ns = timed(|| {
            for _ in 0..LOADS {
                at = self.words[at as usize].load(std::sync::atomic::Ordering::Relaxed);
            }
        });
        self.at = black_box(at);
        ns as f64 / LOADS as f64
    }
}
