//! Counters by name over all plans: what views counted before they were
//! replaced, plus what the present one counts.
//!
//! A plan with other members gets counters of its own; what its predecessor
//! counted is kept here by name, so that no number ever goes back.

use std::collections::BTreeMap;

use datapath::{MatchTotal, View};
use plan::{Plan, Service};

use crate::proto::{BackendCounters, ServiceCounters};

/// A Vip with one protocol and port range: service, target, protocol, ports.
type MatchName = (String, String, &'static str, String);
/// Service and backend; no service if several count together.
type MemberName = (String, String);

/// What a backend got of a service, or of all that count together.
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
                new_connections: total.new_connections,
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
        for (index, name) in match_names(&view.plan).enumerate() {
            let total = self.matches.entry(name).or_default();
            for worker in view.counters.iter() {
                let more = worker.match_totals(&view.plan, index);
                total.packets += more.packets;
                total.bytes += more.bytes;
                total.new_connections += more.new_connections;
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
    plan.matches.iter().map(|entry| {
        let service = plan.service_of(&entry.matched);
        (service.name.clone(), entry.target.clone(), entry.protocol, entry.ports.clone())
    })
}

/// The names of all members that are counted, by their index.
fn member_names(plan: &Plan) -> impl Iterator<Item = MemberName> {
    let has_members = |service: &&Service| !service.group.members().is_empty();
    let mut services: Vec<&Service> = plan.services().filter(has_members).collect();
    services.sort_by_key(|service| service.first_member);
    let together = |one: &&Service, next: &&Service| one.first_member == next.first_member;
    let places: Vec<(&Service, bool)> =
        services.chunk_by(together).map(|services| (services[0], services.len() == 1)).collect();
    places.into_iter().flat_map(move |(service, alone)| {
        service.group.members().iter().map(move |member| {
            let backend = plan.backend(member.backend).expect("members are backends");
            let service = if alone { service.name.clone() } else { String::new() };
            (service, backend.name.clone())
        })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datapath::Egress;
    use plan::{Found, Planner, proto};
    use wire::{Family, Protocol, Target};

    use super::*;

    fn service(name: &str, vips: &[&str]) -> proto::Service {
        let vip = |address: &&str| proto::Vip {
            target: Some(proto::vip::Target::Address((*address).into())),
            ..Default::default()
        };
        proto::Service {
            name: name.into(),
            vips: vips.iter().map(vip).collect(),
            group: "g".into(),
            ..Default::default()
        }
    }

    fn group() -> proto::Group {
        let member = |backend: &str| proto::Member {
            backend: backend.into(),
            weight: 1,
            state: proto::BackendState::Active as i32,
        };
        proto::Group { name: "g".into(), members: vec![member("b1"), member("b2")] }
    }

    fn view(planner: &mut Planner, counters_by_service: bool) -> View {
        view_of(planner, message(counters_by_service))
    }

    fn view_of(planner: &mut Planner, message: proto::Plan) -> View {
        View::new(Arc::new(planner.plan(message).unwrap()), Egress::default(), 1)
    }

    fn message(counters_by_service: bool) -> proto::Plan {
        let backend = |name: &str, address: &str| proto::Backend {
            name: name.into(),
            address: address.into(),
        };
        proto::Plan {
            generation: 1,
            machine: Some(proto::Machine {
                name: "lb-1".into(),
                addresses: vec!["10.0.0.1".into()],
                ..Default::default()
            }),
            backends: vec![backend("b1", "10.1.0.1"), backend("b2", "10.1.0.2")],
            groups: vec![group()],
            counters_by_service,
            services: vec![
                service("alone", &["203.0.113.1"]),
                service("several", &["203.0.113.2", "203.0.113.3"]),
            ],
            ..Default::default()
        }
    }

    /// Some packets for each VIP, to some of its backends.
    fn count(view: &View) {
        for (host, member, packets) in [(1, 0, 3), (1, 1, 4), (2, 0, 5), (2, 1, 6), (3, 1, 7)] {
            let (family, protocol) = (Family::V4, Protocol::TCP);
            let target = Target { address: 0xcb00_7100 + host, family, protocol, port: 80 };
            let Found::Service(matched) = view.plan.vips.find(&target) else { panic!("{host}") };
            for _ in 0..packets {
                view.counters[0].count(&matched, member, 100);
                view.counters[0].count_new_connection(&matched, member);
            }
        }
    }

    /// Holds totals to what was counted by so many plans: for VIPs, and for
    /// these services and backends.
    fn hold(totals: &NamedTotals, plans: u64, members: &[(&str, &str, u64)]) {
        let vips: Vec<_> = totals
            .services()
            .into_iter()
            .map(|line| (line.vip, line.packets, line.bytes, line.new_connections))
            .collect();
        let expected = [("203.0.113.1", 7), ("203.0.113.2", 11), ("203.0.113.3", 7)];
        let line = |(vip, packets): (&str, u64)| {
            let packets = packets * plans;
            (vip.to_owned(), packets, packets * 100, packets)
        };
        assert_eq!(vips, expected.map(line));
        let backends = totals.backends();
        let counted = backends.iter().map(|line| {
            assert_eq!(line.new_connections, line.packets);
            (line.service.as_str(), line.backend.as_str(), line.packets)
        });
        let expected =
            members.iter().map(|(service, backend, packets)| (*service, *backend, packets * plans));
        assert!(counted.eq(expected), "{backends:?}");
    }

    const BY_SERVICE: [(&str, &str, u64); 4] =
        [("alone", "b1", 3), ("alone", "b2", 4), ("several", "b1", 5), ("several", "b2", 13)];

    #[test]
    fn a_vip_gets_what_was_counted_for_it_or_for_its_services_members() {
        let view = view(&mut Planner::default(), true);
        count(&view);
        let mut totals = NamedTotals::default();
        totals.add(&view);
        hold(&totals, 1, &BY_SERVICE);
    }

    #[test]
    fn services_of_a_group_count_its_backends_together_and_their_vips_apart() {
        let view = view(&mut Planner::default(), false);
        assert_eq!(view.plan.members, 2, "places for each backend of the group, once");
        count(&view);
        let mut totals = NamedTotals::default();
        totals.add(&view);
        hold(&totals, 1, &[("", "b1", 8), ("", "b2", 17)]);
    }

    #[test]
    fn counters_in_another_order_are_the_same_by_name() {
        let (mut planner, mut totals) = (Planner::default(), NamedTotals::default());
        let first_members = |view: &View| {
            let of = |name| view.plan.services().find(|service| service.name == name);
            ["alone", "several"].map(|name| of(name).unwrap().first_member)
        };
        let first = view(&mut planner, true);
        count(&first);
        totals.add(&first);
        let mut reversed = message(true);
        reversed.services.reverse();
        let second = view_of(&mut planner, reversed);
        assert_eq!([first_members(&first), first_members(&second)], [[0, 2], [2, 0]]);
        count(&second);
        totals.add(&second);
        hold(&totals, 2, &BY_SERVICE);
    }
}
