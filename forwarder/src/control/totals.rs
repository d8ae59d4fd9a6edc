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
        for (index, name) in match_names(&view.plan).enumerate() {
            let total = self.matches.entry(name).or_default();
            for worker in view.counters.iter() {
                let (packets, bytes) = worker.match_totals(&view.plan, index);
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
    plan.matches.iter().map(|entry| {
        let service = plan.service(entry.matched.service).expect("matches are of services");
        (service.name.clone(), entry.target.clone(), entry.protocol, entry.ports.clone())
    })
}

/// The names of the members of all services, by their index over all.
fn member_names(plan: &Plan) -> impl Iterator<Item = MemberName> {
    let mut services: Vec<_> = plan.services().collect();
    services.sort_by_key(|service| service.first_member);
    services.into_iter().flat_map(|service| {
        service.group.members().iter().map(|member| {
            let backend = plan.backend(member.backend).expect("members are backends");
            (service.name.clone(), backend.name.clone())
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

    fn view(planner: &mut Planner) -> View {
        let backend = |name: &str, address: &str| proto::Backend {
            name: name.into(),
            address: address.into(),
        };
        let message = proto::Plan {
            generation: 1,
            machine: Some(proto::Machine {
                name: "lb-1".into(),
                addresses: vec!["10.0.0.1".into()],
                ..Default::default()
            }),
            backends: vec![backend("b1", "10.1.0.1"), backend("b2", "10.1.0.2")],
            groups: vec![group()],
            services: vec![
                service("alone", &["203.0.113.1"]),
                service("several", &["203.0.113.2", "203.0.113.3"]),
            ],
            ..Default::default()
        };
        let plan = Arc::new(planner.plan(message).unwrap());
        View::new(plan, Egress::default(), 1)
    }

    /// Some packets for each VIP, to some of its backends.
    fn count(view: &View) {
        for (host, member, packets) in [(1, 0, 3), (1, 1, 4), (2, 0, 5), (2, 1, 6), (3, 1, 7)] {
            let (family, protocol) = (Family::V4, Protocol::TCP);
            let target = Target { address: 0xcb00_7100 + host, family, protocol, port: 80 };
            let Found::Service(matched) = view.plan.vips.find(&target) else { panic!("{host}") };
            (0..packets).for_each(|_| view.counters[0].count(&matched, member, 100));
        }
    }

    /// Holds totals to what was counted by so many plans.
    fn hold(totals: &NamedTotals, plans: u64) {
        let vips: Vec<_> = totals
            .services()
            .into_iter()
            .map(|line| (line.vip, line.packets, line.bytes))
            .collect();
        let expected = [("203.0.113.1", 7), ("203.0.113.2", 11), ("203.0.113.3", 7)];
        let line =
            |(vip, packets): (&str, u64)| (vip.to_owned(), packets * plans, packets * plans * 100);
        assert_eq!(vips, expected.map(line));
        let members: Vec<u64> = totals.backends().iter().map(|line| line.packets).collect();
        assert_eq!(members, [3, 4, 5, 13].map(|packets| packets * plans));
    }

    #[test]
    fn a_vip_gets_what_was_counted_for_it_or_for_its_services_members() {
        let view = view(&mut Planner::default());
        count(&view);
        let mut totals = NamedTotals::default();
        totals.add(&view);
        hold(&totals, 1);
    }

    #[test]
    fn counters_in_another_order_are_the_same_by_name() {
        let (mut planner, mut totals) = (Planner::default(), NamedTotals::default());
        let first_members = |view: &View| -> Vec<u32> {
            view.plan.services().map(|service| service.first_member).collect()
        };
        let first = view(&mut planner);
        count(&first);
        totals.add(&first);
        planner.saw_traffic(first.packets_by_service());
        let second = view(&mut planner);
        assert_eq!([first_members(&first), first_members(&second)], [[0, 2], [2, 0]]);
        count(&second);
        totals.add(&second);
        hold(&totals, 2);
    }
}
