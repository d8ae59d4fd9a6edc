//! Maglev hashing (paper 3.4, pseudocode 1), with weights.
//!
//! Every machine builds the same table from the same members, whatever their order in the
//! config: backends take turns in order of name.

use std::hash::Hasher;

use siphasher::sip::{SipHasher13, SipHasher24};

use super::{Selector, Slots};
use crate::limits;

/// One of the backends a table is built from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Candidate {
    /// Its name, which alone decides its permutation.
    pub name: String,
    /// Its weight, 1 to [`limits::WEIGHT_MAX`].
    pub weight: u32,
}

/// A backend's permutation of the table's entries, as the paper generates it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permutation {
    /// The first entry it prefers.
    pub offset: u32,
    /// From each preferred entry to the next.
    pub skip: u32,
}

impl Permutation {
    /// From the backend's name: the paper's h1 and h2 are SipHash-2-4 under
    /// two fixed keys, the same forever and on every machine.
    #[must_use]
    pub fn of(name: &str, size: u32) -> Permutation {
        const OFFSET_KEYS: (u64, u64) = (0x6775_6964_6577_6179, 0x6f66_6673_6574_3031); // "guideway", "offset01"
        const SKIP_KEYS: (u64, u64) = (0x6775_6964_6577_6179, 0x736b_6970_3030_3031); // "guideway", "skip0001"
        let hash = |keys: (u64, u64)| {
            let mut hasher = SipHasher24::new_with_keys(keys.0, keys.1);
            hasher.write(name.as_bytes());
            hasher.finish()
        };
        Permutation {
            offset: (hash(OFFSET_KEYS) % u64::from(size)) as u32,
            skip: (hash(SKIP_KEYS) % u64::from(size - 1)) as u32 + 1,
        }
    }
}

/// Selects by the table of `candidates`, which are in order of name, at least
/// one and fewer than `size`; `size` is a prime.
#[must_use]
pub fn selector(candidates: &[Candidate], size: u32) -> Selector {
    let permutations: Vec<Permutation> =
        candidates.iter().map(|candidate| Permutation::of(&candidate.name, size)).collect();
    let weights: Vec<u32> = candidates.iter().map(|candidate| candidate.weight).collect();
    let entries = populate(&permutations, &weights, size);
    let fingerprint = fingerprint(candidates, &entries);
    Selector::Maglev(Slots { entries, fingerprint })
}

/// Pseudocode 1 with weights: in round t a backend takes entries while
/// taken x w_max < t x w, up to its quota. With equal weights that is one
/// entry each round, as in the paper, and the quotas come of themselves.
#[must_use]
pub fn populate(permutations: &[Permutation], weights: &[u32], size: u32) -> Box<[u16]> {
    let count_max = usize::from(u16::MAX).min(size as usize);
    assert!(!permutations.is_empty() && permutations.len() <= count_max);
    let mut turns = turns(permutations, weights, size);
    let pace = pace(weights);
    let mut entries = vec![0; size as usize].into_boxed_slice();
    let mut taken = Taken::new(size);
    let (mut left, few) = (size, size.isqrt());
    while left > few + turns.len() as u32 {
        let enough = enough_ahead(left, turns.len());
        left -= whole_round(&mut turns, pace, &mut taken, &mut entries, enough);
    }
    let mut scarce: Option<Scarce> = None;
    while left > 0 {
        for (index, turn) in turns.iter_mut().enumerate() {
            if left == 0 || !turn.is_due(pace) {
                continue;
            }
            let entry = if left > few {
                turn.walk(&mut taken, size, 1)
            } else {
                scarce.get_or_insert_with(|| Scarce::new(&taken, permutations, size)).take(index)
            };
            entries[entry as usize] = index as u16;
            left -= 1;
        }
    }
    entries
}

/// The largest weight, unless all are equal: then a backend is due each round.
fn pace(weights: &[u32]) -> Option<u32> {
    let weight_max = weights.iter().max()?;
    weights.iter().any(|weight| weight != weight_max).then_some(*weight_max)
}

/// A round after which empty entries are left for every backend. Returns how
/// many were taken. On its own, so that all it needs stays in registers.
#[inline(never)]
fn whole_round(
    turns: &mut [Turn],
    pace: Option<u32>,
    taken: &mut Taken,
    entries: &mut [u16],
    enough: u32,
) -> u32 {
    let size = entries.len() as u32;
    let mut count = 0;
    for (index, turn) in turns.iter_mut().enumerate() {
        if turn.is_due(pace) {
            entries[turn.walk(taken, size, enough) as usize] = index as u16;
            count += 1;
        }
    }
    count
}

/// Steps of a permutation that are looked at together.
const BLOCK: usize = 8;

/// Empty entries a backend looks for at once. Each look ends in a mispredicted
/// branch, so looking for n at once saves n - 1 of n. But one that is gone when
/// its turn comes costs as much, and n x backends / 2 of `left` are taken
/// meanwhile. The sum is least at the root; what is more than fits `ahead` gains
/// nothing.
fn enough_ahead(left: u32, backends: usize) -> u32 {
    (left * 2 / backends as u32).isqrt().clamp(1, BLOCK as u32 + 1)
}

/// Where a backend stands in its permutation, and what it has found there. In
/// this order a turn needs one line of the cache or two, measurably less than
/// with the arrays first.
#[repr(C)]
struct Turn {
    /// t x w - taken x `w_max`, and `w_max` more, so that it is never negative.
    credit: u32,
    weight: u32,
    /// Entries that it may still take.
    quota: u32,
    /// `ahead` has, from `at` to `found`, entries that were empty when it looked.
    at: u32,
    found: u32,
    /// From each of the steps to the one a block later.
    stride: u32,
    /// The next steps that it has not looked at.
    steps: [u32; BLOCK],
    ahead: [u32; 2 * BLOCK],
}

fn turns(permutations: &[Permutation], weights: &[u32], size: u32) -> Vec<Turn> {
    let quotas = quotas(weights, size);
    let weight_max = weights.iter().copied().max().unwrap_or(0);
    let members = weights.iter().zip(quotas);
    permutations
        .iter()
        .zip(members)
        .map(|(permutation, (weight, quota))| Turn {
            credit: weight_max,
            weight: *weight,
            quota,
            ..Turn::at_start(*permutation, size)
        })
        .collect()
}

impl Turn {
    fn at_start(permutation: Permutation, size: u32) -> Turn {
        let mut steps = [0; BLOCK];
        let mut next = permutation.offset;
        for step in &mut steps {
            *step = next;
            next = further(next, permutation.skip, size);
        }
        let stride = (permutation.skip * BLOCK as u32) % size;
        let ahead = [0; 2 * BLOCK];
        Turn { steps, stride, ahead, at: 0, found: 0, credit: 0, weight: 0, quota: 0 }
    }

    /// Whether it takes an entry this round. Never more than one: no weight is
    /// above the largest.
    #[inline]
    fn is_due(&mut self, pace: Option<u32>) -> bool {
        let Some(weight_max) = pace else { return true };
        self.credit += self.weight;
        let due = self.credit > weight_max && self.quota > 0;
        if due {
            self.credit -= weight_max;
            self.quota -= 1;
        }
        due
    }

    /// Takes the next entry of its permutation that is empty.
    #[inline]
    fn walk(&mut self, taken: &mut Taken, size: u32, enough: u32) -> u32 {
        loop {
            if self.at == self.found {
                self.look_ahead(taken, size, enough);
            }
            let entry = self.ahead[self.at as usize % (2 * BLOCK)];
            self.at += 1;
            if taken.take(entry) {
                return entry;
            }
        }
    }

    /// Finds the next empty entries, at least as many as are enough. Each step
    /// is written down and counts if empty: no branch depends on what a step
    /// finds, so that many are under way at once.
    #[inline(never)]
    fn look_ahead(&mut self, taken: &Taken, size: u32, enough: u32) {
        let mut found = 0;
        while found < enough {
            for step in self.steps {
                self.ahead[found as usize % (2 * BLOCK)] = step;
                found += taken.is_empty(step);
            }
            for step in &mut self.steps {
                *step = further(*step, self.stride, size);
            }
        }
        (self.at, self.found) = (0, found);
    }
}

/// (entry + distance) mod size. Signed, because SSE2 compares nothing else.
#[inline]
fn further(entry: u32, distance: u32, size: u32) -> u32 {
    let (sum, size) = ((entry + distance) as i32, size as i32);
    (if sum >= size { sum - size } else { sum }) as u32
}

/// Which entries are taken, one bit each: small enough for the first-level
/// cache, which the entries are not. What is beyond the table is taken.
struct Taken(Vec<u32>);

impl Taken {
    fn new(size: u32) -> Taken {
        let mut words = vec![0; size as usize / 32];
        words.push(u32::MAX << (size % 32));
        Taken(words)
    }

    /// One or zero.
    #[inline]
    fn is_empty(&self, entry: u32) -> u32 {
        !self.0[entry as usize / 32] >> (entry % 32) & 1
    }

    /// True if it was empty.
    #[inline]
    fn take(&mut self, entry: u32) -> bool {
        let (word, bit) = (&mut self.0[entry as usize / 32], 1 << (entry % 32));
        let empty = *word & bit == 0;
        *word |= bit;
        empty
    }

    /// The empty entries.
    fn left(&self) -> Vec<u32> {
        let words = (0..).step_by(32).zip(&self.0).filter(|(_, word)| **word != u32::MAX);
        words
            .flat_map(|(first, _)| first..first + 32)
            .filter(|entry| self.is_empty(*entry) == 1)
            .collect()
    }
}

/// The last empty entries. A permutation comes by an empty one only every
/// size / left steps, and half of all steps would go to the last sqrt(size)
/// entries. So each of them is asked at which step the permutation reaches it:
/// (entry - offset) x skip^-1 mod size. The first is the next, because all
/// that the backend has passed is taken.
struct Scarce<'p> {
    left: Vec<u32>,
    permutations: &'p [Permutation],
    /// By candidate: skip^-1 / size as a fraction of 2^64; zero: not computed.
    fractions: Vec<u64>,
    size: u32,
}

/// Bits for a place in [`Scarce::left`]; as many hold an entry.
const PLACE_BITS: u32 = 20;

impl<'p> Scarce<'p> {
    fn new(taken: &Taken, permutations: &'p [Permutation], size: u32) -> Scarce<'p> {
        assert!(size < 1 << PLACE_BITS);
        Scarce { left: taken.left(), permutations, fractions: vec![0; permutations.len()], size }
    }

    /// Takes the next entry of that candidate's permutation.
    ///
    /// Steps are compared as fractions of 2^64, for which one multiplication
    /// that wraps is the whole of "mod size". Steps are 2^64 / size apart, more
    /// than 2^44, and what rounding adds is below 2^20 x size, 2^40. The lowest
    /// 20 bits are zero and hold the place, so that the least has its place.
    #[inline(never)]
    fn take(&mut self, candidate: usize) -> u32 {
        let fraction = self.fraction(candidate);
        let start = u64::from(self.permutations[candidate].offset).wrapping_mul(fraction);
        let step = |entry: u32| u64::from(entry).wrapping_mul(fraction).wrapping_sub(start);
        let first = (0..).zip(&self.left).map(|(place, entry)| step(*entry) + place).min();
        let place = first.expect("quotas sum up to the size") % (1 << PLACE_BITS);
        self.left.swap_remove(place as usize)
    }

    fn fraction(&mut self, candidate: usize) -> u64 {
        let fraction = &mut self.fractions[candidate];
        if *fraction == 0 {
            let inverse = inverse(self.permutations[candidate].skip, self.size);
            let scaled = u64::from(inverse) << (64 - PLACE_BITS);
            *fraction = (scaled / u64::from(self.size)) << PLACE_BITS;
        }
        *fraction
    }
}

/// The number that times `number` is one, modulo the prime `size` (Euclid's
/// algorithm, extended).
fn inverse(number: u32, size: u32) -> u32 {
    let (mut rest, mut next_rest) = (size as i32, number as i32);
    let (mut factor, mut next_factor) = (0, 1);
    while next_rest != 0 {
        let quotient = rest / next_rest;
        (rest, next_rest) = (next_rest, rest - quotient * next_rest);
        (factor, next_factor) = (next_factor, factor - quotient * next_factor);
    }
    factor.rem_euclid(size as i32) as u32
}

/// Each backend's entries: size x w / sum of weights, by largest remainder,
/// ties to the first by name.
fn quotas(weights: &[u32], size: u32) -> Vec<u32> {
    let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    let share = |weight: u32| u64::from(size) * u64::from(weight);
    let mut quotas: Vec<u32> =
        weights.iter().map(|weight| (share(*weight) / total) as u32).collect();
    let missing = size - quotas.iter().sum::<u32>();
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by_cached_key(|index| std::cmp::Reverse(share(weights[*index]) % total));
    for index in &by_remainder[..missing as usize] {
        quotas[*index] += 1;
    }
    quotas
}

fn fingerprint(candidates: &[Candidate], entries: &[u16]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    for candidate in candidates {
        hasher.write(candidate.name.as_bytes());
        hasher.write_u8(0);
    }
    for chunk in entries.chunks(512) {
        let mut bytes = [0u8; 1024];
        for (entry, pair) in chunk.iter().zip(bytes.as_chunks_mut::<2>().0) {
            *pair = entry.to_le_bytes();
        }
        hasher.write(&bytes[..chunk.len() * 2]);
    }
    hasher.finish()
}

/// True for the primes that a table size may be.
#[must_use]
pub fn is_prime(number: u32) -> bool {
    number >= 2
        && (2..)
            .take_while(|d: &u32| d.saturating_mul(*d) <= number)
            .all(|d| !number.is_multiple_of(d))
}

/// True for a size that a table may have.
#[must_use]
pub fn is_table_size(size: u32) -> bool {
    (3..=limits::TABLE_SIZE_MAX).contains(&size) && is_prime(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn permutation(offset: u32, skip: u32) -> Permutation {
        Permutation { offset, skip }
    }

    #[test]
    fn table_1_of_the_paper_before_and_after_b1_is_removed() {
        let [b0, b1, b2] = [permutation(3, 4), permutation(0, 2), permutation(3, 1)];
        assert_eq!(*populate(&[b0, b1, b2], &[1, 1, 1], 7), [1, 0, 1, 0, 2, 2, 0]);
        assert_eq!(*populate(&[b0, b2], &[1, 1], 7), [0, 0, 0, 0, 1, 1, 1]);
    }

    /// Pseudocode 1, line by line.
    #[allow(clippy::needless_range_loop, reason = "as the paper writes it")]
    fn pseudocode_1(permutations: &[Permutation], size: u32) -> Vec<i32> {
        let permutation = |i: usize, j: u64| {
            (u64::from(permutations[i].offset) + j * u64::from(permutations[i].skip))
                % u64::from(size)
        };
        let mut next = vec![0u64; permutations.len()];
        let mut entry = vec![-1i32; size as usize];
        let mut n = 0;
        loop {
            for i in 0..permutations.len() {
                let mut c = permutation(i, next[i]);
                while entry[c as usize] >= 0 {
                    next[i] += 1;
                    c = permutation(i, next[i]);
                }
                entry[c as usize] = i as i32;
                next[i] += 1;
                n += 1;
                if n == size {
                    return entry;
                }
            }
        }
    }

    /// Rounds with weights as `populate` has them, one try after another.
    fn plain_rounds(permutations: &[Permutation], weights: &[u32], size: u32) -> Vec<u16> {
        let quotas = quotas(weights, size);
        let weight_max = u64::from(*weights.iter().max().unwrap());
        let mut next: Vec<u32> =
            permutations.iter().map(|permutation| permutation.offset).collect();
        let mut taken = vec![0u32; permutations.len()];
        let mut entries = vec![None; size as usize];
        let (mut left, mut round) = (size, 0);
        while left > 0 {
            round += 1;
            for (index, permutation) in permutations.iter().enumerate() {
                let is_due = |taken: u32| {
                    taken < quotas[index]
                        && u64::from(taken) * weight_max < round * u64::from(weights[index])
                };
                while is_due(taken[index]) {
                    while entries[next[index] as usize].is_some() {
                        next[index] = (next[index] + permutation.skip) % size;
                    }
                    entries[next[index] as usize] = Some(index as u16);
                    taken[index] += 1;
                    left -= 1;
                }
            }
        }
        entries.into_iter().map(|entry| entry.unwrap()).collect()
    }

    fn permutations(seed: u32, count: usize, size: u32) -> Vec<Permutation> {
        (0..count).map(|index| Permutation::of(&format!("{seed}-{index}"), size)).collect()
    }

    fn candidates(count: usize, weight: impl Fn(usize) -> u32) -> Vec<Candidate> {
        (0..count)
            .map(|index| Candidate { name: format!("backend-{index:05}"), weight: weight(index) })
            .collect()
    }

    proptest! {
        #[test]
        fn equal_weights_give_pseudocode_1_exactly(
            count in 1usize..60, weight in 1u32..5, size in prop::sample::select(vec![61u32, 101, 1009, 4099]), seed: u32,
        ) {
            let names: Vec<String> = (0..count).map(|index| format!("{seed}-{index}")).collect();
            let permutations: Vec<Permutation> = names.iter().map(|name| Permutation::of(name, size)).collect();
            let ours: Vec<i32> = populate(&permutations, &vec![weight; count], size).iter().map(|entry| i32::from(*entry)).collect();
            prop_assert_eq!(ours, pseudocode_1(&permutations, size));
        }

        #[test]
        fn any_weights_give_the_plain_rounds_exactly(
            weights in proptest::collection::vec(prop_oneof![1u32..5, 1u32..=1000], 1..120),
            size in prop::sample::select(vec![127u32, 1009, 4099, 16411]), seed: u32,
        ) {
            let permutations = permutations(seed, weights.len(), size);
            let ours = populate(&permutations, &weights, size);
            prop_assert_eq!(ours.into_vec(), plain_rounds(&permutations, &weights, size));
        }

        #[test]
        fn tiny_and_crowded_tables_are_those_of_the_plain_rounds(
            size in prop::sample::select(vec![3u32, 5, 7, 11, 31, 37, 61, 67]),
            crowd in 0.0..=1.0, weight_max in 1u32..4, seed: u32,
        ) {
            let count = 1 + (f64::from(size - 1) * crowd) as usize;
            let permutations = permutations(seed, count, size);
            let weights: Vec<u32> = (0..count as u32).map(|index| 1 + index % weight_max).collect();
            let ours = populate(&permutations, &weights, size);
            prop_assert_eq!(ours.into_vec(), plain_rounds(&permutations, &weights, size));
        }

        #[test]
        fn every_backend_gets_its_quota_by_largest_remainder(weights in proptest::collection::vec(1u32..20, 1..50)) {
            let size = 4099;
            let candidates = candidates(weights.len(), |index| weights[index]);
            let table = selector(&candidates, size);
            let total: u32 = weights.iter().sum();
            for (index, weight) in weights.iter().enumerate() {
                let got = table.entries().iter().filter(|entry| usize::from(**entry) == index).count() as f64;
                let ideal = f64::from(size) * f64::from(*weight) / f64::from(total);
                prop_assert!((got - ideal).abs() < 1.0, "{} entries, ideal {}", got, ideal);
            }
        }
    }

    #[test]
    fn inverses_are_inverse() {
        for size in [7u32, 65_537, 655_373] {
            for number in [1, 2, 3, size / 2, size - 1] {
                assert_eq!(
                    u64::from(number) * u64::from(inverse(number, size)) % u64::from(size),
                    1
                );
            }
        }
    }

    #[test]
    fn large_tables_are_those_of_pseudocode_1_too() {
        for (size, count) in
            [(65_537, 1), (65_537, 1000), (65_537, 20_000), (655_373, 300), (655_373, 1000)]
        {
            let names: Vec<String> = (0..count).map(|index| format!("backend-{index}")).collect();
            let permutations: Vec<Permutation> =
                names.iter().map(|name| Permutation::of(name, size)).collect();
            let ours = populate(&permutations, &vec![1; count], size);
            let paper = pseudocode_1(&permutations, size);
            assert!(
                ours.iter().zip(&paper).all(|(ours, paper)| i32::from(*ours) == *paper),
                "{size} {count}"
            );
        }
    }

    #[test]
    fn large_tables_with_weights_are_those_of_the_plain_rounds() {
        for (size, count) in [(65_537, 10), (65_537, 1000), (65_537, 20_000), (655_373, 1000)] {
            let permutations = permutations(1, count, size);
            let weights: Vec<u32> = (0..count as u32).map(|index| 1 + index % 10).collect();
            let ours = populate(&permutations, &weights, size);
            assert!(*ours == *plain_rounds(&permutations, &weights, size), "{size} {count}");
        }
    }

    #[test]
    fn removing_one_of_many_moves_few_of_the_others_entries() {
        for weight in [|_| 1, |index| 1 + (index % 3) as u32] {
            let before = candidates(100, weight);
            let mut after = before.clone();
            after.remove(50);
            let (a, b) = (selector(&before, 65_537), selector(&after, 65_537));
            let moved = a
                .entries()
                .iter()
                .zip(b.entries())
                .filter(|(x, y)| {
                    before[usize::from(**x)].name != after[usize::from(**y)].name && **x != 50
                })
                .count();
            assert!(moved < 65_537 / 50, "{moved} entries moved");
        }
    }

    /// What the controller's slow start does: it multiplies all weights by five.
    #[test]
    fn a_slow_start_moves_few_entries_between_backends_that_stay() {
        let weights = |fifths: u32| {
            move |index: usize| match (index, fifths) {
                (50, _) => fifths,
                (_, 5) => 1,
                _ => 5,
            }
        };
        let whole = selector(&candidates(100, |_| 1), 65_537);
        assert_eq!(selector(&candidates(100, |_| 5), 65_537).entries(), whole.entries());
        let mut former = selector(&candidates(100, weights(1)), 65_537);
        for fifths in 2..=5u32 {
            let weight = |index| if fifths == 5 { 1 } else { weights(fifths)(index) };
            let table = selector(&candidates(100, weight), 65_537);
            let pairs = || former.entries().iter().zip(table.entries());
            let changed = pairs().filter(|(x, y)| x != y).count();
            let moved = pairs().filter(|(x, y)| x != y && **x != 50 && **y != 50).count();
            println!("{fifths} fifths: {changed} entries change, {moved} between others");
            assert!(changed < 65_537 / 100, "{changed} entries change");
            former = table;
        }
        assert_eq!(former.entries(), whole.entries());
    }

    #[test]
    fn slots_spread_over_the_whole_table() {
        let table = selector(&candidates(3, |_| 1), 7);
        assert_eq!((table.slot(0), table.slot(u64::MAX)), (0, 6));
    }

    #[test]
    fn fingerprints_differ_by_members_and_are_stable() {
        let table = selector(&candidates(10, |_| 1), 1009);
        assert_eq!(table.fingerprint(), selector(&candidates(10, |_| 1), 1009).fingerprint());
        assert_ne!(table.fingerprint(), selector(&candidates(11, |_| 1), 1009).fingerprint());
    }

    #[test]
    fn primes_are_told_from_others() {
        assert!(is_prime(65_537) && is_prime(655_373) && is_prime(2));
        assert!(!is_prime(65_536) && !is_prime(1) && !is_prime(0) && !is_prime(65_535));
    }
}
