//! Path MTUs between real namespaces: behind the balancer is a router whose link to the backend
//! has a smaller MTU than the balancer's own, as the plan or a route says.
//!
//! ```text
//!  client ──eth0── 10.0.0.1 balancer 10.0.1.1 ──eth1 (1600)── router ──eth1 (1400)── 10.0.2.11 backend
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use crate::program::Forwarder;
use rustix::io::Errno;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, ip_mtu, ipv6_mtu, set_ip_mtu_discover,
    set_ipv6_mtu_discover,
};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use serde_json::{Value, json};
use testnet::{Namespace, link, root_or_skip};

const VIP: &str = "203.0.113.10";
const VIP6: &str = "2001:db8:a::10";
const BACKEND: &str = "10.0.2.11";
const BACKEND6: &str = "2001:db8:2::11";
/// Where the balancer's tunnels come from.
const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
/// Of the link between router and backend.
const NARROW: u32 = 1400;
/// Outer IP header and GRE.
const OVERHEAD_V4: u32 = 24;
const OVERHEAD_V6: u32 = 44;

struct Net {
    client: Namespace,
    balancer: Namespace,
    router: Namespace,
    backend: Namespace,
}

impl Net {
    fn new() -> Net {
        let (client, balancer) = (Namespace::new("client"), Namespace::new("lb"));
        let (router, backend) = (Namespace::new("router"), Namespace::new("backend"));
        link(&client, "eth0", &balancer, "eth0", 1);
        link(&balancer, "eth1", &router, "eth0", 1);
        link(&router, "eth1", &backend, "eth0", 1);
        balancer.run("ip link set eth1 mtu 1600");
        router.run("ip link set eth0 mtu 1600");
        router.run(&format!("ip link set eth1 mtu {NARROW}"));
        backend.run("ip link set eth0 mtu 1600");
        router.run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        for (namespace, device, v4, v6) in [
            (&client, "eth0", "10.0.0.2", "2001:db8:0::2"),
            (&balancer, "eth0", "10.0.0.1", "2001:db8:0::1"),
            (&balancer, "eth1", "10.0.1.1", "2001:db8:1::1"),
            (&router, "eth0", "10.0.1.254", "2001:db8:1::254"),
            (&router, "eth1", "10.0.2.254", "2001:db8:2::254"),
            (&backend, "eth0", BACKEND, BACKEND6),
        ] {
            namespace.run(&format!("ip addr add {v4}/24 dev {device}"));
            namespace.run(&format!("ip addr add {v6}/64 dev {device} nodad"));
        }
        client.run(&format!("ip route add {VIP} via 10.0.0.1"));
        client.run(&format!("ip -6 route add {VIP6} via 2001:db8:0::1"));
        balancer.run("ip route add 10.0.2.0/24 via 10.0.1.254");
        balancer.run("ip -6 route add 2001:db8:2::/64 via 2001:db8:1::254");
        Net { client, balancer, router, backend }
    }

    fn plan(tunnel: Value) -> Value {
        let service = |name: &str, vip: &str, backend: &str| {
            json!({
                "name": name,
                "vips": [{"address": vip, "protocol": "PROTOCOL_UDP", "ports": [{"first": 53, "last": 53}]}],
                "group": backend,
            })
        };
        let group = |backend: &str| {
            let member = json!({"backend": backend, "weight": 1, "state": "BACKEND_STATE_ACTIVE"});
            json!({"name": backend, "members": [member]})
        };
        json!({
            "generation": "1",
            "cluster": {"name": "test", "keyId": "derived"},
            "machine": {"name": "lb", "addresses": ["10.0.1.1", "2001:db8:1::1"]},
            "backends": [{"name": "v4", "address": BACKEND}, {"name": "v6", "address": BACKEND6}],
            "groups": [group("v4"), group("v6")],
            "services": [service("dns", VIP, "v4"), service("dns6", VIP6, "v6")],
            "tunnel": tunnel,
            "forwarder": {
                "connectionsMax": "1000",
                "interfaces": [{"name": "eth0", "driver": "DRIVER_AF_XDP"}, {"name": "eth1", "driver": "DRIVER_AF_XDP"}],
            },
        })
    }

    /// Sends packets as long as the client's link carries, never fragmented,
    /// until its kernel is told of a shorter MTU: that MTU.
    fn discover(&self, vip: &str) -> u32 {
        let vip: IpAddr = vip.parse().unwrap();
        self.client.inside(|| {
            let any = if vip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).unwrap();
            let (headers, start) = (if vip.is_ipv4() { 28 } else { 48 }, Instant::now());
            match vip {
                IpAddr::V4(_) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO).unwrap(),
                IpAddr::V6(_) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO).unwrap(),
            }
            socket.connect(SocketAddr::new(vip, 53)).unwrap();
            loop {
                match socket.send(&vec![0; 1500 - headers]) {
                    Err(error) => {
                        assert_eq!(Errno::from_io_error(&error), Some(Errno::MSGSIZE), "{error}")
                    }
                    Ok(_) => assert!(
                        start.elapsed() < Duration::from_secs(10),
                        "no error says that it is too big"
                    ),
                }
                std::thread::sleep(Duration::from_millis(50));
                let mtu = if vip.is_ipv4() { ip_mtu(&socket) } else { ipv6_mtu(&socket) };
                let mtu = mtu.unwrap();
                if mtu < 1500 {
                    // The longest that fits; the first try may report an
                    // error that came late.
                    let fits = vec![1; mtu as usize - headers];
                    socket.send(&fits).or_else(|_| socket.send(&fits)).unwrap();
                    return mtu;
                }
            }
        })
    }

    /// Bytes that the backend's link has brought.
    fn backend_received(&self) -> u64 {
        let text = self.backend.run("cat /sys/class/net/eth0/statistics/rx_bytes");
        text.trim().parse().unwrap()
    }
}

fn discovers(net: &Net, tunnel: Value, vip: &str, fits: u32) {
    let mut forwarder = Forwarder::start(&net.balancer);
    let answer = forwarder.set_plan(&Net::plan(tunnel)).unwrap();
    assert!(answer.warnings.iter().all(|warning| warning.contains("(MTU 1400,")), "{answer:?}");
    let before = net.backend_received();
    assert_eq!(net.discover(vip), fits);
    let start = Instant::now();
    while net.backend_received() < before + u64::from(NARROW) {
        assert!(start.elapsed() < Duration::from_secs(3), "what fits does not arrive");
        std::thread::sleep(Duration::from_millis(20));
    }
    let metrics = forwarder.metrics();
    assert!(!metrics.contains("guideway_icmp_too_big_total{direction=\"sent\"} 0\n"), "{metrics}");
    assert!(metrics.contains("guideway_unaccounted_packets 0\n"));
}

#[test]
fn the_client_is_told_what_fits_a_narrow_fabric() {
    if root_or_skip("the_client_is_told_what_fits_a_narrow_fabric") {
        discovers(&Net::new(), json!({ "mtu": NARROW }), VIP, NARROW - OVERHEAD_V4);
    }
}

#[test]
fn the_client_is_told_what_fits_a_narrow_fabric_over_ipv6() {
    if root_or_skip("the_client_is_told_what_fits_a_narrow_fabric_over_ipv6") {
        discovers(&Net::new(), json!({ "mtu": NARROW }), VIP6, NARROW - OVERHEAD_V6);
    }
}

#[test]
fn the_client_is_told_what_fits_the_route_to_the_backend() {
    if root_or_skip("the_client_is_told_what_fits_the_route_to_the_backend") {
        let net = Net::new();
        net.balancer.run(&format!("ip route replace 10.0.2.0/24 via 10.0.1.254 mtu {NARROW}"));
        discovers(&net, json!({}), VIP, NARROW - OVERHEAD_V4);
    }
}

#[test]
fn an_error_about_a_tunnel_is_counted_and_changes_nothing() {
    if !root_or_skip("an_error_about_a_tunnel_is_counted_and_changes_nothing") {
        return;
    }
    let net = Net::new();
    let mut forwarder = Forwarder::start(&net.balancer);
    forwarder.set_plan(&Net::plan(json!({}))).unwrap();
    let start = Instant::now();
    let socket = net.client.inside(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO).unwrap();
        socket.connect((VIP, 53)).unwrap();
        socket
    });
    let send = || socket.send(&[0; 1500 - 28]).expect("the client is not told of an MTU");
    let seen = loop {
        assert!(start.elapsed() < Duration::from_secs(10), "no error is counted");
        send();
        std::thread::sleep(Duration::from_millis(50));
        if let Some(seen) = forwarder.status().tunnel_errors {
            break seen;
        }
    };
    send();
    let found = (seen.from.as_str(), seen.about.as_str(), seen.mtu);
    assert_eq!(found, ("10.0.1.254", "v4", NARROW));
    let metrics = forwarder.metrics();
    assert!(metrics.contains("guideway_icmp_too_big_total{direction=\"sent\"} 0\n"), "{metrics}");
}

/// The message with its checksum.
fn icmp(mut message: Vec<u8>) -> Vec<u8> {
    let sum = wire::checksum::finish(wire::checksum::sum(&message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// "Fragmentation needed" about a packet that was never sent.
fn forged_error() -> Vec<u8> {
    let mut quoted = vec![0x45, 0, 5, 220, 0, 0, 0x40, 0, 64, 47, 0, 0];
    quoted.extend(OWN.octets());
    quoted.extend(BACKEND.parse::<Ipv4Addr>().unwrap().octets());
    quoted.extend([0; 8]);
    icmp([vec![3, 4, 0, 0, 0, 0, 5, 100], quoted].concat())
}

#[test]
fn a_flood_of_echo_replies_hides_no_error() {
    const ERRORS: usize = 10;
    if !root_or_skip("a_flood_of_echo_replies_hides_no_error") {
        return;
    }
    let net = Net::new();
    let mut forwarder = Forwarder::start(&net.balancer);
    forwarder.set_plan(&Net::plan(json!({}))).unwrap();
    let received = format!("guideway_icmp_too_big_total{{direction=\"received\"}} {ERRORS}\n");
    net.router.inside(|| {
        let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).unwrap();
        let to = SocketAddrV4::new(OWN, 0);
        let send = |message: &[u8]| sendto(&raw, message, SendFlags::empty(), &to).unwrap();
        let reply = icmp(vec![0; 64]);
        for _ in 0..ERRORS {
            // Ten times what a socket holds by default.
            for _ in 0..3000 {
                send(&reply);
            }
            send(&forged_error());
        }
    });
    let start = Instant::now();
    while !forwarder.metrics().contains(&received) {
        assert!(start.elapsed() < Duration::from_secs(5), "{}", forwarder.metrics());
        std::thread::sleep(Duration::from_millis(20));
    }
}
