//! Links that go and come back under interfaces that have zero-copy. Not every machine has
//! them; those of `make vms` do.

use std::io::Write;
use std::process::Command;

use rustix::net::AddressFamily;
use testnet::{Namespace, root_or_skip};

use super::{VIP, dropped, wait_until_resolved};
use crate::common::Net;
use crate::program::Forwarder;

/// The console of the machine's emulator, and the interface's name there.
fn emulator(interface: &Namespace, name: &str, state: &str) {
    let console = std::env::var("GUIDEWAY_TEST_EMULATOR").expect("the emulator's console");
    let mac = interface.run(&format!("cat /sys/class/net/{name}/address"));
    let mut console = std::fs::OpenOptions::new().write(true).open(console).unwrap();
    writeln!(console, "set_link nic-{} {state}", mac.trim().replace(':', "-")).unwrap();
    let carrier = if state == "on" { "LOWER_UP" } else { "NO-CARRIER" };
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !interface.run(&format!("ip link show {name}")).contains(carrier) {
        assert!(std::time::Instant::now() < end, "the link is not {state}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
#[ignore = "needs interfaces with zero-copy: make vms"]
fn links_go_down_and_come_back() {
    if !root_or_skip("links_go_down_and_come_back") {
        return;
    }
    let net = Net::of_both_families();
    let mut forwarder = Forwarder::start(&net.balancer);
    forwarder.set_plan(&net.plan(1, "DRIVER_AF_XDP", &[(11, 1), (12, 1)])).unwrap();
    assert!(forwarder.status().devices.iter().all(|device| device.zero_copy));
    let backend = net.listen(AddressFamily::INET);
    let set = |name: &str, state: &str| net.balancer.run(&format!("ip link set {name} {state}"));
    type Change<'a> = &'a dyn Fn(&str, bool);
    let by_kernel: Change = &|name, up| drop(set(name, if up { "up" } else { "down" }));
    let by_device: Change =
        &|name, up| emulator(&net.balancer, name, if up { "on" } else { "off" });
    for (change, name) in
        [(by_kernel, "eth0"), (by_kernel, "eth1"), (by_device, "eth0"), (by_device, "eth1")]
    {
        change(name, false);
        // More than the rings hold, so that nothing may be left in them for good.
        for _ in 0..3 {
            net.send_udp(VIP, 30_000..31_000);
        }
        change(name, true);
        wait_until_resolved(&net, VIP, &backend);
        let before = forwarder.at_rest();
        net.send_udp(VIP, 20_000..20_500);
        assert_eq!(backend.take(500).len(), 500, "{name}: {:?}", dropped(&forwarder.counters()));
        let counters = forwarder.at_rest();
        assert_eq!((counters.sent - before.sent, counters.unaccounted), (500, 0), "{name}");
    }
    // The kernel refuses other queues while there is a filter.
    let fewer = format!("netns exec {} ethtool -L eth0 combined 1", net.balancer);
    let fewer = Command::new("ip").args(fewer.split(' ')).output().unwrap();
    assert!(!fewer.status.success(), "{fewer:?}");
    net.send_udp(VIP, 20_000..20_100);
    assert_eq!(backend.take(100).len(), 100);
    assert_eq!(forwarder.terminate(), Some(0));
}
