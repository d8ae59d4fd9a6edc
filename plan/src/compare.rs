//! Which service gets a flow's packets under a later plan, as far as that depends only on VIPs.
//!
//! A connection table's entry names its service, not its VIP. So the question is asked for
//! services: where do the packets of a service's VIPs go? Each answer is given once. Looked up
//! are the addresses and ports at which something changes: the ends, in either plan, of every
//! match that only one of them has.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use wire::ip::{self, AddressBits};
use wire::{Family, Protocol, Target};

use crate::ids::ServiceId;
use crate::matching::Found;
use crate::plan::{Match, Plan};
use crate::proto;
use crate::text::parse_prefix;

/// Prefixes of a group that are looked up, those first that only one plan has.
const PREFIXES_COMPARED: usize = 64;

/// Stands for protocols without ports.
const PORTLESS: Protocol = Protocol(253);

/// Where each service's packets go by a later plan.
#[derive(Debug)]
pub struct NextServices {
    by_service: Box<[ByProtocol]>,
}

/// Where a service's packets go: those of other protocols, and those of TCP.
type ByProtocol = [BTreeSet<Option<ServiceId>>; 2];

impl NextServices {
    /// From one plan to another of the same [`crate::Planner`], whose ids are
    /// the same.
    #[must_use]
    pub fn new(before: &Plan, after: &Plan) -> NextServices {
        let mut by_service = vec![ByProtocol::default(); before.service_ids()].into_boxed_slice();
        let groups = PrefixGroups::new(before, after);
        let (old, new) = (groups.keys(before), groups.keys(after));
        for (entry, key) in before.matches.iter().zip(&old.in_order) {
            if new.all.contains(key) {
                let service = entry.matched.service;
                let [others, tcp] = &mut by_service[service.index()];
                if entry.protocol != "tcp" {
                    others.insert(Some(service));
                }
                if entry.protocol != "udp" {
                    tcp.insert(Some(service));
                }
            }
        }
        let mut look_up = |plan: &Plan, entry: &Match| {
            for target in groups.targets(plan, entry) {
                let Found::Service(matched) = before.vips.find(&target) else { continue };
                let next = match after.vips.find(&target) {
                    Found::Service(next) => Some(next.service),
                    Found::NoService { .. } | Found::NotVip => None,
                };
                let is_tcp = target.protocol == Protocol::TCP;
                by_service[matched.service.index()][usize::from(is_tcp)].insert(next);
            }
        };
        for (plan, own, other) in [(before, &old, &new), (after, &new, &old)] {
            for (entry, key) in plan.matches.iter().zip(&own.in_order) {
                if !other.all.contains(key) {
                    look_up(plan, entry);
                }
            }
        }
        NextServices { by_service }
    }

    /// The services that have the packets of this one's VIPs, of TCP or of
    /// other protocols; where that is not known, of both, and some twice. None:
    /// packets that no service has.
    pub fn of(
        &self,
        service: ServiceId,
        is_tcp: Option<bool>,
    ) -> impl Iterator<Item = Option<ServiceId>> {
        let protocols =
            self.by_service.get(service.index()).into_iter().flatten().zip([false, true]);
        let wanted = protocols.filter(move |(_, tcp)| is_tcp.is_none_or(|is_tcp| is_tcp == *tcp));
        wanted.flat_map(|(services, _)| services).copied()
    }
}

/// What matches of both plans are told apart by.
struct Keys {
    in_order: Vec<String>,
    all: HashSet<String>,
}

/// The prefix groups of both plans by name.
struct PrefixGroups<'p> {
    /// Those first that only one of the plans has.
    prefixes: HashMap<&'p str, Vec<&'p str>>,
    changed: HashSet<&'p str>,
}

impl<'p> PrefixGroups<'p> {
    fn new(before: &'p Plan, after: &'p Plan) -> PrefixGroups<'p> {
        let by_name = |plan: &'p Plan| -> HashMap<&'p str, BTreeSet<&'p str>> {
            let groups = plan.message.prefix_groups.iter();
            let prefixes =
                |group: &'p proto::PrefixGroup| group.prefixes.iter().map(String::as_str).collect();
            groups.map(|group| (group.name.as_str(), prefixes(group))).collect()
        };
        let (old, new) = (by_name(before), by_name(after));
        let none = BTreeSet::new();
        let mut groups = PrefixGroups { prefixes: HashMap::new(), changed: HashSet::new() };
        for name in old.keys().chain(new.keys()) {
            let (old, new) = (old.get(name).unwrap_or(&none), new.get(name).unwrap_or(&none));
            if old != new {
                groups.changed.insert(name);
            }
            let all = old.symmetric_difference(new).chain(old.intersection(new));
            groups.prefixes.insert(name, all.take(PREFIXES_COMPARED).copied().collect());
        }
        groups
    }

    fn keys(&self, plan: &Plan) -> Keys {
        let key = |entry: &Match| {
            let service = plan.service_of(&entry.matched);
            let bits = match &vip_of(plan, entry).target {
                // A match in a group that changes is never the same as before.
                Some(proto::vip::Target::PrefixSuffix(target))
                    if self.changed.contains(target.prefix_group.as_str()) =>
                {
                    format!("{} of {}", target.suffix_bits, plan.serial)
                }
                Some(proto::vip::Target::PrefixSuffix(target)) => target.suffix_bits.to_string(),
                _ => String::new(),
            };
            let Match { target, protocol, ports, .. } = entry;
            format!("{}\n{target}\n{bits}\n{protocol}\n{ports}", service.name)
        };
        let in_order: Vec<String> = plan.matches.iter().map(key).collect();
        Keys { all: in_order.iter().cloned().collect(), in_order }
    }

    /// What is looked up for a match: its addresses, with the ports at both
    /// ends and beside them.
    fn targets(&self, plan: &Plan, entry: &Match) -> Vec<Target> {
        let protocols: &[Protocol] = match entry.protocol {
            "tcp" => &[Protocol::TCP],
            "udp" => &[Protocol::UDP],
            _ => &[Protocol::TCP, Protocol::UDP, PORTLESS],
        };
        let ports = ends(&entry.ports);
        let mut targets = Vec::new();
        for (family, address) in self.addresses(vip_of(plan, entry)) {
            for protocol in protocols.iter().copied() {
                let target = |port| Target { address, family, protocol, port };
                match protocol == PORTLESS {
                    true => targets.push(target(0)),
                    false => targets.extend(ports.iter().map(|port| target(*port))),
                }
            }
        }
        targets
    }

    fn addresses(&self, vip: &proto::Vip) -> Vec<(Family, AddressBits)> {
        match &vip.target {
            Some(proto::vip::Target::Address(text)) => {
                let address: Option<IpAddr> = text.parse().ok();
                address
                    .map(|address| (Family::of(address), ip::address_bits(address)))
                    .into_iter()
                    .collect()
            }
            Some(proto::vip::Target::PrefixSuffix(target)) => {
                let Ok(suffix) = target.suffix.parse::<IpAddr>() else { return Vec::new() };
                let prefixes = self.prefixes.get(target.prefix_group.as_str());
                let networks = prefixes.into_iter().flatten().filter_map(|text| parse_prefix(text));
                let of_family =
                    networks.filter(|(network, _)| network.is_ipv4() == suffix.is_ipv4());
                of_family
                    .map(|(network, _)| {
                        let bits = ip::address_bits(network) | ip::address_bits(suffix);
                        (Family::of(network), bits)
                    })
                    .collect()
            }
            None => Vec::new(),
        }
    }
}

fn vip_of<'p>(plan: &'p Plan, entry: &Match) -> &'p proto::Vip {
    &plan.message.services[usize::from(entry.matched.listed)].vips[entry.vip as usize]
}

/// Both ends of a range of ports, as a match writes it, and the ports beside.
fn ends(ports: &str) -> Vec<u16> {
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let number = |text: &str, all: u16| text.parse().unwrap_or(all);
    let (first, last): (u16, u16) = (number(first, 1), number(last, u16::MAX));
    let beside = [first.saturating_sub(1).max(1), first, last, last.saturating_add(1)];
    BTreeSet::from(beside).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Planner;

    /// A service: its name, and VIPs as `203.0.113.10 tcp 80-90`, ` group:0.0.0.10`.
    fn plan(planner: &mut Planner, prefixes: &[&str], services: &[(&str, &[&str])]) -> Plan {
        let service = |(name, vips): &(&str, &[&str])| proto::Service {
            name: (*name).to_owned(),
            vips: vips.iter().map(|text| vip(text)).collect(),
            ..Default::default()
        };
        let message = proto::Plan {
            generation: 1,
            machine: Some(proto::Machine {
                name: "lb-1".into(),
                addresses: vec!["10.0.0.1".into()],
                ..Default::default()
            }),
            prefix_groups: vec![proto::PrefixGroup {
                name: "group".into(),
                prefixes: prefixes.iter().map(|text| (*text).to_owned()).collect(),
            }],
            services: services.iter().map(service).collect(),
            ..Default::default()
        };
        planner.plan(message).unwrap()
    }

    fn vip(text: &str) -> proto::Vip {
        let mut words = text.split_whitespace();
        let target = match words.next().unwrap().split_once(':') {
            Some((group, suffix)) => proto::vip::Target::PrefixSuffix(proto::PrefixSuffix {
                prefix_group: group.to_owned(),
                suffix: suffix.to_owned(),
                suffix_bits: 0,
            }),
            None => proto::vip::Target::Address(text.split_whitespace().next().unwrap().to_owned()),
        };
        let protocol = match words.next() {
            Some("tcp") => proto::Protocol::Tcp,
            Some("udp") => proto::Protocol::Udp,
            _ => proto::Protocol::Any,
        };
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            proto::PortRange { first: first.parse().unwrap(), last: last.parse().unwrap() }
        };
        let mut vip = proto::Vip {
            target: Some(target),
            ports: words.map(range).collect(),
            ..Default::default()
        };
        vip.set_protocol(protocol);
        vip
    }

    /// Names of the services that have packets of `web` afterwards; `-`: none.
    fn after(before: &[(&str, &[&str])], services: &[(&str, &[&str])]) -> String {
        let mut planner = Planner::default();
        let prefixes = ["198.51.100.0/24"];
        let before = plan(&mut planner, &prefixes, before);
        let after = plan(&mut planner, &prefixes, services);
        names(&before, &after)
    }

    fn names(before: &Plan, after: &Plan) -> String {
        let web = before.services().find(|service| service.name == "web").unwrap();
        let next = NextServices::new(before, after);
        let name = |id: Option<ServiceId>| {
            id.map_or("-", |id| after.service(id).unwrap().name.as_str()).to_owned()
        };
        let names: BTreeSet<String> = next.of(web.id, None).map(name).collect();
        names.into_iter().collect::<Vec<_>>().join(" ")
    }

    const WEB: &[(&str, &[&str])] = &[("web", &["203.0.113.10 tcp 80"])];

    #[test]
    fn a_service_that_keeps_its_vips_keeps_their_packets() {
        assert_eq!(after(WEB, WEB), "web");
        let more: &[(&str, &[&str])] = &[("web", &["203.0.113.10 tcp 80 443", "203.0.113.11 tcp"])];
        assert_eq!(after(WEB, more), "web");
    }

    #[test]
    fn a_service_of_another_name_has_all_packets_of_the_former() {
        assert_eq!(after(WEB, &[("shop", &["203.0.113.10 tcp 80"])]), "shop");
        assert_eq!(after(WEB, &[("shop", &["203.0.113.10"])]), "shop");
    }

    #[test]
    fn packets_of_a_vip_that_no_service_has_go_nowhere() {
        assert_eq!(after(WEB, &[]), "-");
        assert_eq!(after(WEB, &[("web", &["203.0.113.10 tcp 443"])]), "-");
        let two: &[(&str, &[&str])] = &[("web", &["203.0.113.10 tcp 80", "203.0.113.11 tcp 80"])];
        assert_eq!(after(two, WEB), "- web");
    }

    #[test]
    fn a_more_specific_vip_takes_a_part() {
        let all: &[(&str, &[&str])] = &[("web", &["203.0.113.10 tcp"])];
        let both = |vip| after(all, &[("web", &["203.0.113.10 tcp"]), ("api", &[vip])]);
        assert_eq!(both("203.0.113.10 tcp 443"), "api web");
        assert_eq!(both("203.0.113.11 tcp 443"), "web");
        assert_eq!(both("203.0.113.10 udp 443"), "web");
    }

    #[test]
    fn the_protocols_of_a_vip_go_different_ways() {
        let mut planner = Planner::default();
        let before = plan(&mut planner, &[], &[("web", &["203.0.113.10"])]);
        let after = plan(&mut planner, &[], &[("web", &["203.0.113.10 tcp"])]);
        let id = before.services().next().unwrap().id;
        let next = NextServices::new(&before, &after);
        assert!(next.of(id, Some(true)).eq([Some(id)]));
        assert!(next.of(id, Some(false)).eq([None]));
        assert!(next.of(id, None).eq([None, Some(id)]));
    }

    #[test]
    fn a_gap_in_a_range_of_ports_is_seen() {
        let range: &[(&str, &[&str])] = &[("web", &["203.0.113.10 tcp 8000-8100"])];
        assert_eq!(after(range, &[("web", &["203.0.113.10 tcp 8000-8040 8060-8100"])]), "- web");
        assert_eq!(after(range, &[("web", &["203.0.113.10 tcp 8000-8050 8051-8100"])]), "web");
        assert_eq!(after(range, &[("web", &["203.0.113.10 tcp 7000-9000"])]), "web");
        assert_eq!(after(range, &[("web", &["203.0.113.10 tcp 8001-8100"])]), "- web");
    }

    #[test]
    fn a_prefix_that_leaves_its_group_is_seen() {
        let web: &[(&str, &[&str])] = &[("web", &["group:0.0.0.10"])];
        let mut planner = Planner::default();
        let both = plan(&mut planner, &["198.51.100.0/24", "203.0.113.0/24"], web);
        let one = plan(&mut planner, &["203.0.113.0/24"], web);
        let same = plan(&mut planner, &["203.0.113.0/24"], web);
        assert_eq!(names(&both, &one), "- web");
        assert_eq!(names(&one, &both), "web");
        assert_eq!(names(&one, &same), "web");
    }
}
