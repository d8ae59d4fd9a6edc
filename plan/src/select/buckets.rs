//! Buckets (paper MPLB, section 3): their number never changes, so a flow keeps its bucket as
//! long as the service exists; only the backend in charge of the bucket changes.
//!
//! The controller makes the map (`controller/buckets`); nothing is built here.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use wire::tunnel::route_option::RouteOption;

use super::{Selector, Slots};

/// A bucket whose connections may live on other backends, too.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OpenMove {
    /// The bucket.
    pub bucket: u16,
    /// What its packets carry.
    pub option: RouteOption,
}

/// Selects by a map of a power of two of buckets: each with the index of its
/// backend in `backends`, which are names. The candidates are these, then for each
/// open move the backend that has its bucket, once more.
#[must_use]
pub fn selector<'n>(
    mut entries: Box<[u16]>,
    moves: &[OpenMove],
    backends: impl IntoIterator<Item = &'n str>,
) -> Selector {
    debug_assert!(entries.len().is_power_of_two());
    let (fingerprint, count) = fingerprint(&entries, moves, backends);
    for (open, index) in moves.iter().zip(count..) {
        entries[usize::from(open.bucket)] = index;
    }
    Selector::Buckets(Slots { entries, fingerprint })
}

/// And the number of backends.
fn fingerprint<'n>(
    entries: &[u16],
    moves: &[OpenMove],
    backends: impl IntoIterator<Item = &'n str>,
) -> (u64, u16) {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    let mut count = 0;
    for name in backends {
        hasher.write(name.as_bytes());
        hasher.write_u8(0);
        count += 1;
    }
    for entry in entries {
        hasher.write(&entry.to_le_bytes());
    }
    for OpenMove { option, .. } in moves {
        hasher.write(&RouteOption { generation: 0, ..option.clone() }.emit());
    }
    (hasher.finish(), count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_the_highest_bits_of_the_hash() {
        let buckets = selector(vec![0; 4096].into(), &[], ["a"]);
        for bucket in [0u64, 1, 4095] {
            assert_eq!(buckets.slot(bucket << 52), bucket as u32);
            assert_eq!(buckets.slot((bucket << 52) | ((1 << 52) - 1)), bucket as u32);
        }
    }

    #[test]
    fn fingerprints_differ_by_names_and_by_entries() {
        let of = |entries: [u16; 2], names: [&str; 2]| {
            selector(entries.into(), &[], names).fingerprint()
        };
        assert_eq!(of([0, 1], ["a", "b"]), of([0, 1], ["a", "b"]));
        assert_ne!(of([0, 1], ["a", "b"]), of([1, 0], ["a", "b"]));
        assert_ne!(of([0, 1], ["a", "b"]), of([0, 1], ["a", "c"]));
    }
}
