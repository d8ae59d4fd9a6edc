//! What selects a backend for a packet that no connection table decides.

pub mod buckets;
pub mod maglev;

use buckets::BucketMap;
use maglev::Table;

/// How a group's members are selected by a hash: both are a list of slots, each
/// with the index of a candidate.
#[derive(Debug)]
pub enum Selector {
    /// A table that every machine builds from the members (Maglev, 3.4).
    Maglev(Table),
    /// A map that the controller assigns (MPLB, 3): for stateless services.
    Buckets(BucketMap),
}

impl Selector {
    /// The slot that `hash` falls on.
    #[inline]
    #[must_use]
    pub fn slot(&self, hash: u64) -> u32 {
        match self {
            Selector::Maglev(table) => table.slot(hash),
            Selector::Buckets(map) => map.bucket(hash),
        }
    }

    /// By slot, the index of a candidate.
    #[inline]
    #[must_use]
    pub fn entries(&self) -> &[u16] {
        match self {
            Selector::Maglev(table) => table.entries(),
            Selector::Buckets(map) => map.entries(),
        }
    }

    /// Equal on every machine that selects alike.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        match self {
            Selector::Maglev(table) => table.fingerprint(),
            Selector::Buckets(map) => map.fingerprint(),
        }
    }

    /// Bytes that the entries take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        size_of_val(self.entries()) as u64
    }
}
