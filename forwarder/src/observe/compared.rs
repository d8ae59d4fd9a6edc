//! What another plan changes: tables and tracked connections by service, in
//! the words of the socket; of the running plan, or of two plan files.

use std::collections::{BTreeMap, HashMap};

use datapath::compare::{Outcome, PlanChange};
use datapath::table::{EntryClass, TableReader};
use plan::{BackendId, Group, Plan, Service};

use crate::proto;

/// What became of a Maglev table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableChange {
    /// Entries of the later table (of the earlier, if there is no later one).
    pub entries: usize,
    /// Entries that name another backend; all, where only one plan has a
    /// table or their sizes differ.
    pub changed: usize,
    /// Of these, between backends that both tables have: what no change of
    /// members explains.
    pub moved: usize,
}

/// Each service of either plan, in order of name, and what becomes of its
/// table. The plans are of one planner.
#[must_use]
pub fn table_changes<'p>(before: &'p Plan, after: &'p Plan) -> Vec<(&'p str, TableChange)> {
    let mut known = HashMap::new();
    let change = |(name, (old, new)): (&'p str, Both<'p>)| {
        let key = (old.map(group_address), new.map(group_address));
        let change = *known.entry(key).or_insert_with(|| table_change(&table(old), &table(new)));
        (name, change)
    };
    by_name(before, after).into_iter().map(change).collect()
}

/// The same with shares and with what becomes of the connections in `tables`,
/// which are read one after the other. `held` returns whether a service of
/// the earlier plan holds its quota of connections.
pub fn compared(
    before: &Plan,
    after: &Plan,
    tables: &[TableReader<'_>],
    held: impl Fn(&Service) -> bool,
) -> Vec<proto::ServiceComparison> {
    let outcomes = outcomes(before, after, tables);
    let both = by_name(before, after);
    let service = |(name, change): (&str, TableChange)| {
        let (old, new) = both[name];
        let of = |which: usize| {
            let counts = old.and_then(|service| outcomes.get(service.id.index()));
            Some(counts.copied().unwrap_or_default()[which].message())
        };
        proto::ServiceComparison {
            service: name.to_owned(),
            entries: change.entries as u32,
            entries_changed: change.changed as u32,
            entries_moved: change.moved as u32,
            backends: if change.changed > 0 { shares(before, after, old, new) } else { Vec::new() },
            established: of(GOING_ON),
            opening_or_closing: of(OPENING_OR_CLOSING),
            quota_reached: old.is_some_and(&held),
        }
    };
    table_changes(before, after).into_iter().map(service).collect()
}

/// A service by the earlier plan and by the later one.
type Both<'p> = (Option<&'p Service>, Option<&'p Service>);

fn by_name<'p>(before: &'p Plan, after: &'p Plan) -> BTreeMap<&'p str, Both<'p>> {
    let mut services: BTreeMap<&str, Both<'_>> = BTreeMap::new();
    for service in before.services() {
        services.entry(&service.name).or_default().0 = Some(service);
    }
    for service in after.services() {
        services.entry(&service.name).or_default().1 = Some(service);
    }
    services
}

/// Services of one group have one table.
fn group_address(service: &Service) -> *const Group {
    std::sync::Arc::as_ptr(&service.group)
}

/// A service's table; empty where no backend takes new connections.
fn table(service: Option<&Service>) -> Vec<BackendId> {
    service.map(|service| service.group.backends_by_slot().collect()).unwrap_or_default()
}

fn table_change(old: &[BackendId], new: &[BackendId]) -> TableChange {
    let entries = if new.is_empty() { old.len() } else { new.len() };
    if old.len() != new.len() {
        return TableChange { entries, changed: entries, moved: 0 };
    }
    let members = |table: &[BackendId]| {
        table.iter().copied().collect::<std::collections::HashSet<BackendId>>()
    };
    let (had, has) = (members(old), members(new));
    let differing = || old.iter().zip(new).filter(|(before, after)| before != after);
    let moved =
        differing().filter(|(before, after)| has.contains(before) && had.contains(after)).count();
    TableChange { entries, changed: differing().count(), moved }
}

fn shares(
    before: &Plan,
    after: &Plan,
    old: Option<&Service>,
    new: Option<&Service>,
) -> Vec<proto::BackendShare> {
    let mut shares: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for (plan, service) in [(before, old), (after, new)] {
        for member in service.into_iter().flat_map(|service| service.group.members()) {
            shares.entry(name(plan, member.backend)).or_default();
        }
    }
    for backend in table(old) {
        shares.entry(name(before, backend)).or_default().0 += 1;
    }
    for backend in table(new) {
        shares.entry(name(after, backend)).or_default().1 += 1;
    }
    let share = |(backend, (entries_before, entries_after)): (&str, (u32, u32))| {
        proto::BackendShare { backend: backend.to_owned(), entries_before, entries_after }
    };
    shares.into_iter().map(share).collect()
}

fn name(plan: &Plan, backend: BackendId) -> &str {
    &plan.backend(backend).expect("members are backends").name
}

/// Outcomes of a service's connections, those that go on apart from others.
type OutcomesByClass = [Outcomes; 2];
const GOING_ON: usize = 0;
const OPENING_OR_CLOSING: usize = 1;

#[derive(Debug, Clone, Copy, Default)]
struct Outcomes {
    staying: u64,
    moving: u64,
    breaking: u64,
    unknown: u64,
}

impl Outcomes {
    fn add(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Stays => &mut self.staying,
            Outcome::Moves => &mut self.moving,
            Outcome::Breaks => &mut self.breaking,
            Outcome::Unknown => &mut self.unknown,
        } += 1;
    }

    fn message(self) -> proto::ConnectionOutcomes {
        let Outcomes { staying, moving, breaking, unknown } = self;
        proto::ConnectionOutcomes { staying, moving, breaking, unknown }
    }
}

/// By id of the earlier plan's services.
fn outcomes(before: &Plan, after: &Plan, tables: &[TableReader<'_>]) -> Vec<OutcomesByClass> {
    let change = PlanChange::new(before, after);
    let mut by_service = vec![OutcomesByClass::default(); before.service_ids()];
    for table in tables {
        let ticks = table.ticks();
        for (entry, hash) in table.entries_with_hashes() {
            let Some(outcome) = change.outcome(entry, hash, &ticks) else { continue };
            let class = match entry.class {
                EntryClass::Established | EntryClass::Datagram => GOING_ON,
                EntryClass::Unconfirmed | EntryClass::Closing | EntryClass::Reset => {
                    OPENING_OR_CLOSING
                }
            };
            by_service[entry.service.index()][class].add(outcome);
        }
    }
    by_service
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(old: &str, new: &str) -> TableChange {
        let table =
            |text: &str| text.bytes().map(|byte| BackendId(byte.into())).collect::<Vec<_>>();
        table_change(&table(old), &table(new))
    }

    #[test]
    fn a_removed_backend_explains_its_own_entries_only() {
        assert_eq!(change("abca", "acaa"), TableChange { entries: 4, changed: 2, moved: 1 });
    }

    #[test]
    fn a_table_of_another_size_has_changed_altogether() {
        assert_eq!(change("aaa", "aaaaa"), TableChange { entries: 5, changed: 5, moved: 0 });
        assert_eq!(change("", "aaaaa"), TableChange { entries: 5, changed: 5, moved: 0 });
        assert_eq!(change("aaaaa", ""), TableChange { entries: 5, changed: 5, moved: 0 });
        assert_eq!(change("", ""), TableChange::default());
    }
}
