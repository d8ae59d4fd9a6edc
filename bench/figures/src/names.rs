//! The names of an experiment's backends. They differ from seed to seed, so that every seed
//! is a new draw of all hash functions.

use plan::select::maglev::Candidate;

use crate::random::mix;

/// `count` backends of equal weight, in order of name.
#[must_use]
pub fn candidates(seed: u64, count: u32) -> Vec<Candidate> {
    let width = count.to_string().len();
    (0..count)
        .map(|index| Candidate { name: format!("seed-{seed}-backend-{index:0width$}"), weight: 1 })
        .collect()
}

/// The same as words for the other hashing methods: FNV-1a over the name,
/// mixed.
#[must_use]
pub fn words(candidates: &[Candidate]) -> Vec<u64> {
    let fnv = |name: &str| {
        name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    candidates.iter().map(|candidate| mix(fnv(&candidate.name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_differ_between_seeds() {
        let (one, two) = (candidates(1, 1000), candidates(2, 1000));
        assert!(one.is_sorted());
        let mut words = [words(&one), words(&two)].concat();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 2000);
    }
}
