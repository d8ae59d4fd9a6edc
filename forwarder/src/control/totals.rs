//! Counters by name over all plans: what views counted before they were
//! replaced, plus what the present one counts.
//!
//! A plan with other members gets counters of its own; what its predecessor
//! counted is kept here by name, so that no number ever goes back.

use std::collections::BTreeMap;

use datapath::View;
use plan::Plan;

use crate::proto::{BackendCounters, ServiceCounters};

/// A Vip with one protocol and port range: service, target, protocol, ports.
type MatchName = (String, String, &'static str, String);
/// Service and backend.
type MemberName = (String, String);

/// What a Vip got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct MatchTotal {
    packets: u64,
    bytes: u64,
}

/// What a backend got of a service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct MemberTotal {
    packets: u64,
    bytes: u64,
    new_connections: u64,
}

/// Totals by name.
#[derive(Debug, Clone, Default)]
pub struct NamedTotals {
    matches: BTreeMap<MatchName, MatchTotal>,
    members: BTreeMap<MemberName, MemberTotal>,
}

impl NamedTotals {
    /// Adds what a view has counted. To be called once for each view that no
    /// worker uses any more, or on a copy.
    pub fn add(&mut self, view: &View) {
        self.add_matches(view);
        self.add_members(view);
    }

    /// Forgets what the plan does not name: a removed service's counters end.
    pub fn retain(&mut self, plan: &Plan) {
        let matches: std::collections::BTreeSet<MatchName> = match_names(plan).collect();
        let members: std::collections::BTreeSet<MemberName> = member_names(plan).collect();
        self.matches.retain(|name, _| matches.contains(name));
        self.members.retain(|name, _| members.contains(name));
    }

    /// As the gRPC answer lists them.
    #[must_use]
    pub fn services(&self) -> Vec<ServiceCounters> {
        let line =
            |((service, vip, protocol, ports), total): (&MatchName, &MatchTotal)| ServiceCounters {
                service: service.clone(),
                vip: vip.clone(),
                protocol: (*protocol).to_owned(),
                ports: ports.clone(),
                packets: total.packets,
                bytes: total.bytes,
            };
        self.matches.iter().map(line).collect()
    }

    /// As the gRPC answer lists them.
    #[must_use]
    pub fn backends(&self) -> Vec<BackendCounters> {
        let line = |((service, backend), total): (&MemberName, &MemberTotal)| BackendCounters {
            service: service.clone(),
            backend: backend.clone(),
            packets: total.packets,
            bytes: total.bytes,
            new_connections: total.new_connections,
        };
        self.members.iter().map(line).collect()
    }

    fn add_matches(&mut self, view: &View) {
        let plan = &view.plan;
        let mut matches_of = vec![0; plan.service_ids()];
        plan.matches.iter().for_each(|matched| matches_of[matched.service.index()] += 1);
        for ((index, matched), name) in plan.matches.iter().enumerate().zip(match_names(plan)) {
            let service = plan.service(matched.service).expect("matches are of services");
            let is_alone = matches_of[matched.service.index()] == 1;
            let total = self.matches.entry(name).or_default();
            for worker in view.counters.iter() {
                let (packets, bytes) = worker.match_totals(index, service, is_alone);
                total.packets += packets;
                total.bytes += bytes;
            }
        }
    }

    fn add_members(&mut self, view: &View) {
        for (index, name) in member_names(&view.plan).enumerate() {
            let total = self.members.entry(name).or_default();
            for worker in view.counters.iter() {
                total.packets += worker.members[index].packets.get();
                total.bytes += worker.members[index].bytes.get();
                total.new_connections += worker.new_connections[index].get();
            }
        }
    }
}

/// The names of the plan's matches, by index.
fn match_names(plan: &Plan) -> impl Iterator<Item = MatchName> {
    plan.matches.iter().map(|matched| {
        let service = plan.service(matched.service).expect("matches are of services");
        (
            service.details.name.clone(),
            matched.target.clone(),
            matched.protocol,
            matched.ports.clone(),
        )
    })
}

/// The names of the members of all services, by their index over all.
fn member_names(plan: &Plan) -> impl Iterator<Item = MemberName> {
    let mut services: Vec<_> = plan.services().collect();
    services.sort_by_key(|service| service.first_member);
    services.into_iter().flat_map(|service| {
        service.group.members().iter().map(|member| {
            let backend = plan.backend(member.backend).expect("members are backends");
            (service.details.name.clone(), backend.name.clone())
        })
    })
}
