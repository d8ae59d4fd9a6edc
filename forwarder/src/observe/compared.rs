//! What another plan changes: tables and tracked connections by service, as API messages; for
//! the running plan, or for two plan files.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use datapath::compare::{Outcome, PlanChange};
use datapath::table::{EntryClass, TableReader};
use plan::{BackendId, Group, Plan, Service};

use crate::proto;

/// Connections that are compared between two looks whether anybody waits for them.
const ENTRIES_BETWEEN_LOOKS: usize = 4096;

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
        let change = known.entry(groups_of(old, new));
        let change = *change.or_insert_with(|| table_change(&table(old), &table(new)));
        (name, change)
    };
    by_name(before, after).into_iter().map(change).collect()
}

/// The same with shares and with what becomes of the connections in `tables`,
/// which are read one after the other. `held` returns whether a service of
/// the earlier plan holds its quota of connections. None: `is_wanted`, which is asked
/// every few milliseconds, returned false.
pub fn compared<'p>(
    before: &'p Plan,
    after: &'p Plan,
    tables: &[TableReader<'_>],
    held: impl Fn(&Service) -> bool,
    is_wanted: impl Fn() -> bool,
) -> Option<Vec<proto::ServiceComparison>> {
    let outcomes = outcomes(before, after, tables, &is_wanted)?;
    let mut of_tables: HashMap<_, (TableChange, &str)> = HashMap::new();
    let service = |(name, (old, new)): (&'p str, Both<'p>)| {
        let of = |which: usize| {
            let counts = old.and_then(|service| outcomes.get(service.id.index()));
            Some(counts.copied().unwrap_or_default()[which].message())
        };
        let mut backends = Vec::new();
        let (change, first) = match of_tables.entry(groups_of(old, new)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(_) if !is_wanted() => return None,
            Entry::Vacant(unknown) => {
                let change = table_change(&table(old), &table(new));
                if change.changed > 0 {
                    backends = shares(before, after, old, new);
                }
                *unknown.insert((change, name))
            }
        };
        let shares_as = if change.changed > 0 && first != name { first } else { "" };
        Some(proto::ServiceComparison {
            service: name.to_owned(),
            entries: change.entries as u32,
            entries_changed: change.changed as u32,
            entries_moved: change.moved as u32,
            backends,
            established: of(GOING_ON),
            opening_or_closing: of(OPENING_OR_CLOSING),
            quota_reached: old.is_some_and(&held),
            shares_as: shares_as.to_owned(),
        })
    };
    by_name(before, after).into_iter().map(service).collect()
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
fn groups_of(old: Option<&Service>, new: Option<&Service>) -> [Option<*const Group>; 2] {
    [old, new].map(|service| service.map(|service| Arc::as_ptr(&service.group)))
}

/// A service's table; empty where no backend takes new connections.
fn table(service: Option<&Service>) -> Vec<BackendId> {
    service
        .map(|service| service.group.selected_by_slot().map(|selected| selected.backend).collect())
        .unwrap_or_default()
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

/// By id of the earlier plan's services. None: they are not wanted any more.
fn outcomes(
    before: &Plan,
    after: &Plan,
    tables: &[TableReader<'_>],
    is_wanted: impl Fn() -> bool,
) -> Option<Vec<OutcomesByClass>> {
    let change = PlanChange::new(before, after);
    let mut by_service = vec![OutcomesByClass::default(); before.service_ids()];
    for table in tables {
        let ticks = table.ticks();
        for (at, (entry, hash)) in table.entries_with_hashes().enumerate() {
            if at.is_multiple_of(ENTRIES_BETWEEN_LOOKS) && !is_wanted() {
                return None;
            }
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
    Some(by_service)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use plan::{Planner, proto as plan_proto};

    use super::*;

    /// Services of as many pools, of four backends each, all known to one planner.
    fn plan(planner: &mut Planner, services: usize, pools: usize) -> Plan {
        let backends = (0..4 * pools).map(|backend| plan_proto::Backend {
            name: format!("b{backend}"),
            address: format!("10.1.{}.{}", backend / 200, 1 + backend % 200),
        });
        let member = |backend: usize| plan_proto::Member {
            backend: format!("b{backend}"),
            weight: 1,
            state: plan_proto::BackendState::Active as i32,
        };
        let group = |pool: usize| plan_proto::Group {
            name: format!("p{pool}"),
            members: (4 * pool..4 * pool + 4).map(member).collect(),
            ..Default::default()
        };
        let service = |service: usize| plan_proto::Service {
            name: format!("s{service:04}"),
            group: format!("p{}", service % pools),
            table_size: 251,
            vips: vec![plan_proto::Vip {
                target: Some(plan_proto::vip::Target::Address(format!(
                    "203.0.{}.{}",
                    service / 200,
                    1 + service % 200
                ))),
                ..Default::default()
            }],
            ..Default::default()
        };
        let machine = plan_proto::Machine {
            name: "lb".into(),
            addresses: vec!["10.0.0.1".into()],
            ..Default::default()
        };
        let message = plan_proto::Plan {
            generation: 1,
            machine: Some(machine),
            backends: backends.collect(),
            groups: (0..pools).map(group).collect(),
            services: (0..services).map(service).collect(),
            ..Default::default()
        };
        planner.plan(message).unwrap()
    }

    #[test]
    fn services_of_one_pool_share_one_list_of_shares() {
        let mut planner = Planner::default();
        let (before, after) = (plan(&mut planner, 2, 2), plan(&mut planner, 1000, 10));
        let services = compared(&before, &after, &[], |_| false, || true).unwrap();
        assert_eq!(services.len(), 1000);
        let shares: usize = services.iter().map(|service| service.backends.len()).sum();
        // The first two have the tables that they had.
        assert!(services[..2].iter().all(|service| service.entries_changed == 0));
        assert_eq!(shares, 10 * 4);
        for service in &services[2..] {
            assert_eq!(service.entries_changed, 251, "{}", service.service);
            let has = |name: &str| services.iter().find(|one| one.service == name).unwrap();
            let shown = match service.shares_as.as_str() {
                "" => service,
                first => has(first),
            };
            assert!(shown.service <= service.service);
            let of = |text: &str| text[1..].parse::<usize>().unwrap() % 10;
            assert_eq!(of(&shown.service), of(&service.service));
            let entries: u32 = shown.backends.iter().map(|share| share.entries_after).sum();
            assert_eq!((shown.backends.len(), entries), (4, 251));
        }
    }

    #[test]
    fn a_comparison_that_nobody_waits_for_ends_at_the_next_table() {
        let mut planner = Planner::default();
        let (before, after) = (plan(&mut planner, 2, 2), plan(&mut planner, 1000, 10));
        for looks_max in [0, 5] {
            let looks = Cell::new(0);
            let is_wanted = || {
                looks.set(looks.get() + 1);
                looks.get() <= looks_max
            };
            assert!(compared(&before, &after, &[], |_| false, is_wanted).is_none());
            assert_eq!(looks.get(), looks_max + 1);
        }
    }

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
