//! Buckets (paper MPLB, section 3): their number never changes, so a flow keeps
//! its bucket for as long as the service exists, and only what has the bucket
//! changes.
//!
//! The map is the controller's (`controller/buckets` assigns); nothing is
//! built here.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

/// Which backend has each bucket. Backends are indices into a list
/// that is kept beside the map.
#[derive(Debug, PartialEq, Eq)]
pub struct BucketMap {
    entries: Box<[u16]>,
    generation: u64,
    fingerprint: u64,
}

impl BucketMap {
    /// A map of a power of two of buckets: each with the index of its backend
    /// in `backends`, which are names.
    #[must_use]
    pub fn new<'n>(
        entries: Box<[u16]>,
        backends: impl IntoIterator<Item = &'n str>,
        generation: u64,
    ) -> BucketMap {
        debug_assert!(entries.len().is_power_of_two());
        let fingerprint = fingerprint(&entries, backends);
        BucketMap { entries, generation, fingerprint }
    }

    /// The bucket of a hash: its highest bits.
    #[inline]
    #[must_use]
    pub fn bucket(&self, hash: u64) -> u32 {
        (((hash >> 32) * self.entries.len() as u64) >> 32) as u32
    }

    /// By bucket, the index of the backend that has it.
    #[must_use]
    pub fn entries(&self) -> &[u16] {
        &self.entries
    }

    /// Counts the maps of one service.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Equal on every machine that has the same map.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

fn fingerprint<'n>(entries: &[u16], backends: impl IntoIterator<Item = &'n str>) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    for name in backends {
        hasher.write(name.as_bytes());
        hasher.write_u8(0);
    }
    for entry in entries {
        hasher.write(&entry.to_le_bytes());
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_the_highest_bits_of_the_hash() {
        let map = BucketMap::new(vec![0; 4096].into(), ["a"], 1);
        for bucket in [0u64, 1, 4095] {
            assert_eq!(map.bucket(bucket << 52), bucket as u32);
            assert_eq!(map.bucket((bucket << 52) | ((1 << 52) - 1)), bucket as u32);
        }
    }

    #[test]
    fn fingerprints_differ_by_names_and_by_entries() {
        let of = |entries: [u16; 2], names: [&str; 2]| {
            BucketMap::new(entries.into(), names, 1).fingerprint()
        };
        assert_eq!(of([0, 1], ["a", "b"]), of([0, 1], ["a", "b"]));
        assert_ne!(of([0, 1], ["a", "b"]), of([1, 0], ["a", "b"]));
        assert_ne!(of([0, 1], ["a", "b"]), of([0, 1], ["a", "c"]));
    }
}
