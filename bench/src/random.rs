//! Reproducible random numbers: an experiment can be repeated from its seed, on any machine
//! and with any version of any crate.

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit
/// changes every output bit with probability one half.
#[inline]
#[must_use]
pub fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of that seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        // Neighbouring seeds must not give shifted copies of one sequence.
        Random(mix(seed ^ 0x6775_6964_6577_6179))
    }

    /// The next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// One of 0 … `bound` - 1. The bias is below `bound` / 2^64.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Puts `count` of the items, drawn without putting back, in front.
    pub fn draw<T>(&mut self, items: &mut [T], count: usize) {
        for index in 0..count {
            let other = index + self.below((items.len() - index) as u64) as usize;
            items.swap(index, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_splitmix64() {
        // The reference implementation's first outputs for the state 0.
        let mut random = Random(0);
        assert_eq!([random.bits(), random.bits()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }

    #[test]
    fn draws_have_no_doubles_and_every_item_comes_up() {
        let mut random = Random::new(1);
        let mut drawn = [0; 10];
        for _ in 0..1000 {
            let mut items: Vec<usize> = (0..10).collect();
            random.draw(&mut items, 3);
            items[..3].iter().for_each(|item| drawn[*item] += 1);
            items.sort_unstable();
            assert!(items.into_iter().eq(0..10));
        }
        assert!(drawn.iter().all(|count| (250..350).contains(count)), "{drawn:?}");
    }
}
