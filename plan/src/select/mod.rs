//! Selects a backend for a packet that no connection table decides.

pub mod buckets;
pub mod earlier;
pub mod maglev;

/// How a group's members are selected by a hash.
#[derive(Debug)]
pub enum Selector {
    /// By a table that every machine builds from the members (Maglev, 3.4).
    Maglev(Slots),
    /// By a map that the controller assigns (MPLB, 3): for stateless services.
    Buckets(Slots),
}

/// What both are: a list of slots, each with the index of a candidate. They lie
/// at the same place in both, so that a packet need not ask which it is.
#[derive(Debug)]
pub struct Slots {
    entries: Box<[u16]>,
    fingerprint: u64,
}

impl Selector {
    #[inline(always)]
    fn slots(&self) -> &Slots {
        match self {
            Selector::Maglev(slots) | Selector::Buckets(slots) => slots,
        }
    }

    /// The slot that `hash` falls on: its upper half spread evenly over all. The
    /// connection table uses the lower half.
    #[inline]
    #[must_use]
    pub fn slot(&self, hash: u64) -> u32 {
        (((hash >> 32) * self.entries().len() as u64) >> 32) as u32
    }

    /// The index of the candidate in charge of `hash`.
    #[inline]
    #[must_use]
    pub fn select(&self, hash: u64) -> u16 {
        self.entries()[self.slot(hash) as usize]
    }

    /// By slot, the index of a candidate.
    #[inline]
    #[must_use]
    pub fn entries(&self) -> &[u16] {
        &self.slots().entries
    }

    /// Equal on every machine that selects alike among the same names.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.slots().fingerprint
    }

    /// Bytes that the entries take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        size_of_val(self.entries()) as u64
    }
}
