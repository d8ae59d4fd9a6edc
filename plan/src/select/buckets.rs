//! Buckets (paper MPLB, section 3): their number never changes, so a flow keeps
//! its bucket for as long as the service exists, and only what has the bucket
//! changes.
//!
//! The map is the controller's (`controller/buckets` assigns); nothing is
//! built here.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use super::{Selector, Slots};

/// Selects by a map of a power of two of buckets: each with the index of its
/// backend in `backends`, which are names.
#[must_use]
pub fn selector<'n>(entries: Box<[u16]>, backends: impl IntoIterator<Item = &'n str>) -> Selector {
    debug_assert!(entries.len().is_power_of_two());
    let fingerprint = fingerprint(&entries, backends);
    Selector::Buckets(Slots { entries, fingerprint })
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
        let buckets = selector(vec![0; 4096].into(), ["a"]);
        for bucket in [0u64, 1, 4095] {
            assert_eq!(buckets.slot(bucket << 52), bucket as u32);
            assert_eq!(buckets.slot((bucket << 52) | ((1 << 52) - 1)), bucket as u32);
        }
    }

    #[test]
    fn fingerprints_differ_by_names_and_by_entries() {
        let of =
            |entries: [u16; 2], names: [&str; 2]| selector(entries.into(), names).fingerprint();
        assert_eq!(of([0, 1], ["a", "b"]), of([0, 1], ["a", "b"]));
        assert_ne!(of([0, 1], ["a", "b"]), of([1, 0], ["a", "b"]));
        assert_ne!(of([0, 1], ["a", "b"]), of([0, 1], ["a", "c"]));
    }
}
