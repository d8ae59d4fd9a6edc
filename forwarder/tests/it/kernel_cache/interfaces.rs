//! Several interfaces: packets leave by another one, and arrive on several.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, SocketAddrV4, sendto};
use serde_json::{Value, json};
use testnet::{Namespace, link, raw_socket, receive, root_or_skip};

use super::rig::{GRE, Rig, filtered, flow, plan, program, programs, sample};
use crate::program::Forwarder;

/// The flow's backend is behind the second of two interfaces.
fn plan_of_two_links(encap: &str) -> Value {
    let mut plan = plan(1, 11);
    plan["forwarder"]["interfaces"] = json!([{"name": "eth0"}, {"name": "eth1"}]);
    plan["services"][0]["encap"] = json!(encap);
    plan["backends"][0]["address"] = json!("10.0.1.11");
    plan
}

#[test]
fn packets_leave_by_the_device_of_their_next_hop() {
    if !root_or_skip("packets_leave_by_the_device_of_their_next_hop") {
        return;
    }
    for encap in ["ENCAP_GRE", "ENCAP_GUE"] {
        let mut rig = Rig::start_over_two_links(&plan_of_two_links(encap), program, |_| ());
        rig.traffic.send(300);
        assert!(rig.filtered("cached") > 200);
        let shown = rig.forwarder.status().kernel_cache.unwrap();
        assert_eq!((shown.state.as_str(), shown.reason.as_str()), ("on", ""));
        assert!(shown.not_cached.is_empty());
        let cached = rig.forwarder.explain(flow()).cached.unwrap();
        assert_eq!((cached.interface.as_str(), cached.queue), ("eth0", 0));
        rig.hold_counters([rig.traffic.sent, 0]);
        // A successor's filters know the devices, too.
        rig.forwarder.take_over(&[]);
        let before = rig.filtered("cached");
        rig.traffic.send(300);
        assert!(rig.filtered("cached") > before + 200);
    }
}

#[test]
fn packets_leave_by_another_device_in_generic_mode() {
    if !root_or_skip("packets_leave_by_another_device_in_generic_mode") {
        return;
    }
    // Sent as the kernel's own are: the backend's end needs no program.
    let mut rig = Rig::start_over_two_links(&plan_of_two_links("ENCAP_GRE"), Vec::new, |client| {
        client.run("ip link set eth0 mtu 9000");
    });
    let modes = rig.forwarder.status().devices;
    assert_eq!([&modes[0].mode, &modes[1].mode], ["generic", "native"]);
    rig.traffic.send(300);
    assert!(rig.filtered("cached") > 200);
    rig.hold_counters([rig.traffic.sent, 0]);
}

#[test]
fn what_would_leave_by_a_device_that_takes_nothing_from_programs_is_user_spaces() {
    let test = "what_would_leave_by_a_device_that_takes_nothing_from_programs_is_user_spaces";
    if !root_or_skip(test) {
        return;
    }
    let mut rig = Rig::start_over_two_links(&plan_of_two_links("ENCAP_GRE"), Vec::new, |_| ());
    rig.traffic.send(300);
    assert_eq!(rig.filtered("cached"), 0);
    let shown = rig.forwarder.status().kernel_cache.unwrap();
    assert_eq!((shown.state.as_str(), shown.targets), ("on", 0));
    assert!(shown.reason.starts_with("the other end of veth eth1 has no XDP program"), "{shown:?}");
    let reason = "the kernel cannot send from every interface to its next hop's";
    let lines: Vec<_> =
        shown.not_cached.iter().map(|line| (line.reason.as_str(), line.backends)).collect();
    assert_eq!(lines, [(reason, 1)]);
    assert_eq!(rig.forwarder.explain(flow()).not_cached, reason);
    rig.hold_counters([rig.traffic.sent, 0]);
}

/// A flow of TCP whose packets come in by the one and by the other interface, as routers
/// spread them anew; segments are put together here, so that each is sent once.
struct TwoWays {
    forwarder: Forwarder,
    client: Namespace,
    socket: OwnedFd,
    backend: OwnedFd,
    sent: u64,
    _programs: Vec<nic::Device>,
    _balancer: Namespace,
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const FIN: u8 = 0x01;
const TCP: u32 = 6;

impl TwoWays {
    fn start() -> TwoWays {
        let (client, balancer) = (Namespace::new("client"), Namespace::new("lb"));
        for number in [0, 1] {
            let name = format!("eth{number}");
            link(&client, &name, &balancer, &name, 1);
            client.run(&format!("ip addr add 10.0.{number}.2/24 dev {name}"));
            balancer.run(&format!("ip addr add 10.0.{number}.1/24 dev {name}"));
        }
        client.run("ip addr add 10.0.0.11/24 dev eth0");
        let programs = client.inside(|| programs(&["eth0", "eth1"]));
        let mut plan = plan(1, 11);
        plan["forwarder"]["interfaces"] = json!([{"name": "eth0"}, {"name": "eth1"}]);
        let mut forwarder = Forwarder::start(&balancer);
        forwarder.set_plan(&plan).unwrap();
        let backend = client.inside(|| raw_socket(AddressFamily::INET, GRE));
        set_socket_timeout(&backend, Timeout::Recv, Some(Duration::from_secs(5))).unwrap();
        let socket = client.inside(|| raw_socket(AddressFamily::INET, TCP));
        let (_programs, _balancer) = (programs, balancer);
        TwoWays { forwarder, client, socket, backend, sent: 0, _programs, _balancer }
    }

    /// From now on packets come in by that interface.
    fn come_in_by(&self, number: u8) {
        self.client.run(&format!(
            "ip route replace 203.0.113.10 via 10.0.{number}.1 dev eth{number} src 10.0.0.2"
        ));
    }

    /// Sends segments, each when the one before has come.
    fn send(&mut self, flags: u8, segments: u64) {
        let to = SocketAddrV4::new([203, 0, 113, 10].into(), 0);
        for _ in 0..segments {
            let [source_port, port] = [4000_u16, 443].map(u16::to_be_bytes);
            let mut segment = [source_port, port].concat();
            segment.extend(self.sent.to_be_bytes());
            segment.extend([5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
            sendto(&self.socket, &segment, SendFlags::empty(), &to).unwrap();
            let mut bytes = [0; 256];
            receive(&self.backend, &mut bytes).expect("no segment is lost");
            self.sent += 1;
        }
    }

    /// Packets of these interfaces that the kernel sent by itself.
    fn cached(&mut self) -> [u64; 2] {
        let metrics = self.forwarder.metrics();
        ["eth0", "eth1"].map(|name| filtered(&metrics, name, "cached"))
    }
}

#[test]
fn a_flow_that_comes_in_by_two_interfaces_is_the_kernels_by_both_until_it_ends() {
    let test = "a_flow_that_comes_in_by_two_interfaces_is_the_kernels_by_both_until_it_ends";
    if !root_or_skip(test) {
        return;
    }
    let mut ways = TwoWays::start();
    ways.come_in_by(0);
    ways.send(SYN, 1);
    for _ in 0..10 {
        ways.send(ACK, 1);
        std::thread::sleep(Duration::from_millis(30));
    }
    ways.send(ACK, 300);
    let [by_first, by_second] = ways.cached();
    assert!(by_first > 200 && by_second == 0, "{by_first} {by_second}");
    ways.come_in_by(1);
    ways.send(ACK, 300);
    let [still, by_second] = ways.cached();
    assert!(still == by_first && by_second > 200, "{still} {by_second}");
    // Back, where its entry has been all the time.
    ways.come_in_by(0);
    ways.send(ACK, 100);
    assert_eq!(ways.cached(), [by_first + 100, by_second]);
    // The end is heard by one of them, and counts for both.
    ways.come_in_by(1);
    ways.send(FIN | ACK, 1);
    for interface in [0, 1] {
        ways.come_in_by(interface);
        ways.send(ACK, 10);
    }
    assert_eq!(ways.cached(), [by_first + 100, by_second]);
    let closed = "guideway_kernel_cache_entries_total{event=\"closed\"} ";
    assert_eq!(sample(&ways.forwarder.metrics(), closed), 2);
    let counters = ways.forwarder.at_rest();
    assert_eq!((counters.sent, counters.unaccounted), (ways.sent, 0));
}
