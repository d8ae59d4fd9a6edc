//! The kernel flow cache in a running forwarder: one device, IPv4 in GRE, over veth.
//!
//! ```text
//!  client 10.0.0.2, backends 10.0.0.11, 10.0.0.12 ──eth0── eth0 10.0.0.1 balancer
//! ```

mod common;
#[path = "common/forwarder.rs"]
mod program;

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use guideway_forwarder::proto::{CaptureRequest, GetCountersResponse};
use nic::{DeviceConfig, QueueOptions};
use program::Forwarder;
use rustix::fd::OwnedFd;
use rustix::net::AddressFamily;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::{Value, json};
use testnet::{Namespace, link, raw_socket, receive, root_or_skip};

const GRE: u32 = 47;
const PACKETS: u64 = 2_000;
/// Of IPv4, UDP, and what is in it.
const PACKET_BYTES: u64 = 20 + 8 + 8;

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
        "machine": {"name": "lb", "addresses": ["10.0.0.1"]},
        "forwarder": {"interfaces": [{"name": "eth0"}], "kernelCache": "KERNEL_CACHE_ON", "connectionsMax": "10000"},
        "backends": backends,
        "groups": [{"name": "g", "members": members}],
        "services": [{"name": "dns", "vips": [{"address": "203.0.113.10"}], "group": "g", "tableSize": 251}],
    })
}

/// Client, balancer, and what the backends get.
struct Rig {
    forwarder: Forwarder,
    traffic: Traffic,
    _balancer: Namespace,
    _client: Namespace,
}

impl Rig {
    /// Forwards by the plan; the flow's connection is confirmed.
    fn start(plan: &Value) -> Rig {
        // A veth end is woken by what its peer's program sends only where it has a
        // program, too: here a filter that takes nothing. Polling (NAPI, by `gro on`) is
        // not enough.
        let config = DeviceConfig { interface: "eth0".into(), ..DeviceConfig::default() };
        Rig::start_beside(plan, || nic::open(&[config], &QueueOptions::default()).unwrap().0)
    }

    /// The same with these devices opened in the client's namespace.
    fn start_beside(plan: &Value, program: impl FnOnce() -> Vec<nic::Device> + Send) -> Rig {
        let (client, balancer) = (Namespace::new("client"), Namespace::new("lb"));
        link(&client, "eth0", &balancer, "eth0", 1);
        let program = client.inside(program);
        for address in ["10.0.0.2", "10.0.0.11", "10.0.0.12"] {
            client.run(&format!("ip addr add {address}/24 dev eth0"));
        }
        balancer.run("ip addr add 10.0.0.1/24 dev eth0");
        client.run("ip route add 203.0.113.10 via 10.0.0.1");
        let mut forwarder = Forwarder::start(&balancer);
        forwarder.set_plan(plan).unwrap();
        let backend = client.inside(|| raw_socket(AddressFamily::INET, GRE));
        set_socket_timeout(&backend, Timeout::Recv, Some(Duration::from_secs(5))).unwrap();
        let socket = client.inside(|| UdpSocket::bind("10.0.0.2:4000").unwrap());
        let traffic = Traffic { socket, backend, _program: program, sent: 0 };
        let mut rig = Rig { forwarder, traffic, _balancer: balancer, _client: client };
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
        assert_eq!(services, [(sent, sent * PACKET_BYTES)]);
        let members: Vec<_> =
            counters.backends.iter().map(|line| (line.packets, line.bytes)).collect();
        assert_eq!(members, backends.map(|packets| (packets, packets * PACKET_BYTES)));
        let metrics = self.forwarder.metrics();
        assert_eq!(sample(&metrics, "guideway_frames_total{verdict=\"sent\"} "), sent);
        let cached = sample(&metrics, "guideway_kernel_cache_packets_total ");
        assert_eq!(cached + self.filtered("taken"), sent);
        assert_eq!(cached, self.filtered("cached"));
        counters
    }
}

/// One flow, one packet at a time: none is lost in a full ring, and time goes on.
struct Traffic {
    socket: UdpSocket,
    backend: OwnedFd,
    _program: Vec<nic::Device>,
    sent: u64,
}

impl Traffic {
    /// Sends packets, each when the one before has come; the backend that had the last.
    fn send(&mut self, packets: u64) -> u8 {
        let (mut bytes, mut host) = ([0; 2048], 0);
        for _ in 0..packets {
            self.socket.send_to(&self.sent.to_be_bytes(), "203.0.113.10:53").unwrap();
            let received = receive(&self.backend, &mut bytes);
            let length =
                received.unwrap_or_else(|error| panic!("packet {} was lost: {error}", self.sent));
            assert_eq!(bytes[length - 8..length], self.sent.to_be_bytes());
            (self.sent, host) = (self.sent + 1, bytes[19]);
        }
        host
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

#[test]
fn where_there_can_be_no_cache_user_space_sends_all() {
    if !root_or_skip("where_there_can_be_no_cache_user_space_sends_all") {
        return;
    }
    let mut refused = plan(1, 11);
    refused["forwarder"]["interfaces"][0]["driver"] = json!("DRIVER_AF_PACKET");
    no_cache(Rig::start(&refused));
    // What the kernel would send to a client without a program would be lost.
    no_cache(Rig::start_beside(&plan(1, 11), Vec::new));
}

fn no_cache(mut rig: Rig) {
    rig.traffic.send(300);
    assert_eq!(rig.filtered("cached"), 0);
    assert!(!rig.forwarder.metrics().contains("guideway_kernel_cache_"));
    assert_eq!(rig.forwarder.at_rest().sent, rig.traffic.sent);
}
