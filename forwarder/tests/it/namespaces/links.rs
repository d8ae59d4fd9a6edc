//! Virtual interfaces on top of others: VLANs, bonds and bridges. Not every kernel has them;
//! those of `make vms` do.

use rustix::net::AddressFamily;
use serde_json::json;
use testnet::{Namespace, root_or_skip};

use super::{VIP, VIP6, dropped, wait_until_resolved};
use crate::common::Net;
use crate::program::Forwarder;

/// Puts an interface of this kind above one, in its place: it has its name and addresses.
fn put_above(namespace: &Namespace, name: &str, kind: &str) {
    let shown = namespace.run(&format!("ip -o addr show dev {name} scope global"));
    let addresses = shown.lines().map(|line| line.split_whitespace().nth(3).unwrap().to_owned());
    let mtu = namespace.run(&format!("cat /sys/class/net/{name}/mtu"));
    let below = format!("below-{name}");
    let mut commands = vec![
        format!("ip addr flush dev {name}"),
        format!("ip link set {name} down"),
        format!("ip link set {name} name {below}"),
    ];
    match kind {
        "vlan" => commands.push(format!("ip link add link {below} name {name} type vlan id 5")),
        _ => {
            let mode = if kind == "bond" { "mode active-backup miimon 100" } else { "" };
            commands.push(format!("ip link add name {name} type {kind} {mode}"));
            commands.push(format!("ip link set {below} master {name}"));
        }
    }
    commands.push(format!("ip link set {below} up"));
    commands.push(format!("ip link set {name} mtu {}", mtu.trim()));
    commands.push(format!("ip link set {name} up"));
    commands.extend(addresses.map(|address| match address.contains(':') {
        true => format!("ip addr add {address} dev {name} nodad"),
        false => format!("ip addr add {address} dev {name}"),
    }));
    for command in commands {
        namespace.run(&command);
    }
}

/// Both of the balancer's interfaces are of this kind; frames of a VLAN have a tag.
fn net_of(kind: &str) -> Net {
    let net = Net::of_both_families();
    for name in ["eth0", "eth1"] {
        put_above(&net.balancer, name, kind);
    }
    if kind == "vlan" {
        put_above(&net.client, "eth0", kind);
        put_above(&net.backend, "eth0", kind);
        net.client.run(&format!("ip route add {VIP} via 10.0.0.1"));
        net.client.run(&format!("ip -6 route add {VIP6} via 2001:db8:0::1"));
    }
    net
}

/// Forwards in both families, by `af_packet` if the driver is to be found.
fn forwards(kind: &str, driver: Option<&str>) {
    let net = net_of(kind);
    let mut forwarder = Forwarder::start(&net.balancer);
    let mut plan = net.plan(1, driver.unwrap_or("DRIVER_AF_XDP"), &[(11, 1), (12, 1)]);
    for interface in plan["forwarder"]["interfaces"].as_array_mut().unwrap() {
        interface["autoDriver"] = json!(driver.is_none());
    }
    forwarder.set_plan(&plan).unwrap();
    let (v4, v6) = (net.listen(AddressFamily::INET), net.listen(AddressFamily::INET6));
    for (vip, backend) in [(VIP, &v4), (VIP6, &v6)] {
        wait_until_resolved(&net, vip, backend);
        let before = forwarder.at_rest();
        net.send_udp(vip, 20_000..20_100);
        assert_eq!(backend.take(100).len(), 100, "{:?}", dropped(&forwarder.counters()));
        let counters = forwarder.at_rest();
        let more = (counters.received - before.received, counters.sent - before.sent);
        assert_eq!((more, counters.unaccounted), ((100, 100), 0));
    }
    let device = forwarder.status().devices[0].clone();
    match driver {
        Some(_) => {
            assert_eq!((device.driver.as_str(), device.mode.as_str()), ("af_xdp", "generic"))
        }
        None => assert_eq!(device.driver, "af_packet", "{}", device.driver_reason),
    }
    assert_eq!(forwarder.terminate(), Some(0));
}

#[test]
#[ignore = "needs a kernel with VLANs: make vms"]
fn a_vlan_is_an_interface() {
    if root_or_skip("a_vlan_is_an_interface") {
        forwards("vlan", None);
        forwards("vlan", Some("DRIVER_AF_XDP"));
    }
}

#[test]
#[ignore = "needs a kernel with bonds: make vms"]
fn a_bond_is_an_interface_but_not_for_af_xdp() {
    if !root_or_skip("a_bond_is_an_interface_but_not_for_af_xdp") {
        return;
    }
    forwards("bond", None);
    let net = net_of("bond");
    let mut forwarder = Forwarder::start(&net.balancer);
    let error = forwarder.set_plan(&net.plan(1, "DRIVER_AF_XDP", &[(11, 1)])).unwrap_err();
    assert!(error.to_string().contains("brings no packets to AF_XDP sockets"), "{error}");
}

#[test]
#[ignore = "needs a kernel with bridges: make vms"]
fn a_bridge_is_an_interface() {
    if root_or_skip("a_bridge_is_an_interface") {
        forwards("bridge", None);
    }
}
