//! Maglev hashing (paper 3.4, pseudocode 1), with weights.
//!
//! Every machine builds the same table from the same members, whatever order
//! its config has: backends take their turns in order of name.

use std::hash::Hasher;

use siphasher::sip::{SipHasher13, SipHasher24};

use crate::limits;

/// One of the backends a table is built from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Candidate {
    /// Its name, which alone decides its permutation.
    pub name: String,
    /// Its weight, 1 to [`limits::WEIGHT_MAX`].
    pub weight: u32,
}

/// A lookup table: each entry names a candidate by its index.
#[derive(Debug)]
pub struct Table {
    entries: Box<[u16]>,
    fingerprint: u64,
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

impl Table {
    /// Builds the table of `candidates`, which are in order of name, at least
    /// one and fewer than `size`; `size` is a prime.
    #[must_use]
    pub fn build(candidates: &[Candidate], size: u32) -> Table {
        let permutations: Vec<Permutation> =
            candidates.iter().map(|candidate| Permutation::of(&candidate.name, size)).collect();
        let weights: Vec<u32> = candidates.iter().map(|candidate| candidate.weight).collect();
        let entries = populate(&permutations, &weights, size);
        let fingerprint = fingerprint(candidates, &entries);
        Table { entries, fingerprint }
    }

    /// The index of the candidate in charge of `hash`.
    #[inline]
    #[must_use]
    pub fn select(&self, hash: u64) -> u16 {
        self.entries[self.slot(hash) as usize]
    }

    /// The entry that `hash` falls on: its upper half spread evenly over the
    /// table. The connection table uses the lower half.
    #[inline]
    #[must_use]
    pub fn slot(&self, hash: u64) -> u32 {
        (((hash >> 32) * self.entries.len() as u64) >> 32) as u32
    }

    /// The entries.
    #[must_use]
    pub fn entries(&self) -> &[u16] {
        &self.entries
    }

    /// Equal on every machine that built the same table from the same names.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Bytes the entries take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.entries.len() as u64 * 2
    }
}

/// Pseudocode 1 with weights: in round t a backend takes entries while
/// taken x w_max < t x w, up to its quota. With equal weights that is one
/// entry each round, as in the paper.
#[must_use]
pub fn populate(permutations: &[Permutation], weights: &[u32], size: u32) -> Box<[u16]> {
    let count_max = usize::from(u16::MAX).min(size as usize);
    assert!(!permutations.is_empty() && permutations.len() <= count_max);
    let quotas = quotas(weights, size);
    let weight_max = u64::from(*weights.iter().max().expect("at least one candidate"));
    let mut turns: Vec<Turn> = permutations
        .iter()
        .zip(weights.iter().zip(&quotas))
        .map(|(permutation, (weight, quota))| Turn {
            next: permutation.offset,
            skip: permutation.skip,
            taken: 0,
            quota: *quota,
            weight: u64::from(*weight),
        })
        .collect();
    let mut entries = vec![0; size as usize].into_boxed_slice();
    let mut taken = Taken::new(size);
    let mut scarce: Option<Scarce> = None;
    let (mut left, few) = (size, size.isqrt());
    let mut round = 0u64;
    while left > 0 {
        round += 1;
        for (index, turn) in turns.iter_mut().enumerate() {
            while turn.taken < turn.quota
                && u64::from(turn.taken) * weight_max < round * turn.weight
            {
                let entry = if left > few {
                    taken.walk(turn, size)
                } else {
                    scarce
                        .get_or_insert_with(|| Scarce::new(&taken, permutations, size))
                        .take(index)
                };
                entries[entry as usize] = index as u16;
                turn.taken += 1;
                left -= 1;
            }
        }
    }
    entries
}

/// Where a backend stands in its permutation.
struct Turn {
    next: u32,
    skip: u32,
    taken: u32,
    quota: u32,
    weight: u64,
}

/// Which entries are taken, one bit each: small enough for the first-level
/// cache, which the entries are not.
struct Taken(Vec<u64>);

impl Taken {
    fn new(size: u32) -> Taken {
        Taken(vec![0; size as usize / 64 + 1])
    }

    /// The next entry of that permutation that was empty.
    #[inline]
    fn walk(&mut self, turn: &mut Turn, size: u32) -> u32 {
        loop {
            let entry = turn.next;
            turn.next += turn.skip;
            if turn.next >= size {
                turn.next -= size;
            }
            let (word, bit) = (&mut self.0[entry as usize / 64], 1 << (entry % 64));
            if *word & bit == 0 {
                *word |= bit;
                return entry;
            }
        }
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

impl<'p> Scarce<'p> {
    fn new(taken: &Taken, permutations: &'p [Permutation], size: u32) -> Scarce<'p> {
        let is_left = |entry: &u32| taken.0[*entry as usize / 64] & 1 << (entry % 64) == 0;
        Scarce {
            left: (0..size).filter(is_left).collect(),
            permutations,
            fractions: vec![0; permutations.len()],
            size,
        }
    }

    /// Takes the next entry of that candidate's permutation.
    ///
    /// Steps are compared as fractions of 2^64, for which one multiplication
    /// that wraps is the whole of "mod size": steps are 2^64 / size apart, more
    /// than 2^44, and rounding adds up to less than size, 2^20.
    fn take(&mut self, candidate: usize) -> u32 {
        let Permutation { offset, skip } = self.permutations[candidate];
        let fraction = &mut self.fractions[candidate];
        if *fraction == 0 {
            *fraction =
                ((u128::from(inverse(skip, self.size)) << 64) / u128::from(self.size)) as u64 + 1;
        }
        let step =
            |entry: u32| u64::from(entry).wrapping_sub(u64::from(offset)).wrapping_mul(*fraction);
        let first = (0..self.left.len())
            .min_by_key(|at| step(self.left[*at]))
            .expect("quotas sum up to the size");
        self.left.swap_remove(first)
    }
}

/// The number that times `number` is one, modulo the prime `size` (Euclid's
/// algorithm, extended).
fn inverse(number: u32, size: u32) -> u32 {
    let (mut rest, mut next_rest) = (i64::from(size), i64::from(number));
    let (mut factor, mut next_factor) = (0, 1);
    while next_rest != 0 {
        let quotient = rest / next_rest;
        (rest, next_rest) = (next_rest, rest - quotient * next_rest);
        (factor, next_factor) = (next_factor, factor - quotient * next_factor);
    }
    factor.rem_euclid(i64::from(size)) as u32
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
        fn every_backend_gets_its_quota_by_largest_remainder(weights in proptest::collection::vec(1u32..20, 1..50)) {
            let size = 4099;
            let candidates = candidates(weights.len(), |index| weights[index]);
            let table = Table::build(&candidates, size);
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
        for (size, count) in [(65_537, 1), (65_537, 1000), (655_373, 300)] {
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
    fn removing_one_of_many_moves_few_of_the_others_entries() {
        for weight in [|_| 1, |index| 1 + (index % 3) as u32] {
            let before = candidates(100, weight);
            let mut after = before.clone();
            after.remove(50);
            let (a, b) = (Table::build(&before, 65_537), Table::build(&after, 65_537));
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

    #[test]
    fn slots_spread_over_the_whole_table() {
        let table = Table::build(&candidates(3, |_| 1), 7);
        assert_eq!((table.slot(0), table.slot(u64::MAX)), (0, 6));
    }

    #[test]
    fn fingerprints_differ_by_members_and_are_stable() {
        let table = Table::build(&candidates(10, |_| 1), 1009);
        assert_eq!(table.fingerprint(), Table::build(&candidates(10, |_| 1), 1009).fingerprint());
        assert_ne!(table.fingerprint(), Table::build(&candidates(11, |_| 1), 1009).fingerprint());
    }

    #[test]
    fn primes_are_told_from_others() {
        assert!(is_prime(65_537) && is_prime(655_373) && is_prime(2));
        assert!(!is_prime(65_536) && !is_prime(1) && !is_prime(0) && !is_prime(65_535));
    }
}
