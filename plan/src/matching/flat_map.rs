//! Immutable hash maps in one flat array, for lookups on the packet path.
//!
//! Keys come from the config, so clients cannot choose them, and a plain multiplicative hash is
//! enough.

/// A key: a number and what kind of number it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// An address, a prefix or a suffix.
    pub bits: u128,
    /// Which scope `bits` belongs to.
    pub scope: u64,
}

impl Key {
    #[inline(always)]
    pub fn hash(self) -> u64 {
        const A: u64 = 0x9e37_79b9_7f4a_7c15;
        const B: u64 = 0xd6e8_feb8_6659_fd93;
        let low = self.bits as u64 ^ self.scope.wrapping_mul(B);
        let mixed = (low ^ ((self.bits >> 64) as u64).wrapping_mul(B)).wrapping_mul(A);
        mixed ^ (mixed >> 32)
    }
}

#[derive(Debug, Clone, Copy)]
struct MapEntry<V> {
    bits: u128,
    /// [`NOTHING`]: the entry is empty.
    scope: u64,
    value: V,
}

/// No key's scope.
const NOTHING: u64 = u64::MAX;

/// Keys and what they stand for.
#[derive(Debug)]
pub struct FlatMap<V> {
    entries: Box<[MapEntry<V>]>,
    spread: Spread,
}

impl<V: Copy + Default> FlatMap<V> {
    /// A map of `pairs`, whose keys differ and whose scopes are below
    /// `u64::MAX`.
    pub fn new(pairs: &[(Key, V)]) -> FlatMap<V> {
        let spread = Spread::of(pairs.iter().map(|(key, _)| key.hash()), 1);
        let empty = MapEntry { bits: 0, scope: NOTHING, value: V::default() };
        let mut entries = vec![empty; spread.slots()].into_boxed_slice();
        for (key, value) in pairs {
            let (Key { bits, scope }, value) = (*key, *value);
            debug_assert!(scope != NOTHING);
            let mut at = spread.index(key.hash());
            while entries[at].scope != NOTHING {
                assert!((entries[at].bits, entries[at].scope) != (bits, scope), "keys differ");
                at = (at + 1) & (entries.len() - 1);
            }
            entries[at] = MapEntry { bits, scope, value };
        }
        FlatMap { entries, spread }
    }

    /// The entries, and where the search for a key of that hash begins, for a
    /// prefetch.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) -> (&[impl Sized], usize) {
        (&self.entries, self.spread.index(hash))
    }

    /// The value of `key`.
    #[inline]
    pub fn get(&self, key: Key) -> Option<V> {
        self.get_hashed(key, key.hash()).copied()
    }

    /// The value of `key`, whose hash is known.
    #[inline(always)]
    pub fn get_hashed(&self, key: Key, hash: u64) -> Option<&V> {
        let mut at = self.spread.index(hash);
        loop {
            let entry = &self.entries[at];
            if entry.bits == key.bits && entry.scope == key.scope {
                return Some(&entry.value);
            }
            if entry.scope == NOTHING {
                return None;
            }
            at = (at + 1) & (self.entries.len() - 1);
        }
    }
}

/// Keys of one word, never zero, and what they stand for; but for some, whose
/// bucket was full.
///
/// Two keys share a bucket, and which of the two is looked up is computed, not
/// branched on: probing one slot after the other would be mispredicted for
/// every key that is not at its first. So a key is in its bucket or nowhere.
#[derive(Debug)]
pub struct WordMap<V> {
    buckets: Box<[Bucket<V>]>,
    spread: Spread,
}

/// Two keys and their values. Key zero: the slot is empty; the second one is
/// used after the first.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub struct Bucket<V>([(u64, V); 2]);

impl<V: Copy + Default> WordMap<V> {
    /// A map of `entries`, whose keys differ and are not zero. Of random keys
    /// 1 in 50 or fewer find their bucket full and are left out.
    pub fn new(entries: &[(u64, V)]) -> WordMap<V> {
        let spread = Spread::of(entries.iter().map(|(key, _)| *key), 2);
        let buckets = vec![Bucket([(0, V::default()); 2]); spread.slots()].into_boxed_slice();
        let mut map = WordMap { buckets, spread };
        for entry in entries {
            map.buckets[spread.index(entry.0)].add(*entry);
        }
        map
    }

    /// The bucket of `key`.
    #[inline(always)]
    pub fn bucket(&self, key: u64) -> &Bucket<V> {
        &self.buckets[self.spread.index(key)]
    }
}

impl<V> Bucket<V> {
    /// Adds an entry if there is room.
    fn add(&mut self, entry: (u64, V)) {
        debug_assert!(self.0.iter().all(|(there, _)| *there != entry.0), "keys differ");
        if let Some(slot) = self.0.iter_mut().find(|(there, _)| *there == 0) {
            *slot = entry;
        }
    }

    /// The value of `key`, if it is here.
    #[inline(always)]
    pub fn get(&self, key: u64) -> Option<&V> {
        let (there, value) = &self.0[usize::from(self.0[0].0 != key)];
        (*there == key).then_some(value)
    }
}

/// Which slot a key has: the upper bits of a product, which depend on all bits
/// of the key.
#[derive(Debug, Clone, Copy)]
struct Spread {
    factor: u64,
    /// Bits of the product that are not used.
    shift: u32,
}

impl Spread {
    /// Keys that are alike, as addresses in a row are, crowd by some factors: up
    /// to this many are tried ...
    const TRIES: usize = 32;
    /// ... with at most this many keys in all, which takes some milliseconds.
    const KEYS_TRIED: usize = 1 << 21;

    /// At least twice as many slots as keys, each for `keys_max` of them; and the
    /// factor by which the fewest keys find theirs full.
    fn of(keys: impl ExactSizeIterator<Item = u64> + Clone, keys_max: u32) -> Spread {
        let slots = (keys.len() * 2).next_power_of_two().max(2);
        let shift = u64::BITS - slots.trailing_zeros();
        let factors = std::iter::successors(Some(0x9e37_79b9_7f4a_7c15_u64), |factor| {
            Some(factor.wrapping_mul(0xd120_2ce9_56ac_8d2d))
        });
        let tries = (Spread::KEYS_TRIED / keys.len().max(1)).clamp(1, Spread::TRIES);
        let mut best = (usize::MAX, Spread { factor: 0, shift });
        for factor in factors.take(tries) {
            let spread = Spread { factor, shift };
            let crowded = spread.crowded(keys.clone(), keys_max);
            if crowded < best.0 {
                best = (crowded, spread);
            }
            if crowded == 0 {
                break;
            }
        }
        best.1
    }

    /// How many keys find their slot full.
    fn crowded(self, keys: impl Iterator<Item = u64>, keys_max: u32) -> usize {
        let mut counts = vec![0u32; self.slots()];
        let is_full = |key: &u64| {
            let count = &mut counts[self.index(*key)];
            *count += 1;
            *count > keys_max
        };
        keys.filter(is_full).count()
    }

    fn slots(self) -> usize {
        1 << (u64::BITS - self.shift)
    }

    #[inline(always)]
    fn index(self, key: u64) -> usize {
        (key.wrapping_mul(self.factor) >> self.shift) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn equals_a_hash_map(entries in proptest::collection::hash_map((0u128..200, 0u64..3), 0u32..1000, 0..200)) {
            let entries: HashMap<Key, u32> = entries.into_iter().map(|((bits, scope), value)| (Key { bits, scope }, value)).collect();
            let map = FlatMap::new(&entries.iter().map(|(key, value)| (*key, *value)).collect::<Vec<_>>());
            for bits in 0..200 {
                for scope in 0..3 {
                    let key = Key { bits, scope };
                    prop_assert_eq!(map.get(key), entries.get(&key).copied());
                }
            }
        }

        #[test]
        fn words_equal_a_hash_map_but_for_full_buckets(entries in proptest::collection::hash_map(1u64..300, 0u32..1000, 0..200), spread in prop::sample::select(vec![1u64, 1 << 17, 1 << 48])) {
            let map = WordMap::new(&entries.iter().map(|(key, value)| (key * spread, *value)).collect::<Vec<_>>());
            for key in 1..300 {
                let bucket = map.bucket(key * spread);
                let found = bucket.get(key * spread);
                let is_left_out = found.is_none() && bucket.0[1].0 != 0;
                prop_assert!(found == entries.get(&key) || is_left_out);
            }
        }
    }

    #[test]
    fn addresses_in_a_row_do_not_crowd() {
        for (count, step) in [(100u32, 1u64), (1000, 1), (5000, 2), (10_000, 1), (10_000, 256)] {
            let sockets = (0..count)
                .map(|at| (0xcb00_7100 + u64::from(at) * step) << 32 | 4 << 24 | 6 << 16 | 80);
            let spread = Spread::of(sockets.clone(), 2);
            let crowded = spread.crowded(sockets, 2);
            assert!(crowded <= count as usize / 50, "{crowded} of {count} at {step}");
        }
    }
}
