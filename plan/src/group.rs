//! The members of a service for the packet path: which may be selected, and which may keep
//! tracked connections.
//!
//! Groups are shared by content between services and generations: a change rebuilds only what
//! changed.

use wire::tunnel::route_option::Emitted;

use crate::ids::BackendId;
use crate::select::Selector;
use crate::select::earlier::EarlierSlots;

/// Which connections a member's state admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Admission {
    /// New ones and its tracked ones.
    All,
    /// Its tracked ones: it drains, or it is down with `on_down: keep`.
    TrackedOnly {
        /// It is down.
        is_down: bool,
    },
    /// None: its tracked ones select anew.
    Nothing,
}

/// One backend of a group.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// Which backend.
    pub backend: BackendId,
    /// Which connections its state admits.
    pub admission: Admission,
}

/// The members of one or more services.
#[derive(Debug)]
pub struct Group {
    members: Box<[Member]>,
    by_backend: Box<[MemberEntry]>,
    /// None: no member takes new connections.
    selector: Option<Selector>,
    /// What the selector's entries stand for.
    candidates: Box<[Candidate]>,
    /// What packets carry whose candidates have one.
    route_options: Box<[Emitted]>,
    /// What packets without an entry carry, where earlier tables differ.
    earlier: Option<EarlierSlots>,
}

/// A member that the selector selects among.
#[derive(Debug, Clone, Copy)]
#[repr(align(8))]
struct Candidate {
    member: u16,
    backend: BackendId,
    /// Index of its route option, from 1; 0: its packets carry none.
    route_option: u16,
}

/// An entry of the hash of members by backend; backend zero: empty.
#[derive(Debug, Clone, Copy)]
#[repr(align(8))]
struct MemberEntry {
    backend: u16,
    member: u16,
    /// The member's, so that a lookup is one access.
    admission: Admission,
}

const EMPTY: MemberEntry = MemberEntry { backend: 0, member: 0, admission: Admission::Nothing };

impl Group {
    /// A group of `members`, each backend once, whose `selector` selects among
    /// the members that `candidates` point to. Route options are those of the
    /// last candidates.
    pub(crate) fn new(
        members: Vec<Member>,
        selector: Option<Selector>,
        candidates: Vec<u16>,
        route_options: Vec<Emitted>,
    ) -> Group {
        let size = (members.len() * 2).next_power_of_two().max(2);
        let mut by_backend = vec![EMPTY; size].into_boxed_slice();
        for (index, member) in members.iter().enumerate() {
            let mut at = index_of(member.backend, size);
            while by_backend[at].backend != 0 {
                at = (at + 1) & (size - 1);
            }
            let (backend, admission) = (member.backend.0, member.admission);
            by_backend[at] = MemberEntry { backend, member: index as u16, admission };
        }
        let without_option = candidates.len() - route_options.len();
        let candidate = |(at, member): (usize, u16)| Candidate {
            member,
            backend: members[usize::from(member)].backend,
            route_option: (at + 1).saturating_sub(without_option) as u16,
        };
        let candidates = candidates.into_iter().enumerate().map(candidate).collect();
        let route_options = route_options.into();
        let (members, earlier) = (members.into(), None);
        Group { members, by_backend, selector, candidates, route_options, earlier }
    }

    /// The same, for services with a second chance.
    pub(crate) fn with_earlier(self, earlier: Option<EarlierSlots>) -> Group {
        Group { earlier, ..self }
    }

    /// Whether earlier tables differ from the present one in any slot.
    #[inline(always)]
    #[must_use]
    pub fn has_earlier_slots(&self) -> bool {
        self.earlier.is_some()
    }

    /// What a packet without an entry carries whose hash falls on `slot`: where
    /// its connection may live by earlier tables. None: nowhere else.
    #[inline]
    #[must_use]
    pub fn earlier_option(&self, slot: u32) -> Option<&Emitted> {
        self.earlier.as_ref()?.option(slot)
    }

    /// Bytes that the selector takes, and what is held of earlier tables.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        self.selector.as_ref().map_or(0, Selector::bytes)
            + self.earlier.as_ref().map_or(0, EarlierSlots::bytes)
    }

    /// The member that is in charge of `hash`, with its index and the selector's
    /// slot; None if no member takes new connections.
    #[inline]
    #[must_use]
    pub fn select(&self, hash: u64) -> Option<Selected> {
        let selector = self.selector.as_ref()?;
        let slot = selector.slot(hash);
        Some(self.selected(slot, selector.entries()[slot as usize]))
    }

    /// The member that has a bucket, of a power of two of them, by the bucket's number in
    /// the lowest of `bits`; None if no member takes new connections.
    #[inline]
    #[must_use]
    pub fn select_bucket(&self, bits: u32) -> Option<Selected> {
        let entries = self.selector.as_ref()?.entries();
        let slot = bits & (entries.len() as u32 - 1);
        Some(self.selected(slot, entries[slot as usize]))
    }

    /// By the selector's slot; nothing if no member takes new connections.
    pub fn selected_by_slot(&self) -> impl Iterator<Item = Selected> {
        let entries = self.selector.iter().flat_map(Selector::entries);
        (0..).zip(entries).map(|(slot, entry)| self.selected(slot, *entry))
    }

    #[inline(always)]
    fn selected(&self, slot: u32, entry: u16) -> Selected {
        let Candidate { member, backend, route_option } = self.candidates[usize::from(entry)];
        Selected { member, backend, slot, has_route_option: route_option != 0 }
    }

    /// What a packet carries whose hash falls on `slot`, and which therefore goes
    /// to `backend`; None: nothing, or the slot is another backend's by now.
    #[must_use]
    pub fn route_option(&self, slot: u32, backend: BackendId) -> Option<&Emitted> {
        let entry = *self.selector.as_ref()?.entries().get(slot as usize)?;
        let candidate = self.candidates[usize::from(entry)];
        let index = usize::from(candidate.route_option).checked_sub(1)?;
        (candidate.backend == backend).then(|| &self.route_options[index])
    }

    /// The selector's entries, and the slot for `hash`, for a prefetch.
    #[inline]
    #[must_use]
    pub fn prefetch_slot(&self, hash: u64) -> Option<(&[impl Sized], usize)> {
        let selector = self.selector.as_ref()?;
        Some((selector.entries(), selector.slot(hash) as usize))
    }

    /// The member of that backend, with its index.
    #[inline]
    #[must_use]
    pub fn member(&self, backend: BackendId) -> Option<(u16, Admission)> {
        let mask = self.by_backend.len() - 1;
        let mut at = index_of(backend, self.by_backend.len());
        loop {
            let slot = self.by_backend[at];
            if slot.backend == backend.0 {
                return Some((slot.member, slot.admission));
            }
            if slot.backend == 0 {
                return None;
            }
            at = (at + 1) & mask;
        }
    }

    /// The members, in order of backend name.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// What selects; None if no member takes new connections.
    #[must_use]
    pub fn selector(&self) -> Option<&Selector> {
        self.selector.as_ref()
    }
}

/// What a selector gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selected {
    /// Index of the member in its group.
    pub member: u16,
    /// Its backend.
    pub backend: BackendId,
    /// The slot: of the Maglev table, or the bucket.
    pub slot: u32,
    /// The packet carries [`Group::route_option`].
    pub has_route_option: bool,
}

#[inline]
fn index_of(backend: BackendId, size: usize) -> usize {
    // Ids are given out one after the other, so most differ in their low bits.
    usize::from(backend.0) & (size - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_is_found_and_no_other_backend() {
        let admission = Admission::TrackedOnly { is_down: false };
        let ids: Vec<u16> = (1..=500).map(|i| i * 131 % 65_521).collect();
        let members = ids.iter().map(|id| Member { backend: BackendId(*id), admission }).collect();
        let group = Group::new(members, None, Vec::new(), Vec::new());
        for (index, id) in ids.iter().enumerate() {
            assert_eq!(group.member(BackendId(*id)), Some((index as u16, admission)));
        }
        for id in (1..=u16::MAX).filter(|id| !ids.contains(id)) {
            assert_eq!(group.member(BackendId(id)), None);
        }
        assert_eq!(group.select(7), None);
    }
}
