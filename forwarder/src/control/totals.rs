//! Counters by name over all plans: the counts of replaced views plus those of the present one.
//!
//! A plan with other members has new counters. Its predecessor's counts are carried over by
//! name, so that no number ever decreases.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use datapath::{MatchTotal, View};
use plan::{Plan, Service};

use crate::proto::{BackendCounters, ServiceCounters};

/// A Vip with one protocol and port range: service, target, protocol, ports.
type MatchName<'p> = (&'p str, &'p str, &'p str, &'p str);
/// Service and backend; no service if several count together.
type MemberName<'p> = (&'p str, &'p str);

/// What a backend got of a service, or of all that count together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct MemberTotal {
    packets: u64,
    bytes: u64,
    new_connections: u64,
}

/// Totals of everything that a plan names, by its index there: adding to them
/// compares no names.
#[derive(Debug, Clone)]
pub struct NamedTotals {
    plan: Arc<Plan>,
    matches: Vec<MatchTotal>,
    members: Vec<MemberTotal>,
}

impl NamedTotals {
    /// Zeros.
    #[must_use]
    pub fn new(plan: Arc<Plan>) -> NamedTotals {
        let matches = vec![MatchTotal::default(); plan.matches.len()];
        let members = vec![MemberTotal::default(); plan.members as usize];
        NamedTotals { plan, matches, members }
    }

    /// Adds what a view of the same plan has counted. To be called once for
    /// each view that no worker uses any more, or on a copy.
    pub fn add(&mut self, view: &View) {
        assert_eq!(self.plan.serial, view.plan.serial, "the view is of the totals' plan");
        for worker in view.all_counters() {
            for (index, total) in self.matches.iter_mut().enumerate() {
                let more = worker.match_totals(&view.plan, index);
                total.packets += more.packets;
                total.bytes += more.bytes;
                total.new_connections += more.new_connections;
            }
            let counted = worker.members.iter().zip(&worker.new_connections);
            for (total, (traffic, new_connections)) in self.members.iter_mut().zip(counted) {
                total.packets += traffic.packets.get();
                total.bytes += traffic.bytes.get();
                total.new_connections += new_connections.get();
            }
        }
    }

    /// The totals as the next plan begins with them. What it does not name is
    /// forgotten: a removed service's counters end.
    #[must_use]
    pub fn carried_to(&self, next: &Arc<Plan>) -> NamedTotals {
        let matches = by_name(match_names(&self.plan), &self.matches, |total, more| {
            total.packets += more.packets;
            total.bytes += more.bytes;
            total.new_connections += more.new_connections;
        });
        let members = by_name(member_names(&self.plan), &self.members, MemberTotal::add);
        NamedTotals {
            plan: Arc::clone(next),
            matches: carried(matches, match_names(next)),
            members: carried(members, member_names(next)),
        }
    }

    /// As the gRPC answer lists them: in order of their names.
    #[must_use]
    pub fn services(&self) -> Vec<ServiceCounters> {
        let mut lines: Vec<_> = match_names(&self.plan).zip(&self.matches).collect();
        lines.sort_unstable_by_key(|(name, _)| *name);
        let line = |((service, vip, protocol, ports), total): (MatchName<'_>, &MatchTotal)| {
            ServiceCounters {
                service: service.to_owned(),
                vip: vip.to_owned(),
                protocol: protocol.to_owned(),
                ports: ports.to_owned(),
                packets: total.packets,
                bytes: total.bytes,
                new_connections: total.new_connections,
            }
        };
        lines.into_iter().map(line).collect()
    }

    /// As the gRPC answer lists them: in order of their names. A backend of
    /// several groups whose services count together is one.
    #[must_use]
    pub fn backends(&self) -> Vec<BackendCounters> {
        let named = by_name(member_names(&self.plan), &self.members, MemberTotal::add);
        let mut lines: Vec<(MemberName<'_>, MemberTotal)> = named.into_iter().collect();
        lines.sort_unstable_by_key(|(name, _)| *name);
        let line = |((service, backend), total): (MemberName<'_>, MemberTotal)| BackendCounters {
            service: service.to_owned(),
            backend: backend.to_owned(),
            packets: total.packets,
            bytes: total.bytes,
            new_connections: total.new_connections,
        };
        lines.into_iter().map(line).collect()
    }
}

impl MemberTotal {
    fn add(&mut self, more: &MemberTotal) {
        self.packets += more.packets;
        self.bytes += more.bytes;
        self.new_connections += more.new_connections;
    }
}

/// Totals by name; what has the same name is added up.
fn by_name<N: Hash + Eq, T: Copy + Default>(
    names: impl Iterator<Item = N>,
    totals: &[T],
    add: impl Fn(&mut T, &T),
) -> HashMap<N, T> {
    let mut named = HashMap::with_capacity(totals.len());
    for (name, total) in names.zip(totals) {
        add(named.entry(name).or_default(), total);
    }
    named
}

/// A total for each name in order: the first that has it gets all.
fn carried<N: Hash + Eq, T: Default>(
    mut named: HashMap<N, T>,
    names: impl Iterator<Item = N>,
) -> Vec<T> {
    names.map(|name| named.remove(&name).unwrap_or_default()).collect()
}

/// The names of the plan's matches, by index.
fn match_names(plan: &Plan) -> impl Iterator<Item = MatchName<'_>> {
    plan.matches.iter().map(|entry| {
        let service = plan.service_of(&entry.matched);
        (service.name.as_str(), entry.target.as_str(), entry.protocol, entry.ports.as_str())
    })
}

/// The names of all members that are counted, by their index.
fn member_names(plan: &Plan) -> impl Iterator<Item = MemberName<'_>> {
    let has_members = |service: &&Service| !service.group.members().is_empty();
    let mut services: Vec<&Service> = plan.services().filter(has_members).collect();
    services.sort_by_key(|service| service.first_member);
    let together = |one: &&Service, next: &&Service| one.first_member == next.first_member;
    let places: Vec<(&Service, bool)> =
        services.chunk_by(together).map(|services| (services[0], services.len() == 1)).collect();
    places.into_iter().flat_map(move |(service, alone)| {
        service.group.members().iter().map(move |member| {
            let backend = plan.backend(member.backend).expect("members are backends");
            (if alone { service.name.as_str() } else { "" }, backend.name.as_str())
        })
    })
}

#[cfg(test)]
mod tests {
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
        let members = vec![member("b1"), member("b2")];
        proto::Group { name: "g".into(), members, ..Default::default() }
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

    /// Holds totals to what was counted by a number of plans: for VIPs, and for
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
        let mut totals = NamedTotals::new(Arc::clone(&view.plan));
        totals.add(&view);
        hold(&totals, 1, &BY_SERVICE);
    }

    #[test]
    fn services_of_a_group_count_its_backends_together_and_their_vips_apart() {
        let view = view(&mut Planner::default(), false);
        assert_eq!(view.plan.members, 2, "places for each backend of the group, once");
        count(&view);
        let mut totals = NamedTotals::new(Arc::clone(&view.plan));
        totals.add(&view);
        hold(&totals, 1, &[("", "b1", 8), ("", "b2", 17)]);
    }

    #[test]
    fn counters_in_another_order_are_the_same_by_name() {
        let mut planner = Planner::default();
        let first_members = |view: &View| {
            let of = |name| view.plan.services().find(|service| service.name == name);
            ["alone", "several"].map(|name| of(name).unwrap().first_member)
        };
        let first = view(&mut planner, true);
        count(&first);
        let mut totals = NamedTotals::new(Arc::clone(&first.plan));
        totals.add(&first);
        let mut reversed = message(true);
        reversed.services.reverse();
        let second = view_of(&mut planner, reversed);
        let mut totals = totals.carried_to(&second.plan);
        assert_eq!([first_members(&first), first_members(&second)], [[0, 2], [2, 0]]);
        count(&second);
        totals.add(&second);
        hold(&totals, 2, &BY_SERVICE);
    }

    #[test]
    fn a_backend_of_two_groups_is_one_line_and_keeps_its_count() {
        let mut planner = Planner::default();
        let members = vec![group().members[0].clone()];
        let other = proto::Group { name: "h".into(), members, ..Default::default() };
        let of_other =
            |name: &str, vip: &str| proto::Service { group: "h".into(), ..service(name, &[vip]) };
        let services = vec![
            service("a", &["203.0.113.1"]),
            service("b", &["203.0.113.2"]),
            of_other("c", "203.0.113.3"),
            of_other("d", "203.0.113.4"),
        ];
        let message = proto::Plan { groups: vec![group(), other], services, ..message(false) };
        let first = view_of(&mut planner, message.clone());
        for (place, packets) in [3, 4, 5].into_iter().enumerate() {
            (0..packets).for_each(|_| first.counters[0].members[place].count(100));
        }
        let mut totals = NamedTotals::new(Arc::clone(&first.plan));
        totals.add(&first);
        let second = view_of(&mut planner, message);
        let mut totals = totals.carried_to(&second.plan);
        second.counters[0].members[2].count(100);
        totals.add(&second);
        let lines = totals.backends().into_iter();
        let lines: Vec<_> = lines.map(|line| (line.service, line.backend, line.packets)).collect();
        let line = |backend: &str, packets| (String::new(), backend.to_owned(), packets);
        assert_eq!(lines, [line("b1", 3 + 5 + 1), line("b2", 4)]);
    }
}
