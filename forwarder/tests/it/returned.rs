//! An interface that is removed and created again, or gets another address.

use std::time::{Duration, Instant};

use crate::take_over_states::Machine;
use testnet::{link, root_or_skip};

const LIMIT: Duration = Duration::from_secs(20);

/// Waits until it says so of the interface towards the backend.
fn wait_until_gone(machine: &Machine) {
    let start = Instant::now();
    loop {
        let status = machine.client().status();
        let gone = status.devices.iter().filter(|device| device.gone);
        let gone: Vec<&str> = gone.map(|device| device.interface.as_str()).collect();
        if gone == ["eth1"] {
            return;
        }
        assert!(start.elapsed() < LIMIT, "gone: {gone:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_interface_that_goes_and_comes_again_is_opened_again() {
    if !root_or_skip("an_interface_that_goes_and_comes_again_is_opened_again") {
        return;
    }
    let mut machine = Machine::start();
    let process = machine.assert_one_forwards();
    for _ in 0..2 {
        machine.net.balancer.run("ip link del eth1");
        wait_until_gone(&machine);
        link(&machine.net.balancer, "eth1", &machine.net.backend, "eth0", 2);
        machine.net.balancer.run("ip link set eth1 mtu 1600");
        machine.net.backend.run("ip link set eth0 mtu 1600");
        machine.net.balancer.run("ip addr add 10.0.1.1/24 dev eth1");
        machine.net.backend.run("ip addr add 10.0.1.11/24 dev eth0");
        assert_eq!(machine.assert_one_forwards(), process, "it is the same process");
        let (start, mut client) = (Instant::now(), machine.client());
        while client.counters().unaccounted != 0 {
            assert!(start.elapsed() < LIMIT, "{:?}", client.counters());
        }
    }
}

/// Only frames to an interface's own address are looked at, whatever it is by now.
#[test]
fn an_interface_whose_address_changes_goes_on() {
    if !root_or_skip("an_interface_whose_address_changes_goes_on") {
        return;
    }
    let mut machine = Machine::start();
    let process = machine.assert_one_forwards();
    for address in ["02:00:00:00:00:77", "02:00:00:00:00:78"] {
        machine.net.balancer.run(&format!("ip link set eth0 address {address}"));
        machine.net.client.run("ip neigh flush dev eth0");
        assert_eq!(machine.assert_one_forwards(), process, "{address}");
    }
}
