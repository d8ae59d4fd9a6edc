//! Frames within a VIP's prefix that are to no VIP are returned to the kernel, which must treat
//! them as if they had not been taken.
//!
//! ```text
//!  client 10.0.0.2, .11 ──eth0── 10.0.0.1 balancer, on lo 203.0.113.200 and 2001:db8:a::c8
//!         203.0.113.0/24 and 2001:db8:a::/64 by way of the balancer; VIPs in them: …10
//! ```

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::program::Forwarder;
use guideway_forwarder::proto::GetCountersResponse;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, sendto};
use serde_json::{Value, json};
use testnet::{Namespace, link, raw_socket, receive, root_or_skip};

/// The kernel's, inside VIP prefixes.
const KERNELS: [&str; 2] = ["203.0.113.200", "2001:db8:a::c8"];

struct Net {
    client: Namespace,
    balancer: Namespace,
}

impl Net {
    fn new() -> Net {
        let net = Net { client: Namespace::new("client"), balancer: Namespace::new("lb") };
        link(&net.client, "eth0", &net.balancer, "eth0", 2);
        for host in [2, 11] {
            net.client.run(&format!("ip addr add 10.0.0.{host}/24 dev eth0"));
        }
        net.client.run("ip addr add 2001:db8:0::2/64 dev eth0 nodad");
        net.balancer.run("ip addr add 10.0.0.1/24 dev eth0");
        net.balancer.run("ip addr add 2001:db8:0::1/64 dev eth0 nodad");
        for address in KERNELS {
            net.balancer.run(&format!("ip addr add {address} dev lo"));
        }
        // The strictest that people have: all source addresses are validated.
        for name in ["all", "eth0"] {
            net.balancer.run(&format!("sysctl -qw net.ipv4.conf.{name}.rp_filter=1"));
        }
        net.client.run("ip route add 203.0.113.0/24 via 10.0.0.1");
        net.client.run("ip -6 route add 2001:db8:a::/64 via 2001:db8:0::1");
        net
    }

    /// A megabyte there and back again, to an address of the kernel's.
    fn tcp(&self, address: &str) {
        let address = SocketAddr::new(address.parse().unwrap(), 7000);
        let listener = self.balancer.inside(|| TcpListener::bind(address).unwrap());
        let echo = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut bytes = vec![0; 1 << 20];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        });
        self.client.inside(|| {
            let mut stream =
                TcpStream::connect_timeout(&address, Duration::from_secs(5)).expect("a connection");
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let sent: Vec<u8> = (0..1_u32 << 20).map(|at| (at % 251) as u8).collect();
            stream.write_all(&sent).unwrap();
            let mut received = vec![0; sent.len()];
            stream.read_exact(&mut received).unwrap();
            assert!(received == sent, "what comes back is what was sent");
        });
        echo.join().unwrap();
    }

    /// An echo request, and its reply.
    fn ping(&self, address: &str) {
        let address: IpAddr = address.parse().unwrap();
        let (family, protocol, request, reply) = match address {
            IpAddr::V4(_) => (AddressFamily::INET, 1, 8, 0),
            IpAddr::V6(_) => (AddressFamily::INET6, 58, 128, 129),
        };
        let mut echo = [request, 0, 0, 0, 0, 77, 0, 1, b'p', b'i', b'n', b'g'];
        // Over IPv6 the kernel fills it in.
        let sum = wire::checksum::finish(wire::checksum::sum(&echo));
        echo[2..4].copy_from_slice(&sum.to_be_bytes());
        let socket = self.client.inside(|| raw_socket(family, protocol));
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(3))).unwrap();
        sendto(&socket, &echo, SendFlags::empty(), &SocketAddr::new(address, 0)).unwrap();
        let mut bytes = [0; 256];
        loop {
            let length = receive(&socket, &mut bytes).expect("an answer in time");
            let message = &bytes[if address.is_ipv4() { 20 } else { 0 }..length];
            if message[0] == reply && message[4..] == echo[4..] {
                return;
            }
        }
    }

    fn has_tap(&self) -> bool {
        self.balancer.run("ip -o link").contains("gw-eth0")
    }
}

fn plan(driver: &str) -> Value {
    let vip = |suffix: &str| {
        json!({
            "prefixSuffix": {"prefixGroup": "class-a", "suffix": suffix},
            "protocol": "PROTOCOL_UDP", "ports": [{"first": 53, "last": 53}],
        })
    };
    json!({
        "generation": "1",
        "cluster": {"name": "test", "keyId": "derived"},
        "machine": {"name": "lb", "addresses": ["10.0.0.1", "2001:db8:0::1"]},
        "prefixGroups": [{"name": "class-a", "prefixes": ["203.0.113.0/24", "2001:db8:a::/64"]}],
        "backends": [{"name": "b", "address": "10.0.0.11"}],
        "groups": [{"name": "g", "members": [{"backend": "b", "weight": 1, "state": "BACKEND_STATE_ACTIVE"}]}],
        "services": [{
            "name": "dns",
            "vips": [vip("0.0.0.10"), vip("::10")],
            "group": "g",
        }],
        "forwarder": {
            "connectionsMax": "10000",
            "interfaces": [{"name": "eth0", "driver": driver}],
        },
    })
}

fn dropped(counters: &GetCountersResponse, reason: &str) -> u64 {
    counters.dropped.iter().find(|drop| drop.reason == reason).unwrap().packets
}

/// The thread that hands them over runs behind the workers.
fn until_all_are_taken(forwarder: &mut Forwarder, passed: u64) {
    let lines = [
        format!("guideway_passed_packets_total{{interface=\"eth0\",result=\"taken\"}} {passed}\n"),
        "guideway_passed_packets_total{interface=\"eth0\",result=\"lost\"} 0\n".to_owned(),
        "guideway_tap_up{interface=\"eth0\"} 1\n".to_owned(),
    ];
    let start = Instant::now();
    loop {
        let metrics = forwarder.metrics();
        if lines.iter().all(|line| metrics.contains(line)) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(2), "{lines:?}\n{metrics}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The counters when `sent` packets were sent.
fn until_sent(forwarder: &mut Forwarder, sent: u64) -> GetCountersResponse {
    let start = Instant::now();
    while forwarder.counters().sent < sent {
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", forwarder.counters());
        std::thread::sleep(Duration::from_millis(10));
    }
    forwarder.at_rest()
}

fn the_kernel_gets_back_what_is_its_own(driver: &str, shown_mode: &str, client_mtu: u32) {
    let net = Net::new();
    net.client.run(&format!("ip link set eth0 mtu {client_mtu}"));
    let mut forwarder = Forwarder::start(&net.balancer);
    forwarder.set_plan(&plan(driver)).unwrap();
    let device = forwarder.status().devices.remove(0);
    assert_eq!((device.mode.as_str(), device.tap.as_str()), (shown_mode, "gw-eth0"));
    assert_eq!(device.tap_missing, "");

    for address in KERNELS {
        net.ping(address);
        net.tcp(address);
    }
    // A port without a listener: the kernel says so, as it would without us.
    net.client.inside(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        socket.connect((KERNELS[0].parse::<Ipv4Addr>().unwrap(), 9)).unwrap();
        socket.send(b"?").unwrap();
        let answer = receive(&socket, &mut [0; 8]).unwrap_err();
        assert_eq!(answer.kind(), std::io::ErrorKind::ConnectionRefused);
    });

    let before = forwarder.at_rest();
    // Acknowledgements are few, but the data are not.
    assert!(before.passed > 2 * (1 << 20) / 1500, "{before:?}");
    assert_eq!(dropped(&before, "not_passed"), 0);
    until_all_are_taken(&mut forwarder, before.passed);

    // What is for a VIP goes to the backend and nowhere else.
    net.client.inside(|| {
        let socket = UdpSocket::bind("10.0.0.2:0").unwrap();
        (0..50).for_each(|_| assert_eq!(socket.send_to(b"?", "203.0.113.10:53").unwrap(), 1));
    });
    // Every frame has one verdict, so none of those sent was passed besides.
    // What the connections above still have to say may pass meanwhile.
    let after = until_sent(&mut forwarder, before.sent + 50);
    assert_eq!((after.sent - before.sent, after.unaccounted), (50, 0));

    assert!(net.has_tap());
    forwarder.kill_and_restart();
    net.tcp(KERNELS[0]);
    assert_eq!(forwarder.terminate(), Some(0));
    assert!(!net.has_tap(), "it is gone with the forwarder");
}

#[test]
fn the_kernel_gets_back_what_is_its_own_from_native_af_xdp() {
    if root_or_skip("the_kernel_gets_back_what_is_its_own_from_native_af_xdp") {
        the_kernel_gets_back_what_is_its_own("DRIVER_AF_XDP", "native", 1500);
    }
}

/// A peer with a large MTU makes veth refuse native mode.
#[test]
fn the_kernel_gets_back_what_is_its_own_from_generic_af_xdp() {
    if root_or_skip("the_kernel_gets_back_what_is_its_own_from_generic_af_xdp") {
        the_kernel_gets_back_what_is_its_own("DRIVER_AF_XDP", "generic", 9000);
    }
}

#[test]
fn the_kernel_gets_back_what_is_its_own_from_af_packet() {
    if root_or_skip("the_kernel_gets_back_what_is_its_own_from_af_packet") {
        the_kernel_gets_back_what_is_its_own("DRIVER_AF_PACKET", "-", 1500);
    }
}

/// The TAP has the firewall's and the router's settings of its interface.
#[test]
fn a_tap_is_like_its_interface_and_is_made_anew() {
    if !root_or_skip("a_tap_is_like_its_interface_and_is_made_anew") {
        return;
    }
    let net = Net::new();
    net.balancer.run("sysctl -qw net.ipv4.conf.eth0.forwarding=1");
    let mut forwarder = Forwarder::start(&net.balancer);
    forwarder.set_plan(&plan("DRIVER_AF_XDP")).unwrap();
    let sysctl = |key: &str| net.balancer.run(&format!("sysctl -n net.{key}")).trim().to_owned();
    assert_eq!(sysctl("ipv4.conf.gw-eth0.forwarding"), "1");
    assert_eq!(sysctl("ipv4.conf.gw-eth0.rp_filter"), "2", "strict would drop everything");
    assert_eq!(net.balancer.run("ip -6 addr show dev gw-eth0"), "", "it needs no address");

    net.balancer.run("ip link del gw-eth0");
    net.balancer.run("ip link set eth0 address 02:00:00:00:00:77");
    net.client.run("ip neigh flush all");
    let start = Instant::now();
    // It is there a moment before it has its interface's address.
    let shown = || match net.has_tap() {
        true => net.balancer.run("ip link show gw-eth0"),
        false => "a TAP that is deleted is made anew".to_owned(),
    };
    while !shown().contains("02:00:00:00:00:77") {
        assert!(start.elapsed() < Duration::from_secs(5), "{}", shown());
        std::thread::sleep(Duration::from_millis(50));
    }
    net.tcp(KERNELS[0]);
}

#[test]
fn without_tun_the_rest_works_and_it_is_said() {
    if !root_or_skip("without_tun_the_rest_works_and_it_is_said") {
        return;
    }
    let net = Net::new();
    let mut forwarder = Forwarder::start_without_tun(&net.balancer);
    forwarder.set_plan(&plan("DRIVER_AF_XDP")).unwrap();
    let device = forwarder.status().devices.remove(0);
    assert_eq!(device.tap, "");
    assert!(device.tap_missing.contains("modprobe tun"), "{}", device.tap_missing);
    net.client.inside(|| {
        let socket = UdpSocket::bind("10.0.0.2:0").unwrap();
        (0..20).for_each(|_| assert_eq!(socket.send_to(b"?", (KERNELS[0], 7)).unwrap(), 1));
        (0..50).for_each(|_| assert_eq!(socket.send_to(b"?", "203.0.113.10:53").unwrap(), 1));
    });
    std::thread::sleep(Duration::from_millis(100));
    let counters = forwarder.at_rest();
    assert_eq!((counters.sent, counters.passed, dropped(&counters, "not_passed")), (50, 0, 20));
    assert!(forwarder.metrics().contains("guideway_tap_up{interface=\"eth0\"} 0\n"));
}
