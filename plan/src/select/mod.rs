//! What selects a backend for a packet that no connection table decides.

pub mod buckets;
pub mod maglev;

/// How a group's members are selected by a hash: a list of slots, each with the
/// index of a candidate. [`maglev`] and [`buckets`] make one; a packet is
/// selected for alike by both, so it need not know which.
#[derive(Debug)]
pub struct Selector {
    entries: Box<[u16]>,
    fingerprint: u64,
}

impl Selector {
    /// The slot that `hash` falls on: its upper half spread evenly over all. The
    /// connection table uses the lower half.
    #[inline]
    #[must_use]
    pub fn slot(&self, hash: u64) -> u32 {
        (((hash >> 32) * self.entries.len() as u64) >> 32) as u32
    }

    /// The index of the candidate in charge of `hash`.
    #[inline]
    #[must_use]
    pub fn select(&self, hash: u64) -> u16 {
        self.entries[self.slot(hash) as usize]
    }

    /// By slot, the index of a candidate.
    #[inline]
    #[must_use]
    pub fn entries(&self) -> &[u16] {
        &self.entries
    }

    /// Equal on every machine that selects alike among the same names.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Bytes that the entries take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        size_of_val(self.entries()) as u64
    }
}
