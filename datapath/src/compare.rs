//! Predicts what happens to tracked connections when another plan is swapped in.
//!
//! It is pure and duplicates no rule: an entry is given to [`choose`], first with the present
//! plan, then with the other.
//!
//! | its service's packets are | by `choose` its backend | |
//! |---|---|---|
//! | the same service's, or another's | refuses it | breaks |
//! | no service's | | breaks |
//! | the same service's | keeps it | stays |
//! | the same, but the entry has expired by the other plan | would keep it | as the hash selects: stays or moves |
//! | another service's, which has no entry | would keep it | as the hash selects: stays or moves |
//!
//! The result of the hash is known except for `affinity: client` and for a service that becomes
//! stateless, whose hashes no entry contains. Entries do not name their VIP: if a service's
//! VIPs end up in different places, an entry's outcome is known only if all places give the
//! same.

use plan::compare::NextServices;
use plan::{Affinity, Plan, Service, ServiceId};

use crate::decide::{Known, ServiceRules, Signal, Why, choose};
use crate::table::{Entry, EntryClass, Lifetimes, Ticks};

/// Two plans of one [`plan::Planner`]: the one that is forwarded by, and
/// another.
#[derive(Debug)]
pub struct PlanChange<'p> {
    before: Side<'p>,
    after: Side<'p>,
    next: NextServices,
}

#[derive(Debug)]
struct Side<'p> {
    plan: &'p Plan,
    lifetimes: Lifetimes,
}

/// What becomes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It stays with its backend.
    Stays,
    /// Another backend gets its packets, though its own would keep it.
    Moves,
    /// Its backend is gone or refuses it, or no service has its packets.
    Breaks,
    /// Cannot be known from its entry.
    Unknown,
}

impl<'p> PlanChange<'p> {
    /// From one plan to the other.
    #[must_use]
    pub fn new(before: &'p Plan, after: &'p Plan) -> PlanChange<'p> {
        let side = |plan: &'p Plan| Side { plan, lifetimes: Lifetimes::new(plan) };
        let next = NextServices::new(before, after);
        PlanChange { before: side(before), after: side(after), next }
    }

    /// What becomes of an entry's connection, at a moment. None: the entry
    /// decides nothing already now.
    #[must_use]
    pub fn outcome(&self, entry: Entry, hash: u64, ticks: &Ticks) -> Option<Outcome> {
        let (_, rules) = self.before.rules(entry.service)?;
        let now = choose(&rules.at(ticks), &mut of_entry(Some(entry), hash));
        if now.why != Why::Tracked {
            return None;
        }
        let services = self.next.of(entry.service, is_tcp(entry.class));
        let mut outcomes = services.map(|service| self.by_service(service, entry, hash, ticks));
        let first = outcomes.next()?;
        Some(if outcomes.all(|other| other == first) { first } else { Outcome::Unknown })
    }

    fn by_service(
        &self,
        service: Option<ServiceId>,
        entry: Entry,
        hash: u64,
        ticks: &Ticks,
    ) -> Outcome {
        let Some((service, rules)) = service.and_then(|id| self.after.rules(id)) else {
            return Outcome::Breaks;
        };
        // Buckets go by another hash than the entry's.
        if service.tracking.is_stateless() {
            return Outcome::Unknown;
        }
        let decision = |entry| choose(&rules.at(ticks), &mut of_entry(entry, hash));
        if service.id == entry.service && decision(Some(entry)).why == Why::Tracked {
            return Outcome::Stays;
        }
        let fresh = Entry { service: service.id, time: ticks.of(entry.class), ..entry };
        if decision(Some(fresh)).why != Why::Tracked {
            return Outcome::Breaks;
        }
        if service.affinity == Affinity::Client {
            return Outcome::Unknown;
        }
        match decision(None).chosen {
            Some(chosen) if chosen.backend == entry.backend => Outcome::Stays,
            _ => Outcome::Moves,
        }
    }
}

/// What is known of a connection's data.
fn of_entry(entry: Option<Entry>, hash: u64) -> Known {
    Known { entry, ..Known::selector(Signal::Data, hash) }
}

/// Whether a connection is one of TCP, as far as its class says.
fn is_tcp(class: EntryClass) -> Option<bool> {
    match class {
        EntryClass::Unconfirmed => None,
        EntryClass::Datagram => Some(false),
        EntryClass::Established | EntryClass::Closing | EntryClass::Reset => Some(true),
    }
}

impl Side<'_> {
    fn rules(&self, service: ServiceId) -> Option<(&Service, ServiceRules<'_>)> {
        let service = self.plan.service(service)?;
        Some((service, ServiceRules::of_service(service, &self.lifetimes)))
    }
}
