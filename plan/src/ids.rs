//! Ids in the entries of connection tables. They are stable from plan to plan, so that tracked
//! connections survive any change by construction.
//!
//! ```text
//!  free ──assign──► live ──gone from the plan──► retired ──swept──► free
//!                    ▲                              │
//!                    └────── back in a plan ────────┘
//! ```
//!
//! A retired id becomes free only when no entry can contain it: the caller says so by
//! [`IdTable::release`] after every worker has swept its table.

use std::collections::{HashMap, HashSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::limits;

/// A backend as connection tables and counters know it. Never zero: zero
/// marks an empty entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(pub u16);

/// A service as connection tables know it: below [`limits::SERVICE_IDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ServiceId(pub u16);

impl BackendId {
    /// As an index into arrays that have a place for the unused zero.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl ServiceId {
    /// As an index.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The ids of backends and services, kept beside the connection tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    /// By name and address: a name that moves to another address is another
    /// backend, whose connections must not follow.
    pub backends: IdTable,
    /// By name.
    pub services: IdTable,
}

impl Default for Ids {
    fn default() -> Ids {
        Ids {
            backends: IdTable::new(1, limits::BACKEND_IDS as u32),
            services: IdTable::new(0, limits::SERVICE_IDS as u32 - 1),
        }
    }
}

/// Names and their ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdTable {
    /// The lowest id never given out.
    next: u32,
    /// The highest id there is.
    last: u32,
    /// Every name that entries may know, live or retired.
    names: HashMap<String, u32>,
    /// Retired names with the generation that retired them, oldest first.
    retired: VecDeque<(u64, String)>,
    /// Ids that no entry holds, oldest first.
    free: VecDeque<u32>,
}

impl IdTable {
    fn new(first: u32, last: u32) -> IdTable {
        IdTable {
            next: first,
            last,
            names: HashMap::new(),
            retired: VecDeque::new(),
            free: VecDeque::new(),
        }
    }

    /// The ids of these names, which differ, if they are just the live ones:
    /// nothing is to be assigned then.
    #[must_use]
    pub fn ids_of<'n>(&self, names: &[&'n str]) -> Option<HashMap<&'n str, u16>> {
        let live = self.names.len() - self.retired.len();
        let known = names.iter().map_while(|name| Some((*name, *self.names.get(*name)? as u16)));
        let ids: HashMap<&str, u16> = (names.len() == live).then(|| known.collect())?;
        let is_back = |(_, name): &(u64, String)| ids.contains_key(name.as_str());
        (ids.len() == live && !self.retired.iter().any(is_back)).then_some(ids)
    }

    /// Gives every name of `names` its id, the one it had if it has one, and
    /// retires the others as of `generation`. None: no id is left; nothing
    /// is changed then.
    pub fn assign<'n>(
        &mut self,
        names: &[&'n str],
        generation: u64,
    ) -> Option<HashMap<&'n str, u16>> {
        let fresh = names.iter().filter(|name| !self.names.contains_key(**name)).count();
        if fresh > self.free.len() + (self.last + 1 - self.next) as usize {
            return None;
        }
        let ids: HashMap<&str, u16> = names.iter().map(|name| (*name, self.id(name))).collect();
        self.retire_all_but(&ids, generation);
        Some(ids)
    }

    /// True if plans up to `generation` retired any.
    #[must_use]
    pub fn is_retired(&self, generation: u64) -> bool {
        self.retired.front().is_some_and(|(retired, _)| *retired <= generation)
    }

    /// Frees the ids that plans up to `generation` retired. To be called when
    /// no connection table entry can hold one of them any more.
    pub fn release(&mut self, generation: u64) {
        while self.is_retired(generation) {
            let (_, name) = self.retired.pop_front().expect("seen at the front");
            let id = self.names.remove(&name).expect("retired names have ids");
            self.free.push_back(id);
        }
    }

    /// Fresh ids first: a reused one is safe after its release, but the
    /// longer it rests the better a mistake elsewhere would show.
    fn id(&mut self, name: &str) -> u16 {
        if let Some(id) = self.names.get(name) {
            return *id as u16;
        }
        let id = if self.next <= self.last {
            self.next += 1;
            self.next - 1
        } else {
            self.free.pop_front().expect("assign counted the free ids")
        };
        self.names.insert(name.to_owned(), id);
        id as u16
    }

    fn retire_all_but(&mut self, live: &HashMap<&str, u16>, generation: u64) {
        self.retired.retain(|(_, name)| !live.contains_key(name.as_str()));
        let retired: HashSet<&String> = self.retired.iter().map(|(_, name)| name).collect();
        let mut gone: Vec<String> = self
            .names
            .keys()
            .filter(|name| !live.contains_key(name.as_str()) && !retired.contains(name))
            .cloned()
            .collect();
        gone.sort_unstable();
        self.retired.extend(gone.into_iter().map(|name| (generation, name)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_id_while_it_is_away_and_unreleased() {
        let mut table = IdTable::new(1, 3);
        let first = table.assign(&["a", "b"], 1).unwrap();
        let second = table.assign(&["b"], 2).unwrap();
        let third = table.assign(&["a", "b"], 3).unwrap();
        assert_eq!(first["b"], second["b"]);
        assert_eq!(first, third);
    }

    #[test]
    fn an_id_is_reused_only_after_its_release() {
        let mut table = IdTable::new(1, 2);
        let first = table.assign(&["a", "b"], 1).unwrap();
        assert!(table.assign(&["c", "b"], 2).is_none(), "a's id may still be held");
        table.assign(&["b"], 2).unwrap();
        table.release(1);
        assert!(table.assign(&["c", "b"], 3).is_none(), "a was retired by 2, not by 1");
        table.release(2);
        assert_eq!(table.assign(&["c", "b"], 4).unwrap()["c"], first["a"]);
    }

    #[test]
    fn ids_of_just_the_live_names_need_no_assignment() {
        let mut table = IdTable::new(1, 9);
        let first = table.assign(&["a", "b"], 1).unwrap();
        assert_eq!(table.ids_of(&["b", "a"]), Some(first));
        for others in [&["a"][..], &["a", "c"], &["a", "b", "c"]] {
            assert_eq!(table.ids_of(others), None, "{others:?}");
        }
        let second = table.assign(&["b", "c"], 2).unwrap();
        assert_eq!(table.ids_of(&["b", "a"]), None, "a is retired");
        assert_eq!(table.ids_of(&["c", "b"]), Some(second));
    }

    #[test]
    fn running_out_changes_nothing() {
        let mut table = IdTable::new(1, 2);
        table.assign(&["a", "b"], 1).unwrap();
        let before = table.clone();
        assert!(table.assign(&["a", "b", "c"], 2).is_none());
        assert_eq!(table, before);
    }
}
