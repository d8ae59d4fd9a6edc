//! The namespaces, and one flow through them.

use std::net::UdpSocket;
use std::time::Duration;

use guideway_forwarder::proto::{FlowKey, GetCountersResponse};
use nic::{DeviceConfig, QueueOptions};
use rustix::fd::OwnedFd;
use rustix::net::AddressFamily;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::{Value, json};
use testnet::{Namespace, link, raw_socket, receive};

use crate::program::Forwarder;

pub const GRE: u32 = 47;
const IPV4: u32 = 4;
const IPV6: u32 = 41;
const UDP: u32 = 17;

/// A balancer whose one flow is sent to the backends of that number that are active.
pub fn plan(generation: u64, active: u8) -> Value {
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
pub struct Families {
    is_inner_v6: bool,
    is_outer_v6: bool,
}

impl Families {
    pub fn of(plan: &Value) -> Families {
        let has_colon = |text: &Value| text.as_str().unwrap().contains(':');
        Families {
            is_inner_v6: has_colon(&plan["services"][0]["vips"][0]["address"]),
            is_outer_v6: has_colon(&plan["backends"][0]["address"]),
        }
    }

    /// The raw socket of backends, which gets packets of the plan's tunnels.
    pub fn backend(self, plan: &Value) -> OwnedFd {
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
    pub fn flow(self) -> [&'static str; 2] {
        match self.is_inner_v6 {
            true => ["[fd00::2]:4000", "[2001:db8:f::10]:53"],
            false => ["10.0.0.2:4000", "203.0.113.10:53"],
        }
    }

    /// Of IP, UDP, and the number in it.
    pub fn packet_bytes(self) -> u64 {
        (if self.is_inner_v6 { 40 } else { 20 }) + 8 + 8
    }
}

/// Client, balancer, and what the backends get.
pub struct Rig {
    pub forwarder: Forwarder,
    pub traffic: Traffic,
    pub balancer: Namespace,
    /// The client's is the first; the last has the backends.
    _others: Vec<Namespace>,
}

impl Rig {
    /// Forwards by the plan; the flow's connection is confirmed.
    pub fn start(plan: &Value) -> Rig {
        // A veth end is woken by what its peer's program sends only where it has a
        // program, too: here a filter that takes nothing. Polling (NAPI, by `gro on`) is
        // not enough.
        Rig::start_with(plan, |_| ())
    }

    /// The same with the client's end changed, after its program was attached.
    pub fn start_with(plan: &Value, change: impl FnOnce(&Namespace)) -> Rig {
        Rig::start_beside(plan, program, change)
    }

    /// The backend behind a link of its own, whose end has these devices opened; the
    /// client's end changed, after its program was attached.
    pub fn start_over_two_links(
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
        Rig::forwarding(plan, balancer, vec![client, backend], program)
    }

    /// The same with these devices opened in the client's namespace.
    pub fn start_beside(
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
        Rig::forwarding(plan, balancer, vec![client], program)
    }

    /// Between the client, the first of these, and the backends of the last.
    fn forwarding(
        plan: &Value,
        balancer: Namespace,
        others: Vec<Namespace>,
        program: Vec<nic::Device>,
    ) -> Rig {
        let mut forwarder = Forwarder::start(&balancer);
        forwarder.set_plan(plan).unwrap();
        let families = Families::of(plan);
        let socket = others[0].inside(|| UdpSocket::bind(families.flow()[0]).unwrap());
        let backend = others[others.len() - 1].inside(|| families.backend(plan));
        let traffic = Traffic { families, socket, backend, _program: program, sent: 0, padding: 0 };
        let mut rig = Rig { forwarder, traffic, balancer, _others: others };
        rig.confirm();
        rig
    }

    /// A connection is confirmed by a packet at least a tick after its first.
    pub fn confirm(&mut self) {
        for _ in 0..10 {
            self.traffic.send(1);
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Packets at the filter of the client's interface, of this decision.
    pub fn filtered(&mut self, decision: &str) -> u64 {
        filtered(&self.forwarder.metrics(), "eth0", decision)
    }

    /// Holds all that is counted to the packets that were sent: to those backends that
    /// many. What was answered.
    pub fn hold_counters(&mut self, backends: [u64; 2]) -> GetCountersResponse {
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
pub fn program() -> Vec<nic::Device> {
    programs(&["eth0"])
}

/// The same on these interfaces.
pub fn programs(interfaces: &[&str]) -> Vec<nic::Device> {
    let config = |name: &&str| DeviceConfig { interface: name.to_string(), ..Default::default() };
    let configs: Vec<DeviceConfig> = interfaces.iter().map(config).collect();
    nic::open(&configs, &QueueOptions::default()).unwrap().0
}

/// One flow, one packet at a time: none is lost in a full ring, and time goes on.
pub struct Traffic {
    families: Families,
    socket: UdpSocket,
    pub backend: OwnedFd,
    /// At the other ends of the balancer's links.
    _program: Vec<nic::Device>,
    pub sent: u64,
    /// Bytes of each packet in front of its number.
    pub padding: usize,
}

impl Traffic {
    /// Sends packets, each when the one before has come; the backend that had the last,
    /// if its address is of IPv4: the sockets of IPv6 do not say.
    pub fn send(&mut self, packets: u64) -> u8 {
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
    pub fn send_without_waiting(&self) {
        // Its error is that of a packet before.
        let _ = self.socket.send_to(&self.datagram(), self.families.flow()[1]);
    }

    pub fn datagram(&self) -> Vec<u8> {
        [vec![0; self.padding], self.sent.to_be_bytes().to_vec()].concat()
    }
}

/// Packets at the filter of an interface, of this decision.
pub fn filtered(metrics: &str, interface: &str, decision: &str) -> u64 {
    let labels = format!("interface=\"{interface}\",decision=\"{decision}\"");
    sample(metrics, &format!("guideway_filter_packets_total{{{labels}}} "))
}

pub fn sample(metrics: &str, name: &str) -> u64 {
    let line = metrics.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit(' ').next()).expect("the metric is there");
    value.parse::<f64>().unwrap() as u64
}

/// Data of the rig's flow.
pub fn flow() -> FlowKey {
    FlowKey {
        source: "10.0.0.2".into(),
        destination: "203.0.113.10".into(),
        protocol: 17,
        source_port: 4000,
        destination_port: 53,
    }
}
