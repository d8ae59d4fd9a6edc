//! Turns the kernel's next hops into the datapath's egress, and reports problems: unreachable
//! backends, and packets that will not fit.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use datapath::encapsulate::{IPV6_BYTES_MIN, overhead_bytes};
use datapath::reply::ReturnPaths;
use datapath::verdict::DeviceIndex;
use datapath::{Egress, FlowHash, NextHop};
use plan::{Admission, BackendId, Plan, Service};
use wire::{Family, MacAddress};

use crate::netlink::next_hops::{self, Snapshot};
use crate::proto::{UnresolvedBackend, UnresolvedPeer};

/// Next hops of one backend after weights are spelt out; the datapath spreads
/// evenly over them.
const NEXT_HOPS_MAX: usize = 64;

/// What clients send at most: the Internet's MTU.
const CLIENT_MTU: u32 = 1500;

/// The egress of a plan as the kernel has it now.
#[must_use]
pub fn egress(plan: &Plan, hash: &FlowHash, snapshot: &Snapshot) -> Egress {
    Egress::new(plan, hash, |address| match snapshot.backends.get(&address) {
        Some(Ok(hops)) => spread(hops),
        _ => Vec::new(),
    })
}

/// Stand for all addresses that the default route leads to: of networks that
/// no machine has a narrower route to (reserved by RFC 1112, RFC 9637).
const ANYBODY: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(240, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 1)),
];

/// Whose next hops answers may take; none where no packet comes in a tunnel.
#[must_use]
pub fn routers(plan: &Plan) -> Vec<IpAddr> {
    match plan.ingress.is_open() {
        true => plan.routers.iter().copied().chain(ANYBODY).collect(),
        false => Vec::new(),
    }
}

/// The ways of answers to packets that came in a tunnel: to the first router
/// of the address's family that is reached; a router forwards both, so else to
/// any. Where there is none they go where the packet came from.
#[must_use]
pub fn return_paths(plan: &Plan, snapshot: &Snapshot) -> ReturnPaths {
    let return_path = |is_v4: bool| {
        let routers = routers(plan);
        let (same, other): (Vec<IpAddr>, Vec<IpAddr>) =
            routers.into_iter().partition(|router| router.is_ipv4() == is_v4);
        let hops = |router: &IpAddr| snapshot.backends.get(router)?.as_ref().ok()?.first();
        same.iter().chain(&other).find_map(hops).map(next_hop)
    };
    ReturnPaths { all: None, v4: return_path(true), v6: return_path(false) }
}

/// A warning with its remedies, where answers to packets that came in a tunnel
/// can only go back to the machine that sent the tunnel. A router that has not
/// answered ARP yet may still do so.
#[must_use]
pub fn way_back_warning(plan: &Plan, snapshot: &Snapshot) -> Option<String> {
    let routers = routers(plan);
    let lost = |router: &IpAddr| {
        matches!(snapshot.backends.get(router), Some(Err(why))
            if !matches!(why, next_hops::Unresolved::Neighbour { .. }))
    };
    (!routers.is_empty() && routers.iter().all(lost)).then(|| {
        "no way back is known for answers and trace reports on packets that peers or encapsulators \
         tunnel here, so they go back there: give this machine a default route by one of the \
         forwarder's interfaces, or name routers on one of them as BGP neighbors"
            .to_owned()
    })
}

/// Active backends without a next hop that serves their services.
#[must_use]
pub fn unresolved(plan: &Plan, snapshot: &Snapshot) -> Vec<UnresolvedBackend> {
    let active = active_backends(plan);
    let addressed = addressed_backends(plan);
    let backends = plan.backends().filter(|backend| active.contains(&backend.id));
    backends
        .filter_map(|backend| {
            let why = match snapshot.backends.get(&backend.address) {
                None => "not looked up yet".to_owned(),
                Some(Err(why)) => why.to_string(),
                Some(Ok(hops)) if hops.iter().any(|hop| hop.is_backend) => return None,
                Some(Ok(_)) if !addressed.contains(&backend.id) => return None,
                Some(Ok(_)) => "its route has a gateway, and `encap: l2` of a service of its \
                                reaches backends in the same segment only: take a tunnel, or \
                                give the backend an address on the link"
                    .to_owned(),
            };
            Some(UnresolvedBackend {
                name: backend.name.clone(),
                address: backend.address.to_string(),
                why,
            })
        })
        .collect()
}

/// Peers without a next hop to any of their addresses, by each.
#[must_use]
pub fn unresolved_peers(plan: &Plan, snapshot: &Snapshot) -> Vec<UnresolvedPeer> {
    let why = |address: &IpAddr| match snapshot.backends.get(address)? {
        Ok(_) => None,
        Err(why) => Some(why.to_string()),
    };
    let unreached =
        |peer: &&plan::Peer| peer.addresses.iter().all(|address| why(address).is_some());
    let unresolved = |peer: &plan::Peer| -> Vec<UnresolvedPeer> {
        let by_address = |address: &IpAddr| UnresolvedPeer {
            name: peer.name.clone(),
            address: address.to_string(),
            why: why(address).unwrap_or_default(),
        };
        peer.addresses.iter().map(by_address).collect()
    };
    plan.peers.iter().filter(unreached).flat_map(unresolved).collect()
}

/// One warning for each device whose MTU is too small for what may come in, with
/// both remedies.
#[must_use]
pub fn mtu_warnings(plan: &Plan, snapshot: &Snapshot) -> Vec<String> {
    let Some(ingress) = snapshot.links.values().map(|link| link.mtu).max() else {
        return Vec::new();
    };
    // Who has raised the fabric's MTU has done what this warning advises:
    // what clients send is not longer for it.
    let ingress = ingress.min(CLIENT_MTU);
    let narrow: BTreeSet<(bool, u32)> = plan
        .backends()
        .filter_map(|backend| {
            let hops = snapshot.backends.get(&backend.address)?.as_ref().ok()?;
            Some((backend.address.is_ipv4(), path_mtu(plan, hops.iter().map(|hop| hop.mtu).min()?)))
        })
        .collect();
    let overhead = |v4| {
        let family = if v4 { Family::V4 } else { Family::V6 };
        let of = |service: &Service| u32::from(overhead_bytes(service.tunnel, family));
        plan.services().map(of).max().unwrap_or(0)
    };
    narrow
        .into_iter()
        .filter(|(v4, mtu)| *mtu < ingress + overhead(*v4))
        .map(|(v4, mtu)| mtu_warning(v4, mtu, ingress, overhead(v4)))
        .collect()
}

fn mtu_warning(v4: bool, mtu: u32, ingress: u32, overhead: u32) -> String {
    let (family, fits) = (if v4 { "IPv4" } else { "IPv6" }, mtu.saturating_sub(overhead));
    let mss = fits.saturating_sub(60);
    format!(
        "packets longer than {fits} bytes do not fit the path to the {family} backends (MTU {mtu}, {overhead} of them \
         for the outer headers): they cost an answer or a second packet; raise the fabric's MTU to {} or more, or have \
         the backends announce smaller segments (`ip route change ... advmss {mss}` on their routes to clients)",
        ingress + overhead
    )
}

/// What the path by a link, or a route, of that MTU carries.
fn path_mtu(plan: &Plan, link: u32) -> u32 {
    plan.tunnel.mtu_within(link.min(u32::from(u16::MAX)) as u16).into()
}

/// A path that carries too little for a service: IPv6 has no smaller packets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Narrow {
    /// The service, which has an IPv6 VIP.
    pub service: String,
    /// Of the backend, for people.
    backend: String,
    by: NarrowBy,
    mtu: u32,
    /// What it would have to be.
    wanted: u32,
}

/// What makes a path narrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NarrowBy {
    /// The config.
    TunnelMtu,
    /// The link or the route of a device, by its position among those of the plan.
    Device(u32),
}

impl Narrow {
    /// What is wrong, and the cure; `name` is the interface's of a device.
    #[must_use]
    pub fn text(&self, name: impl Fn(usize) -> String) -> String {
        let Narrow { service, backend, by, mtu, wanted } = self;
        let (way, cure) = match by {
            NarrowBy::TunnelMtu => {
                ("tunnel.mtu".to_owned(), format!("let tunnel.mtu be {wanted} or more"))
            }
            NarrowBy::Device(position) => {
                let device = name(*position as usize);
                let cure = format!("give {device} (and its routes) an MTU of {wanted} or more");
                (device, cure)
            }
        };
        format!(
            "services[{service}]: has IPv6 VIPs, whose packets may have 1280 bytes, but the path to \
             backend {backend} by {way} carries {mtu} with the outer headers: {cure}, or serve no \
             IPv6 VIPs over it"
        )
    }
}

/// For each service with IPv6 VIPs the narrowest path to a backend, if it is too narrow.
#[must_use]
pub fn narrow_for_ipv6(plan: &Plan, snapshot: &Snapshot) -> Vec<Narrow> {
    plan.ipv6_services().filter_map(|service| narrowest(plan, service, snapshot)).collect()
}

fn narrowest(plan: &Plan, service: &Service, snapshot: &Snapshot) -> Option<Narrow> {
    let backends = service.group.members().iter().filter_map(|member| plan.backend(member.backend));
    let narrow = backends.filter_map(|backend| {
        let overhead = overhead_bytes(service.tunnel, Family::of(backend.address));
        let wanted = u32::from(IPV6_BYTES_MIN + overhead);
        let configured = plan.tunnel.mtu.map(|mtu| (u32::from(mtu), NarrowBy::TunnelMtu));
        let hops = snapshot.backends.get(&backend.address).and_then(|hops| hops.as_ref().ok());
        let hops = hops.into_iter().flatten().map(|hop| (hop.mtu, NarrowBy::Device(hop.device)));
        let (mtu, by) = configured.into_iter().chain(hops).min()?;
        let (service, backend) = (service.name.clone(), backend.name.clone());
        (mtu < wanted).then_some(Narrow { service, backend, by, mtu, wanted })
    });
    narrow.min_by_key(|narrow| narrow.mtu)
}

/// Those that frames are addressed to, of services without a tunnel.
fn addressed_backends(plan: &Plan) -> BTreeSet<BackendId> {
    let services = plan.services().filter(|service| service.tunnel.encap.is_none());
    services.flat_map(|service| service.group.members()).map(|member| member.backend).collect()
}

fn active_backends(plan: &Plan) -> BTreeSet<BackendId> {
    let members = plan.groups.iter().flat_map(|group| group.members());
    members
        .filter(|member| member.admission == Admission::All)
        .map(|member| member.backend)
        .collect()
}

/// Weighted next hops as a list of equal ones: 2 to 1 becomes a, a, b.
fn spread(hops: &[next_hops::NextHop]) -> Vec<NextHop> {
    let divisor =
        hops.iter().fold(0, |divisor, hop| greatest_common_divisor(divisor, hop.weight)).max(1);
    let total: usize = hops.iter().map(|hop| usize::from(hop.weight / divisor)).sum();
    let copies = |weight: u16| match total <= NEXT_HOPS_MAX {
        true => usize::from(weight / divisor),
        // Rounded shares of what fits; no next hop is left out.
        false => (usize::from(weight / divisor) * NEXT_HOPS_MAX / total).max(1),
    };
    hops.iter().flat_map(|hop| std::iter::repeat_n(next_hop(hop), copies(hop.weight))).collect()
}

fn greatest_common_divisor(a: u16, b: u16) -> u16 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

fn next_hop(hop: &next_hops::NextHop) -> NextHop {
    NextHop {
        device: DeviceIndex(hop.device as u8),
        source: MacAddress(hop.source),
        destination: MacAddress(hop.destination),
        mtu: hop.mtu.min(u32::from(u16::MAX)) as u16,
        is_destination: hop.is_backend,
    }
}

#[cfg(test)]
mod tests {
    use plan::Planner;
    use serde_json::json;

    use super::*;

    fn hop(device: u32, weight: u16) -> next_hops::NextHop {
        next_hops::NextHop {
            device,
            source: [0; 6],
            destination: [0; 6],
            mtu: 1500,
            weight,
            is_backend: true,
        }
    }

    fn devices(hops: &[next_hops::NextHop]) -> Vec<u8> {
        spread(hops).iter().map(|hop| hop.device.0).collect()
    }

    #[test]
    fn weights_become_repetitions_in_lowest_terms() {
        assert_eq!(devices(&[hop(0, 1)]), [0]);
        assert_eq!(devices(&[hop(0, 20), hop(1, 10)]), [0, 0, 1]);
    }

    #[test]
    fn large_weights_are_bounded_and_leave_no_next_hop_out() {
        let spread = devices(&[hop(0, 256), hop(1, 1)]);
        assert!(spread.len() <= NEXT_HOPS_MAX + 1 && spread.contains(&1), "{spread:?}");
    }

    fn tunnelled_to(routers: &[&str]) -> Plan {
        let message = serde_json::json!({
            "generation": "1",
            "cluster": {"name": "test", "keyId": "derived"},
            "machine": {"name": "lb-1", "addresses": ["10.0.0.1"], "routers": routers},
            "peers": [{"name": "lb-2", "addresses": ["10.0.0.2"], "healthy": true}],
        });
        Planner::default().plan(serde_json::from_value(message).unwrap()).unwrap()
    }

    #[test]
    fn answers_leave_by_the_first_router_that_is_reached() {
        let plan = tunnelled_to(&["10.0.0.7", "2001:db8::8", "10.0.0.9"]);
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let waiting = next_hops::Unresolved::Neighbour {
            address: address("10.0.0.7"),
            interface: "eth0".into(),
            state: "incomplete",
        };
        let mut snapshot = Snapshot::default();
        for router in routers(&plan) {
            snapshot.backends.insert(router, Err(next_hops::Unresolved::NoRoute));
        }
        let devices = |snapshot: &Snapshot| {
            let ReturnPaths { all: None, v4, v6 } = return_paths(&plan, snapshot) else { panic!() };
            [v4, v6].map(|hop| hop.map(|hop| hop.device.0))
        };
        assert_eq!(devices(&snapshot), [None, None]);
        assert!(way_back_warning(&plan, &snapshot).unwrap().contains("default route"));
        snapshot.backends.insert(address("10.0.0.7"), Err(waiting));
        assert_eq!(way_back_warning(&plan, &snapshot), None, "it may still answer");
        snapshot.backends.insert(ANYBODY[0], Ok(vec![hop(5, 1)]));
        assert_eq!(devices(&snapshot), [Some(5), Some(5)], "a router forwards both families");
        snapshot.backends.insert(address("10.0.0.9"), Ok(vec![hop(4, 1)]));
        snapshot.backends.insert(address("2001:db8::8"), Ok(vec![hop(6, 1)]));
        assert_eq!(devices(&snapshot), [Some(4), Some(6)]);
        assert_eq!(way_back_warning(&plan, &snapshot), None);
    }

    #[test]
    fn where_nothing_comes_in_a_tunnel_no_router_is_asked_for() {
        let message = serde_json::json!({
            "generation": "1",
            "cluster": {"name": "test", "keyId": "derived"},
            "machine": {"name": "lb-1", "addresses": ["10.0.0.1"], "routers": ["10.0.0.254"]},
        });
        let message = serde_json::from_value(message).unwrap();
        let plan = Planner::default().plan(message).unwrap();
        assert_eq!(routers(&plan), Vec::<IpAddr>::new());
        assert_eq!(way_back_warning(&plan, &Snapshot::default()), None);
    }

    #[test]
    fn a_path_too_narrow_for_ipv6_is_named_with_service_and_cure() {
        let group = |name: &str| {
            let member = json!({"backend": name, "weight": 1, "state": "BACKEND_STATE_ACTIVE"});
            json!({"name": name, "members": [member]})
        };
        let service = |name: &str, vip: &str, encap: &str, group: &str| json!({"name": name, "vips": [{"address": vip}], "encap": encap, "group": group});
        let mut message = json!({
            "generation": "1",
            "cluster": {"name": "test", "keyId": "derived"},
            "machine": {"name": "lb-1", "addresses": ["10.0.0.1"]},
            "backends": [{"name": "a", "address": "10.1.0.1"}, {"name": "b", "address": "10.1.0.2"}],
            "groups": [group("a"), group("b")],
            "services": [
                service("v4", "203.0.113.1", "ENCAP_GRE", "a"),
                service("v6", "2001:db8::1", "ENCAP_GRE", "a"),
                service("wide", "2001:db8::2", "ENCAP_IPIP", "b"),
            ],
        });
        let plan = |message: &serde_json::Value| {
            Planner::default().plan(serde_json::from_value(message.clone()).unwrap()).unwrap()
        };
        let wide = plan(&message);
        message["tunnel"] = json!({"mtu": 1303});
        let configured = plan(&message);
        let narrow = |plan: &Plan, mtu_a, mtu_b| {
            let mut snapshot = Snapshot::default();
            let hop = |mtu| next_hops::NextHop { mtu, ..hop(1, 1) };
            snapshot.backends.insert("10.1.0.1".parse().unwrap(), Ok(vec![hop(1500), hop(mtu_a)]));
            snapshot.backends.insert("10.1.0.2".parse().unwrap(), Ok(vec![hop(mtu_b)]));
            narrow_for_ipv6(plan, &snapshot)
        };
        assert_eq!(narrow(&wide, 1304, 1300), []);
        let texts = |found: Vec<Narrow>| -> Vec<String> {
            found.iter().map(|narrow| narrow.text(|position| format!("eth{position}"))).collect()
        };
        let by_config = texts(narrow(&configured, 1500, 1500));
        assert_eq!(by_config.len(), 1, "IPIP leaves enough: {by_config:?}");
        assert!(by_config[0].contains("let tunnel.mtu be 1304 or more"), "{by_config:?}");
        let texts = texts(narrow(&wide, 1303, 1299));
        assert!(
            texts[0].starts_with("services[v6]:") && texts[0].contains("eth1 carries 1303"),
            "{texts:?}"
        );
        assert!(
            texts[1].starts_with("services[wide]:") && texts[1].contains("MTU of 1300"),
            "{texts:?}"
        );
        assert_eq!(texts.len(), 2);
    }

    #[test]
    fn without_a_tunnel_a_backend_behind_a_gateway_is_not_reached() {
        let service = |name: &str, vip: &str, encap: &str| json!({"name": name, "group": name, "encap": encap, "vips": [{"address": vip}]});
        let group = |name: &str, backend: &str| {
            let member = json!({"backend": backend, "weight": 1, "state": "BACKEND_STATE_ACTIVE"});
            json!({"name": name, "members": [member]})
        };
        let message = json!({
            "generation": "1",
            "cluster": {"name": "test", "keyId": "derived"},
            "machine": {"name": "lb", "addresses": ["10.0.0.1"]},
            "backends": [
                {"name": "near", "address": "10.1.0.1"},
                {"name": "far", "address": "10.1.0.2"},
                {"name": "far-in-gre", "address": "10.1.0.3"},
            ],
            "groups": [group("a", "near"), group("b", "far"), group("c", "far-in-gre")],
            "services": [
                service("a", "203.0.113.1", "ENCAP_L2"),
                service("b", "203.0.113.2", "ENCAP_L2"),
                service("c", "203.0.113.3", "ENCAP_GRE"),
            ],
        });
        let plan = Planner::default().plan(serde_json::from_value(message).unwrap()).unwrap();
        let mut snapshot = Snapshot::default();
        for (address, is_backend) in [(1, true), (2, false), (3, false)] {
            let hops = vec![next_hops::NextHop { is_backend, ..hop(0, 1) }];
            snapshot.backends.insert(Ipv4Addr::new(10, 1, 0, address).into(), Ok(hops));
        }
        let unresolved = unresolved(&plan, &snapshot);
        assert_eq!(unresolved.len(), 1, "{unresolved:?}");
        assert_eq!(unresolved[0].name, "far");
        assert!(unresolved[0].why.contains("take a tunnel"), "{unresolved:?}");
    }

    #[test]
    fn a_narrow_way_names_both_remedies() {
        let warning = mtu_warning(true, 1500, 1500, 24);
        assert!(
            warning.contains("1476") && warning.contains("1524") && warning.contains("advmss 1416"),
            "{warning}"
        );
    }
}
