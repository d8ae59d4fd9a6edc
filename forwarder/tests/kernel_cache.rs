//! The kernel flow cache in a running forwarder, over veth: one device, and two.
//!
//! ```text
//!  client 10.0.0.2, backends 10.0.0.11, 10.0.0.12 ──eth0── eth0 10.0.0.1 balancer
//!  and the same of fd00::
//!
//!  client 10.0.0.2 ──eth0── eth0 10.0.0.1 balancer 10.0.1.1 eth1 ──eth0── backend 10.0.1.11
//! ```

mod common;
#[path = "common/forwarder.rs"]
mod program;

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use guideway_forwarder::proto::{CaptureRequest, FlowKey, GetCountersResponse};
use nic::{DeviceConfig, QueueOptions};
use program::Forwarder;
use rustix::fd::OwnedFd;
use rustix::net::AddressFamily;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::{Value, json};
use testnet::{Namespace, link, raw_socket, receive, root_or_skip};

const GRE: u32 = 47;
const IPV4: u32 = 4;
const IPV6: u32 = 41;
const UDP: u32 = 17;
const PACKETS: u64 = 2_000;

/// A balancer whose one flow is sent to the backends of that number that are active.
fn plan(generation: u64, active: u8) -> Value {
    let backends = [11, 12].map(|host| {
        let name = format!("b{host}");
        json!({"name": name, "address": format!("10.0.0.{host}")})
    });
    let members = [11, 12].map(|host| {
        let state = if host == active { "ACTIVE" } else { "DOWN" };
        json!({"backend": format!("b{host}"), "weight": 1, "state": format!("BACKEND_STATE_{state}")})
    });
    json!({
        "generation": generation.to_string(),
        "cluster": {"name": "test", "keyId": "derived"},
        "machine": {"name": "lb", "addresses": ["10.0.0.1", "fd00::1"]},
        "forwarder": {"interfaces": [{"name": "eth0"}], "kernelCache": "KERNEL_CACHE_ON", "connectionsMax": "10000"},
        "backends": backends,
        "groups": [{"name": "g", "members": members}],
        "services": [{"name": "dns", "vips": [{"address": "203.0.113.10"}], "group": "g", "tableSize": 251}],
    })
}

/// What a plan's first service is reached by, and its first backend.
#[derive(Clone, Copy)]
struct Families {
    is_inner_v6: bool,
    is_outer_v6: bool,
}

impl Families {
    fn of(plan: &Value) -> Families {
        let has_colon = |text: &Value| text.as_str().unwrap().contains(':');
        Families {
            is_inner_v6: has_colon(&plan["services"][0]["vips"][0]["address"]),
            is_outer_v6: has_colon(&plan["backends"][0]["address"]),
        }
    }

    /// The raw socket of backends, which gets packets of the plan's tunnels.
    fn backend(self, plan: &Value) -> OwnedFd {
        let protocol = match plan["services"][0]["encap"].as_str() {
            None | Some("ENCAP_GRE") => GRE,
            Some("ENCAP_IPIP") if self.is_inner_v6 => IPV6,
            Some("ENCAP_IPIP") => IPV4,
            Some(_) => UDP,
        };
        let family = if self.is_outer_v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let backend = raw_socket(family, protocol);
        set_socket_timeout(&backend, Timeout::Recv, Some(Duration::from_secs(5))).unwrap();
        backend
    }

    /// The client's address, and the service's.
    fn flow(self) -> [&'static str; 2] {
        match self.is_inner_v6 {
            true => ["[fd00::2]:4000", "[2001:db8:f::10]:53"],
            false => ["10.0.0.2:4000", "203.0.113.10:53"],
        }
    }

    /// Of IP, UDP, and the number in it.
    fn packet_bytes(self) -> u64 {
        (if self.is_inner_v6 { 40 } else { 20 }) + 8 + 8
    }
}

/// Client, balancer, and what the backends get.
struct Rig {
    forwarder: Forwarder,
    traffic: Traffic,
    balancer: Namespace,
    _others: Vec<Namespace>,
}

impl Rig {
    /// Forwards by the plan; the flow's connection is confirmed.
    fn start(plan: &Value) -> Rig {
        // A veth end is woken by what its peer's program sends only where it has a
        // program, too: here a filter that takes nothing. Polling (NAPI, by `gro on`) is
        // not enough.
        Rig::start_with(plan, |_| ())
    }

    /// The same with the client's end changed, after its program was attached.
    fn start_with(plan: &Value, change: impl FnOnce(&Namespace)) -> Rig {
        Rig::start_beside(plan, program, change)
    }

    /// The backend behind a link of its own, whose end has these devices opened; the
    /// client's end changed, after its program was attached.
    fn start_over_two_links(
        plan: &Value,
        at_backend: impl FnOnce() -> Vec<nic::Device> + Send,
        change: impl FnOnce(&Namespace),
    ) -> Rig {
        let [client, balancer, backend] = ["client", "lb", "backend"].map(Namespace::new);
        link(&client, "eth0", &balancer, "eth0", 1);
        link(&balancer, "eth1", &backend, "eth0", 1);
        let mut program = client.inside(program);
        program.extend(backend.inside(at_backend));
        change(&client);
        client.run("ip addr add 10.0.0.2/24 dev eth0");
        balancer.run("ip addr add 10.0.0.1/24 dev eth0");
        balancer.run("ip addr add 10.0.1.1/24 dev eth1");
        backend.run("ip addr add 10.0.1.11/24 dev eth0");
        backend.run("ip route add 10.0.0.0/24 via 10.0.1.1");
        client.run("ip route add 203.0.113.10 via 10.0.0.1");
        let mut forwarder = Forwarder::start(&balancer);
        forwarder.set_plan(plan).unwrap();
        let families = Families::of(plan);
        let socket = client.inside(|| UdpSocket::bind(families.flow()[0]).unwrap());
        let tunnel = backend.inside(|| families.backend(plan));
        let traffic = Traffic { families, socket, backend: tunnel, program, sent: 0, padding: 0 };
        let mut rig = Rig { forwarder, traffic, balancer, _others: vec![client, backend] };
        rig.confirm();
        rig
    }

    /// The same with these devices opened in the client's namespace.
    fn start_beside(
        plan: &Value,
        program: impl FnOnce() -> Vec<nic::Device> + Send,
        change: impl FnOnce(&Namespace),
    ) -> Rig {
        let (client, balancer) = (Namespace::new("client"), Namespace::new("lb"));
        link(&client, "eth0", &balancer, "eth0", 1);
        let program = client.inside(program);
        change(&client);
        for host in [2, 11, 12] {
            client.run(&format!("ip addr add 10.0.0.{host}/24 dev eth0"));
            client.run(&format!("ip addr add fd00::{host}/64 dev eth0 nodad"));
        }
        balancer.run("ip addr add 10.0.0.1/24 dev eth0");
        balancer.run("ip addr add fd00::1/64 dev eth0 nodad");
        client.run("ip route add 203.0.113.10 via 10.0.0.1");
        client.run("ip route add 2001:db8:f::10 via fd00::1");
        let mut forwarder = Forwarder::start(&balancer);
        forwarder.set_plan(plan).unwrap();
        let families = Families::of(plan);
        let backend = client.inside(|| families.backend(plan));
        let socket = client.inside(|| UdpSocket::bind(families.flow()[0]).unwrap());
        let traffic = Traffic { families, socket, backend, program, sent: 0, padding: 0 };
        let mut rig = Rig { forwarder, traffic, balancer, _others: vec![client] };
        rig.confirm();
        rig
    }

    /// A connection is confirmed by a packet at least a tick after its first.
    fn confirm(&mut self) {
        for _ in 0..10 {
            self.traffic.send(1);
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Packets at the filter of this decision.
    fn filtered(&mut self, decision: &str) -> u64 {
        let name =
            format!("guideway_filter_packets_total{{interface=\"eth0\",decision=\"{decision}\"}} ");
        sample(&self.forwarder.metrics(), &name)
    }

    /// Holds all that is counted to the packets that were sent: to those backends that
    /// many. What was answered.
    fn hold_counters(&mut self, backends: [u64; 2]) -> GetCountersResponse {
        let (counters, sent) = (self.forwarder.at_rest(), self.traffic.sent);
        assert_eq!(backends.iter().sum::<u64>(), sent);
        assert_eq!((counters.received, counters.sent, counters.unaccounted), (sent, sent, 0));
        let services: Vec<_> =
            counters.services.iter().map(|line| (line.packets, line.bytes)).collect();
        let packet_bytes = self.traffic.families.packet_bytes();
        assert_eq!(services, [(sent, sent * packet_bytes)]);
        let members: Vec<_> =
            counters.backends.iter().map(|line| (line.packets, line.bytes)).collect();
        assert_eq!(members, backends.map(|packets| (packets, packets * packet_bytes)));
        let metrics = self.forwarder.metrics();
        assert_eq!(sample(&metrics, "guideway_frames_total{verdict=\"sent\"} "), sent);
        let cached = sample(&metrics, "guideway_kernel_cache_packets_total ");
        assert_eq!(cached + self.filtered("taken"), sent);
        assert_eq!(cached, self.filtered("cached"));
        counters
    }
}

/// A filter that takes nothing, at the other end of the balancer's link.
fn program() -> Vec<nic::Device> {
    let config = DeviceConfig { interface: "eth0".into(), ..DeviceConfig::default() };
    nic::open(&[config], &QueueOptions::default()).unwrap().0
}

/// One flow, one packet at a time: none is lost in a full ring, and time goes on.
struct Traffic {
    families: Families,
    socket: UdpSocket,
    backend: OwnedFd,
    /// At the other ends of the balancer's links.
    program: Vec<nic::Device>,
    sent: u64,
    /// Bytes of each packet in front of its number.
    padding: usize,
}

impl Traffic {
    /// Sends packets, each when the one before has come; the backend that had the last,
    /// if its address is of IPv4: the sockets of IPv6 do not say.
    fn send(&mut self, packets: u64) -> u8 {
        let (mut bytes, mut host) = ([0; 2048], 0);
        for _ in 0..packets {
            self.socket.send_to(&self.datagram(), self.families.flow()[1]).unwrap();
            let received = receive(&self.backend, &mut bytes);
            let length =
                received.unwrap_or_else(|error| panic!("packet {} was lost: {error}", self.sent));
            assert_eq!(bytes[length - 8..length], self.sent.to_be_bytes());
            (self.sent, host) = (self.sent + 1, bytes[19]);
        }
        host
    }

    /// One packet, which may not come; nor does it count.
    fn send_without_waiting(&self) {
        // Its error is that of a packet before.
        let _ = self.socket.send_to(&self.datagram(), self.families.flow()[1]);
    }

    fn datagram(&self) -> Vec<u8> {
        [vec![0; self.padding], self.sent.to_be_bytes().to_vec()].concat()
    }
}

fn sample(metrics: &str, name: &str) -> u64 {
    let line = metrics.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit(' ').next()).expect("the metric is there");
    value.parse::<f64>().unwrap() as u64
}

#[test]
fn most_packets_of_a_busy_flow_never_reach_user_space_and_all_are_counted() {
    if !root_or_skip("most_packets_of_a_busy_flow_never_reach_user_space_and_all_are_counted") {
        return;
    }
    let mut rig = Rig::start(&plan(1, 11));
    rig.traffic.send(PACKETS);
    let cached = rig.filtered("cached");
    assert!(cached > PACKETS * 9 / 10, "{cached}");
    rig.hold_counters([rig.traffic.sent, 0]);
    let entered = "guideway_kernel_cache_entries_total{event=\"entered\"} ";
    assert_eq!(sample(&rig.forwarder.metrics(), entered), 1);
}

/// One flow of those families is the kernel's in each encapsulation.
fn each_encapsulation_is_sent(is_inner_v6: bool, is_outer_v6: bool) {
    for encap in ["ENCAP_GRE", "ENCAP_IPIP", "ENCAP_GUE", "ENCAP_GENEVE"] {
        let mut plan = plan(1, 11);
        plan["services"][0]["encap"] = json!(encap);
        if is_inner_v6 {
            plan["services"][0]["vips"] = json!([{"address": "2001:db8:f::10"}]);
        }
        if is_outer_v6 {
            plan["backends"][0]["address"] = json!("fd00::11");
        }
        let mut rig = Rig::start(&plan);
        rig.traffic.send(300);
        assert!(rig.filtered("cached") > 200, "{encap}");
        rig.hold_counters([rig.traffic.sent, 0]);
    }
}

#[test]
fn ipv4_in_ipv4_is_sent_by_the_kernel_in_each_encapsulation() {
    if root_or_skip("ipv4_in_ipv4_is_sent_by_the_kernel_in_each_encapsulation") {
        each_encapsulation_is_sent(false, false);
    }
}

#[test]
fn ipv6_in_ipv6_is_sent_by_the_kernel_in_each_encapsulation() {
    if root_or_skip("ipv6_in_ipv6_is_sent_by_the_kernel_in_each_encapsulation") {
        each_encapsulation_is_sent(true, true);
    }
}

#[test]
fn ipv4_in_ipv6_is_sent_by_the_kernel_in_each_encapsulation() {
    if root_or_skip("ipv4_in_ipv6_is_sent_by_the_kernel_in_each_encapsulation") {
        each_encapsulation_is_sent(false, true);
    }
}

#[test]
fn ipv6_in_ipv4_is_sent_by_the_kernel_in_each_encapsulation() {
    if root_or_skip("ipv6_in_ipv4_is_sent_by_the_kernel_in_each_encapsulation") {
        each_encapsulation_is_sent(true, false);
    }
}

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
fn what_an_interface_does_not_send_of_the_caches_packets_is_counted() {
    if !root_or_skip("what_an_interface_does_not_send_of_the_caches_packets_is_counted") {
        return;
    }
    is_counted_as_lost(Rig::start(&plan(1, 11)), "eth0");
    let two_links = plan_of_two_links("ENCAP_GRE");
    is_counted_as_lost(Rig::start_over_two_links(&two_links, program, |_| ()), "eth1");
}

/// The interface by which the flow leaves loses what the kernel sends.
fn is_counted_as_lost(mut rig: Rig, interface: &str) {
    rig.traffic.send(300);
    let cached = rig.filtered("cached");
    let lost = format!("guideway_tx_lost_packets_total{{interface=\"{interface}\",queue=\"-\"}} ");
    assert_eq!(sample(&rig.forwarder.metrics(), &lost), 0);
    // An end of veth without a program takes nothing that another program sends.
    rig.traffic.program.clear();
    (0..50).for_each(|_| rig.traffic.send_without_waiting());
    rig.forwarder.at_rest();
    let cached = rig.filtered("cached") - cached;
    assert!(cached > 40, "{cached}");
    assert_eq!(sample(&rig.forwarder.metrics(), &lost), cached);
    let shown = rig.forwarder.status().kernel_cache.unwrap();
    assert_eq!(shown.lost, Some(cached));
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

#[test]
fn what_the_kernel_cannot_send_is_shown_with_the_reason() {
    if !root_or_skip("what_the_kernel_cannot_send_is_shown_with_the_reason") {
        return;
    }
    let mut plan = plan(1, 11);
    plan["services"][0]["idleTimeouts"] = json!({"tcpMs": 900_000, "udpMs": 10_000});
    let mut rig = Rig::start(&plan);
    rig.traffic.send(300);
    assert_eq!(rig.filtered("cached"), 0);
    let shown = rig.forwarder.status().kernel_cache.unwrap();
    let reason = "an idle timeout is shorter than 20 s";
    assert_eq!((shown.state.as_str(), shown.targets), ("on", 0));
    let lines: Vec<_> = shown
        .not_cached
        .iter()
        .map(|line| (line.service.as_str(), line.reason.as_str(), line.backends))
        .collect();
    // The other backend is down, which is in no way.
    assert_eq!(lines, [("dns", reason, 1)]);
    assert_eq!(rig.forwarder.explain(flow()).not_cached, reason);
}

#[test]
fn a_plan_that_moves_a_flow_moves_it_in_the_kernel_and_no_count_is_lost() {
    if !root_or_skip("a_plan_that_moves_a_flow_moves_it_in_the_kernel_and_no_count_is_lost") {
        return;
    }
    let mut rig = Rig::start(&plan(1, 11));
    let mut sent = [rig.traffic.sent, 0];
    for generation in 2..=5 {
        let backend = generation as usize % 2;
        let before = rig.filtered("cached");
        let first = rig.traffic.sent;
        // Moved at once, though its entry is not gone.
        rig.forwarder.set_plan(&plan(generation, [11, 12][backend])).unwrap();
        assert_eq!(rig.traffic.send(1), [11, 12][backend]);
        rig.confirm();
        rig.traffic.send(300);
        assert!(rig.filtered("cached") > before + 200, "generation {generation}");
        sent[backend] += rig.traffic.sent - first;
        rig.hold_counters(sent);
    }
    // Other VIPs: no target stays.
    let mut other = plan(6, 12);
    other["services"][0]["vips"] =
        json!([{"address": "203.0.113.10"}, {"address": "203.0.113.11"}]);
    rig.forwarder.set_plan(&other).unwrap();
    let first = rig.traffic.sent;
    rig.traffic.send(300);
    sent[1] += rig.traffic.sent - first;
    let counters = rig.forwarder.at_rest();
    let packets: Vec<u64> = counters.services.iter().map(|line| line.packets).collect();
    assert_eq!(packets, [rig.traffic.sent, 0]);
    let packets: Vec<u64> = counters.backends.iter().map(|line| line.packets).collect();
    assert_eq!(packets, sent);
}

#[test]
fn while_packets_are_captured_user_space_gets_them_all() {
    if !root_or_skip("while_packets_are_captured_user_space_gets_them_all") {
        return;
    }
    let mut rig = Rig::start(&plan(1, 11));
    rig.traffic.send(300);
    let before = rig.filtered("cached");
    assert!(before > 200, "{before}");
    let mut stream = rig.forwarder.capture(CaptureRequest::default()).unwrap();
    rig.traffic.send(200);
    assert_eq!(rig.forwarder.captured(&mut stream, 200).len(), 200);
    assert_eq!(rig.filtered("cached"), before);
    drop(stream);
    // The forwarder sees the end of the stream when it next writes.
    let start = std::time::Instant::now();
    while rig.filtered("cached") < before + 100 {
        assert!(start.elapsed() < Duration::from_secs(10), "the kernel sends nothing any more");
        rig.traffic.send(100);
    }
    rig.hold_counters([rig.traffic.sent, 0]);
}

#[test]
fn a_successor_has_a_cache_of_its_own_and_no_packet_is_lost() {
    if !root_or_skip("a_successor_has_a_cache_of_its_own_and_no_packet_is_lost") {
        return;
    }
    let mut rig = Rig::start(&plan(1, 11));
    rig.traffic.send(300);
    for _ in 0..3 {
        let (forwarder, traffic) = (&mut rig.forwarder, &mut rig.traffic);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(traffic.send(1), 11);
                }
            });
            forwarder.take_over(&[]);
            done.store(true, Ordering::Relaxed);
        });
        let before = rig.filtered("cached");
        rig.traffic.send(300);
        assert!(rig.filtered("cached") > before + 200);
        let counters = rig.forwarder.at_rest();
        let counted = rig.filtered("cached") + rig.filtered("taken");
        assert_eq!((counters.sent, counters.unaccounted), (counters.received, 0));
        // What came before the switch of filters the predecessor's counted.
        assert!((counted..=counted + 64).contains(&counters.sent), "{counted}: {counters:?}");
    }
}

/// Data of the rig's flow.
fn flow() -> FlowKey {
    FlowKey {
        source: "10.0.0.2".into(),
        destination: "203.0.113.10".into(),
        protocol: 17,
        source_port: 4000,
        destination_port: 53,
    }
}

#[test]
fn a_plan_that_says_nothing_has_a_cache_where_nothing_is_zero_copy() {
    if !root_or_skip("a_plan_that_says_nothing_has_a_cache_where_nothing_is_zero_copy") {
        return;
    }
    let mut plan = plan(1, 11);
    plan["forwarder"].as_object_mut().unwrap().remove("kernelCache");
    let mut rig = Rig::start(&plan);
    rig.traffic.send(300);
    let (status, cached) = (rig.forwarder.status(), rig.filtered("cached"));
    assert!(!status.devices[0].zero_copy);
    let shown = status.kernel_cache.unwrap();
    assert_eq!((shown.state.as_str(), shown.packets), ("on", cached));
    // One match; two members, of which one gets nothing.
    assert_eq!((shown.entries, shown.targets, shown.targets_refused), (1, 1, 0));
    assert!(shown.entries_max >= 20_000, "{shown:?}");
    let explained = rig.forwarder.explain(flow()).cached.unwrap();
    assert_eq!(explained.queue, 0);
    assert!(explained.idle_ms <= 1000, "{explained:?}");
    let other = FlowKey { source_port: 4001, ..flow() };
    assert_eq!(rig.forwarder.explain(other).cached, None);
}

#[test]
fn off_and_on_take_effect_at_once_and_need_no_restart() {
    if !root_or_skip("off_and_on_take_effect_at_once_and_need_no_restart") {
        return;
    }
    let with = |generation, word: &str| {
        let mut plan = plan(generation, 11);
        plan["forwarder"]["kernelCache"] = json!(format!("KERNEL_CACHE_{word}"));
        plan
    };
    let mut rig = Rig::start(&with(1, "ON"));
    rig.traffic.send(300);
    rig.forwarder.set_plan(&with(2, "OFF")).unwrap();
    let before = rig.filtered("cached");
    rig.traffic.send(300);
    assert_eq!(rig.filtered("cached"), before);
    assert_eq!(rig.forwarder.status().kernel_cache.unwrap().state, "off");
    rig.forwarder.set_plan(&with(3, "AUTO")).unwrap();
    rig.traffic.send(300);
    assert!(rig.filtered("cached") > before + 200);
    assert_eq!(rig.forwarder.status().kernel_cache.unwrap().state, "on");
    rig.hold_counters([rig.traffic.sent, 0]);

    // A start with `off` makes none; a successor by another plan does.
    let mut rig = Rig::start(&with(1, "OFF"));
    rig.forwarder.set_plan(&with(2, "ON")).unwrap();
    let shown = rig.forwarder.status().kernel_cache.unwrap();
    assert_eq!(shown.state, "none");
    assert!(shown.reason.contains("next start or upgrade"), "{shown:?}");
    rig.forwarder.take_over(&[]);
    rig.traffic.send(300);
    assert!(rig.filtered("cached") > 200);
}

#[test]
fn a_backend_that_drains_keeps_its_flows_in_the_kernel() {
    if !root_or_skip("a_backend_that_drains_keeps_its_flows_in_the_kernel") {
        return;
    }
    let mut rig = Rig::start(&plan(1, 11));
    rig.traffic.send(300);
    let mut draining = plan(2, 12);
    draining["groups"][0]["members"][0]["state"] = json!("BACKEND_STATE_DRAINING");
    rig.forwarder.set_plan(&draining).unwrap();
    let before = rig.filtered("cached");
    assert_eq!(rig.traffic.send(300), 11);
    assert!(rig.filtered("cached") > before + 290);
    rig.hold_counters([rig.traffic.sent, 0]);
}

#[test]
fn what_fits_no_longer_is_user_spaces_again() {
    if !root_or_skip("what_fits_no_longer_is_user_spaces_again") {
        return;
    }
    let mut rig = Rig::start(&plan(1, 11));
    rig.traffic.padding = 1000;
    rig.traffic.send(300);
    assert!(rig.filtered("cached") > 200);
    rig.balancer.run("ip link set eth0 mtu 1040");
    // Each packet comes, or the client is told to send less.
    let start = std::time::Instant::now();
    while rig.forwarder.at_rest().replied == 0 {
        assert!(start.elapsed() < Duration::from_secs(2), "the kernel goes on sending");
        rig.traffic.send_without_waiting();
        std::thread::sleep(Duration::from_millis(2));
    }
    let before = rig.filtered("cached");
    // The client has learned the MTU, and sends its datagrams in two pieces: those
    // are never the kernel's.
    rig.traffic.send_without_waiting();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(rig.filtered("cached"), before);
}

#[test]
fn the_cache_works_in_generic_mode() {
    if !root_or_skip("the_cache_works_in_generic_mode") {
        return;
    }
    // The peer's MTU is more than native XDP takes; its own program came before.
    let mut rig = Rig::start_with(&plan(1, 11), |client| {
        client.run("ip link set eth0 mtu 9000");
    });
    assert_eq!(rig.forwarder.status().devices[0].mode, "generic");
    rig.traffic.send(300);
    assert!(rig.filtered("cached") > 200);
    rig.hold_counters([rig.traffic.sent, 0]);
}

#[test]
fn nothing_is_forwarded_by_a_cache_whose_process_was_killed() {
    if !root_or_skip("nothing_is_forwarded_by_a_cache_whose_process_was_killed") {
        return;
    }
    let mut rig = Rig::start(&plan(1, 11));
    rig.traffic.send(300);
    let pid = rustix::process::Pid::from_raw(rig.forwarder.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    while rig.balancer.run("ip link show eth0").contains("xdp") {
        std::thread::sleep(Duration::from_millis(5));
    }
    rig.traffic.send_without_waiting();
    set_socket_timeout(&rig.traffic.backend, Timeout::Recv, Some(Duration::from_millis(200)))
        .unwrap();
    assert!(receive(&rig.traffic.backend, &mut [0; 2048]).is_err(), "it was forwarded");
    set_socket_timeout(&rig.traffic.backend, Timeout::Recv, Some(Duration::from_secs(5))).unwrap();
    rig.forwarder.kill_and_restart();
    rig.confirm();
    rig.traffic.send(300);
    assert!(rig.filtered("cached") > 200);
}

#[test]
fn where_there_can_be_no_cache_user_space_sends_all() {
    if !root_or_skip("where_there_can_be_no_cache_user_space_sends_all") {
        return;
    }
    let mut refused = plan(1, 11);
    refused["forwarder"]["interfaces"][0]["driver"] = json!("DRIVER_AF_PACKET");
    no_cache(Rig::start(&refused));
    // What the kernel would send to a client without a program would be lost.
    no_cache(Rig::start_beside(&plan(1, 11), Vec::new, |_| ()));
}

fn no_cache(mut rig: Rig) {
    rig.traffic.send(300);
    assert_eq!(rig.filtered("cached"), 0);
    assert!(!rig.forwarder.metrics().contains("guideway_kernel_cache_"));
    let shown = rig.forwarder.status().kernel_cache.unwrap();
    assert_eq!(shown.state, "none");
    assert!(!shown.reason.is_empty());
    assert_eq!(rig.forwarder.at_rest().sent, rig.traffic.sent);
}
