//! Immutable hash maps in one flat array, for lookups on the packet path.
//!
//! Keys come from the config, so nobody outside chooses them: a plain
//! multiplicative hash is enough. At most half full, linear probing.

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
struct Slot<V> {
    bits: u128,
    /// [`NOTHING`]: the slot is empty.
    scope: u64,
    value: V,
}

/// No key's scope.
const NOTHING: u64 = u64::MAX;

/// Keys and what they stand for.
#[derive(Debug)]
pub struct FlatMap<V> {
    slots: Box<[Slot<V>]>,
}

impl<V: Copy + Default> FlatMap<V> {
    /// A map of `entries`, whose keys differ and whose scopes are below
    /// `u64::MAX`.
    pub fn new(entries: impl ExactSizeIterator<Item = (Key, V)>) -> FlatMap<V> {
        let size = (entries.len() * 2).next_power_of_two().max(2);
        let empty = Slot { bits: 0, scope: NOTHING, value: V::default() };
        let mut slots = vec![empty; size].into_boxed_slice();
        for (Key { bits, scope }, value) in entries {
            debug_assert!(scope != NOTHING);
            let mut at = Key { bits, scope }.hash() as usize & (size - 1);
            while slots[at].scope != NOTHING {
                assert!((slots[at].bits, slots[at].scope) != (bits, scope), "keys differ");
                at = (at + 1) & (size - 1);
            }
            slots[at] = Slot { bits, scope, value };
        }
        FlatMap { slots }
    }

    /// The slots, and where the search for a key of that hash begins.
    #[inline(always)]
    pub fn first_look(&self, hash: u64) -> (&[impl Sized], usize) {
        (&self.slots, hash as usize & (self.slots.len() - 1))
    }

    /// The value of `key`.
    #[inline]
    pub fn get(&self, key: Key) -> Option<V> {
        self.get_hashed(key, key.hash()).copied()
    }

    /// The value of `key`, whose hash is known.
    #[inline(always)]
    pub fn get_hashed(&self, key: Key, hash: u64) -> Option<&V> {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = &self.slots[at];
            if slot.bits == key.bits && slot.scope == key.scope {
                return Some(&slot.value);
            }
            if slot.scope == NOTHING {
                return None;
            }
            at = (at + 1) & mask;
        }
    }
}

/// Keys of one word, never zero, and what they stand for.
#[derive(Debug)]
pub struct WordMap<V> {
    slots: Box<[(u64, V)]>,
    /// Bits of the hash that are no place.
    shift: u32,
}

impl<V: Copy + Default> WordMap<V> {
    /// A map of `entries`, whose keys differ and are not zero.
    pub fn new(entries: impl ExactSizeIterator<Item = (u64, V)>) -> WordMap<V> {
        let size = (entries.len() * 2).next_power_of_two().max(2);
        let slots = vec![(0, V::default()); size].into_boxed_slice();
        let mut map = WordMap { slots, shift: u64::BITS - size.trailing_zeros() };
        for (key, value) in entries {
            let mut at = map.home(key);
            while map.slots[at].0 != 0 {
                assert!(map.slots[at].0 != key, "keys differ");
                at = (at + 1) & (size - 1);
            }
            map.slots[at] = (key, value);
        }
        map
    }

    /// The slots, and where the search for that key begins.
    #[inline(always)]
    pub fn first_look(&self, key: u64) -> (&[impl Sized], usize) {
        (&self.slots, self.home(key))
    }

    /// The value of `key`.
    #[inline(always)]
    pub fn get(&self, key: u64) -> Option<&V> {
        let mut at = self.home(key);
        loop {
            let (there, value) = &self.slots[at];
            let there = *there;
            if there == key {
                return Some(value);
            }
            if there == 0 {
                return None;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    /// The upper bits of a product depend on all bits of the key.
    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
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
            let map = FlatMap::new(entries.iter().map(|(key, value)| (*key, *value)).collect::<Vec<_>>().into_iter());
            for bits in 0..200 {
                for scope in 0..3 {
                    let key = Key { bits, scope };
                    prop_assert_eq!(map.get(key), entries.get(&key).copied());
                }
            }
        }

        #[test]
        fn words_equal_a_hash_map(entries in proptest::collection::hash_map(1u64..300, 0u32..1000, 0..200), spread in prop::sample::select(vec![1u64, 1 << 17, 1 << 48])) {
            let map = WordMap::new(entries.iter().map(|(key, value)| (key * spread, *value)).collect::<Vec<_>>().into_iter());
            for key in 1..300 {
                prop_assert_eq!(map.get(key * spread), entries.get(&key));
            }
        }
    }
}
