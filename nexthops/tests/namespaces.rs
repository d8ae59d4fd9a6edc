//! Next hops as the kernel resolves them, over veth between namespaces.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nexthops::{Mac, NextHop, NextHops, Snapshot, Unresolved, Wanted};
use testnet::{Namespace, link, root_or_skip};

/// A load balancer with two links (eth0, eth1), each to a namespace of its own.
struct Net {
    balancer: Namespace,
    left: Namespace,
    right: Namespace,
}

impl Net {
    fn new() -> Net {
        let net = Net {
            balancer: Namespace::new("lb"),
            left: Namespace::new("left"),
            right: Namespace::new("right"),
        };
        for (name, side, n) in [("eth0", &net.left, 0), ("eth1", &net.right, 1)] {
            link(&net.balancer, name, side, "eth0", 1);
            net.balancer.run(&format!("ip addr add 10.0.{n}.1/24 dev {name}"));
            net.balancer.run(&format!("ip addr add 2001:db8:{n}::1/64 dev {name} nodad"));
            side.run(&format!("ip addr add 10.0.{n}.2/24 dev eth0"));
            side.run(&format!("ip addr add 2001:db8:{n}::2/64 dev eth0 nodad"));
        }
        net
    }

    fn index(&self, interface: &str) -> u32 {
        self.balancer
            .run(&format!("cat /sys/class/net/{interface}/ifindex"))
            .trim()
            .parse()
            .unwrap()
    }

    fn start(&self) -> NextHops {
        self.balancer.inside(|| NextHops::start().unwrap())
    }

    fn wanted(&self, backends: &[&str]) -> Wanted {
        let backends = backends.iter().map(|address| address.parse().unwrap()).collect();
        Wanted {
            backends,
            devices: vec![self.index("eth0"), self.index("eth1")],
            ignores_default_mtu: false,
        }
    }
}

fn mac(namespace: &Namespace, interface: &str) -> Mac {
    let text = namespace.run(&format!("cat /sys/class/net/{interface}/address"));
    let bytes: Vec<u8> =
        text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Waits for a snapshot that satisfies. Most come within a second; on a busy machine a
/// neighbour may be asked twice.
fn until(next_hops: &NextHops, ok: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
    const PATIENCE: Duration = Duration::from_secs(20);
    let watch = next_hops.watch();
    let start = Instant::now();
    loop {
        let snapshot = Arc::clone(&watch.borrow());
        if ok(&snapshot) {
            return snapshot;
        }
        assert!(start.elapsed() < PATIENCE, "after {PATIENCE:?}: {snapshot:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn hops(snapshot: &Snapshot, backend: &str) -> Vec<NextHop> {
    snapshot.backends[&address(backend)].clone().unwrap()
}

fn resolved(snapshot: &Snapshot, backend: &str) -> bool {
    matches!(snapshot.backends.get(&address(backend)), Some(Ok(_)))
}

fn why(snapshot: &Snapshot, backend: &str) -> Option<Unresolved> {
    snapshot.backends.get(&address(backend))?.clone().err()
}

#[test]
fn backends_on_the_link_resolve_without_traffic() {
    if !root_or_skip("backends_on_the_link_resolve_without_traffic") {
        return;
    }
    let net = Net::new();
    let next_hops = net.start();
    next_hops.set(net.wanted(&["10.0.0.2", "2001:db8:1::2"]));
    let snapshot = until(&next_hops, |s| resolved(s, "10.0.0.2") && resolved(s, "2001:db8:1::2"));
    let expected = |device, name, side| NextHop {
        device,
        source: mac(&net.balancer, name),
        destination: mac(side, "eth0"),
        mtu: 1500,
        weight: 1,
        is_backend: true,
    };
    assert_eq!(hops(&snapshot, "10.0.0.2"), [expected(0, "eth0", &net.left)]);
    assert_eq!(hops(&snapshot, "2001:db8:1::2"), [expected(1, "eth1", &net.right)]);
}

#[test]
fn a_changed_mac_address_is_followed() {
    if !root_or_skip("a_changed_mac_address_is_followed") {
        return;
    }
    let net = Net::new();
    let next_hops = net.start();
    next_hops.set(net.wanted(&["10.0.0.2"]));
    until(&next_hops, |s| resolved(s, "10.0.0.2"));
    // The kernel ignores a change within a second of the last (its locktime).
    std::thread::sleep(Duration::from_millis(1100));
    net.left.run("sysctl -qw net.ipv4.conf.eth0.arp_notify=1");
    net.left.run("ip link set eth0 address 02:00:00:00:99:99");
    until(&next_hops, |s| {
        resolved(s, "10.0.0.2") && hops(s, "10.0.0.2")[0].destination == [2, 0, 0, 0, 0x99, 0x99]
    });
}

#[test]
fn a_changed_route_is_followed_with_its_mtu() {
    if !root_or_skip("a_changed_route_is_followed_with_its_mtu") {
        return;
    }
    let net = Net::new();
    let next_hops = net.start();
    net.balancer.run("ip route add 192.0.2.0/24 via 10.0.0.2");
    next_hops.set(net.wanted(&["192.0.2.7"]));
    let before = until(&next_hops, |s| resolved(s, "192.0.2.7"));
    assert_eq!(hops(&before, "192.0.2.7")[0].destination, mac(&net.left, "eth0"));
    net.balancer.run("ip route replace 192.0.2.0/24 via 10.0.1.2 mtu 1400");
    let after =
        until(&next_hops, |s| resolved(s, "192.0.2.7") && hops(s, "192.0.2.7")[0].device == 1);
    assert_eq!(hops(&after, "192.0.2.7")[0].destination, mac(&net.right, "eth0"));
    assert_eq!(hops(&after, "192.0.2.7")[0].mtu, 1400);
}

/// As a backend has it, whose answers are to fit the clients' network.
#[test]
fn the_mtu_of_a_default_route_may_be_of_no_account() {
    if !root_or_skip("the_mtu_of_a_default_route_may_be_of_no_account") {
        return;
    }
    let net = Net::new();
    let next_hops = net.start();
    net.balancer.run("ip route add default via 10.0.0.2 mtu 1400");
    net.balancer.run("ip route add 192.0.2.0/24 via 10.0.0.2 mtu 1300");
    for (ignores_default_mtu, mtu) in [(false, 1400), (true, 1500)] {
        let wanted = net.wanted(&["192.0.2.7", "198.51.100.7"]);
        next_hops.set(Wanted { ignores_default_mtu, ..wanted });
        let seen = until(&next_hops, |s| {
            resolved(s, "198.51.100.7") && hops(s, "198.51.100.7")[0].mtu == mtu
        });
        assert_eq!(hops(&seen, "192.0.2.7")[0].mtu, 1300, "a route of its own counts");
    }
}

#[test]
fn a_multipath_route_gives_all_its_next_hops_and_loses_the_dead_one() {
    if !root_or_skip("a_multipath_route_gives_all_its_next_hops_and_loses_the_dead_one") {
        return;
    }
    let net = Net::new();
    let next_hops = net.start();
    net.balancer
        .run("ip route add 192.0.2.0/24 nexthop via 10.0.0.2 weight 2 nexthop via 10.0.1.2");
    net.balancer.run(
        "ip -6 route add 2001:db8:ff::/64 nexthop via 2001:db8:0::2 nexthop via 2001:db8:1::2",
    );
    next_hops.set(net.wanted(&["192.0.2.7", "2001:db8:ff::7"]));
    let both = |s: &Snapshot, backend| resolved(s, backend) && hops(s, backend).len() == 2;
    let snapshot = until(&next_hops, |s| both(s, "192.0.2.7") && both(s, "2001:db8:ff::7"));
    let weights: Vec<(u32, u16)> =
        hops(&snapshot, "192.0.2.7").iter().map(|hop| (hop.device, hop.weight)).collect();
    assert_eq!(weights, [(0, 2), (1, 1)]);
    net.right.run("ip link set eth0 down");
    until(&next_hops, |s| {
        resolved(s, "192.0.2.7")
            && hops(s, "192.0.2.7").len() == 1
            && hops(s, "2001:db8:ff::7").len() == 1
    });
}

#[test]
fn what_cannot_be_reached_says_why() {
    if !root_or_skip("what_cannot_be_reached_says_why") {
        return;
    }
    let net = Net::new();
    net.balancer.run("ip route add blackhole 192.0.2.0/25");
    net.balancer.run("ip route add unreachable 192.0.2.128/25");
    net.balancer.run("ip -6 route add blackhole 2001:db8:bad::/64");
    net.balancer.run("ip route add 198.51.100.0/24 via 10.0.1.2");
    let next_hops = net.start();
    let backends = [
        "192.0.2.1",
        "192.0.2.129",
        "2001:db8:bad::1",
        "198.51.100.1",
        "203.0.113.1",
        "10.0.0.1",
        "10.0.0.77",
    ];
    let mut wanted = net.wanted(&backends);
    wanted.devices.truncate(1);
    next_hops.set(wanted);
    let failed = Unresolved::Neighbour {
        address: address("10.0.0.77"),
        interface: "eth0".into(),
        state: "failed (does not answer)",
    };
    let snapshot = until(&next_hops, |s| why(s, "10.0.0.77") == Some(failed.clone()));
    assert_eq!(why(&snapshot, "192.0.2.1"), Some(Unresolved::Refused("blackhole")));
    assert_eq!(why(&snapshot, "192.0.2.129"), Some(Unresolved::Refused("unreachable")));
    assert_eq!(why(&snapshot, "2001:db8:bad::1"), Some(Unresolved::Refused("blackhole")));
    assert_eq!(why(&snapshot, "198.51.100.1"), Some(Unresolved::NotOurs("eth1".into())));
    assert_eq!(why(&snapshot, "203.0.113.1"), Some(Unresolved::NoRoute));
    assert_eq!(why(&snapshot, "10.0.0.1"), Some(Unresolved::Local));
}

#[test]
fn our_neighbour_entries_leave_with_us_and_come_back_after_a_flush() {
    if !root_or_skip("our_neighbour_entries_leave_with_us_and_come_back_after_a_flush") {
        return;
    }
    let net = Net::new();
    let next_hops = net.start();
    next_hops.set(net.wanted(&["10.0.0.2", "10.0.1.2"]));
    until(&next_hops, |s| resolved(s, "10.0.0.2") && resolved(s, "10.0.1.2"));
    net.balancer.run("ip link set eth0 down");
    until(&next_hops, |s| why(s, "10.0.0.2").is_some());
    net.balancer.run("ip link set eth0 up");
    until(&next_hops, |s| resolved(s, "10.0.0.2"));
    next_hops.set(net.wanted(&["10.0.1.2"]));
    until(&next_hops, |s| s.backends.len() == 1);
    assert!(!net.balancer.run("ip neigh").contains("10.0.0.2"));
    assert!(net.balancer.run("ip neigh").contains("10.0.1.2"));
    drop(next_hops);
    assert!(!net.balancer.run("ip neigh").contains("10.0.1.2"));
}

#[test]
fn an_entry_set_by_hand_is_used_and_left_alone() {
    if !root_or_skip("an_entry_set_by_hand_is_used_and_left_alone") {
        return;
    }
    let net = Net::new();
    net.balancer.run("ip neigh add 10.0.0.50 lladdr 02:00:00:00:00:50 dev eth0 nud permanent");
    let next_hops = net.start();
    next_hops.set(net.wanted(&["10.0.0.50"]));
    let snapshot = until(&next_hops, |s| resolved(s, "10.0.0.50"));
    assert_eq!(hops(&snapshot, "10.0.0.50")[0].destination, [2, 0, 0, 0, 0, 0x50]);
    drop(next_hops);
    assert!(
        net.balancer
            .run("ip neigh")
            .contains("10.0.0.50 dev eth0 lladdr 02:00:00:00:00:50 PERMANENT")
    );
}

#[test]
fn the_thread_goes_round_also_where_nothing_changes() {
    if !root_or_skip("the_thread_goes_round_also_where_nothing_changes") {
        return;
    }
    let net = Net::new();
    let next_hops = net.start();
    next_hops.set(net.wanted(&["10.0.0.2"]));
    let last_round = next_hops.last_round();
    for _ in 0..3 {
        let (start, former) = (Instant::now(), last_round.load(Ordering::Relaxed));
        while last_round.load(Ordering::Relaxed) == former {
            assert!(start.elapsed() < Duration::from_secs(10), "no round since {former} ms");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
