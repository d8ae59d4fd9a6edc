//! The controller's health checks through tunnels: the kernel passes them to `gw-probe`, they
//! reach the backend named by their source port as a client's packet would, and answers from
//! the VIP to the machine's address are accepted.
//!
//! ```text
//!  client ──eth0── balancer 10.0.1.1, fd00:1::1 ──eth1── 10.0.1.11 (b1), .12 (b2) backend, on lo the VIPs
//! ```

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::common::Net;
use crate::program::Forwarder;
use nic::{Interface, LinkSender};
use rustix::fd::OwnedFd;
use rustix::net::AddressFamily;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::{Value, json};
use socket2::{Domain, SockRef, Socket, Type};
use testnet::{raw_socket, receive, root_or_skip};

const MARK: u32 = 26_487;
const VIP: &str = "203.0.113.10:53";
const VIP6: &str = "[2001:db8:a::10]:53";

fn net() -> Net {
    let net = Net::new(2, 11..=12);
    net.balancer.run("ip addr add fd00:1::1/64 dev eth1 nodad");
    for address in ["203.0.113.10", "2001:db8:a::10"] {
        net.backend.run(&format!("ip addr add {address} dev lo"));
    }
    net.backend.run("ip addr add fd00:1::11/64 dev eth0 nodad");
    for name in ["all", "eth0"] {
        net.backend.run(&format!("sysctl -qw net.ipv4.conf.{name}.rp_filter=0"));
    }
    net
}

fn plan(generation: u32, assigned: &[(u32, &str, &str)]) -> Value {
    let service = |name: &str, vip: &str, encap: &str| {
        json!({
            "name": name, "group": "g", "encap": encap,
            "vips": [{"address": vip, "protocol": "PROTOCOL_UDP", "ports": [{"first": 53, "last": 53}]}],
        })
    };
    let assigned: Vec<Value> = assigned
        .iter()
        .map(|(port, backend, encap)| json!({"port": port, "backend": backend, "encap": encap}))
        .collect();
    json!({
        "generation": generation.to_string(),
        "cluster": {"name": "test", "keyId": "derived"},
        "machine": {"name": "lb", "addresses": ["10.0.1.1", "fd00:1::1"]},
        "backends": [
            {"name": "b1", "address": "10.0.1.11"},
            {"name": "b2", "address": "10.0.1.12"},
            {"name": "b9", "address": "10.0.1.99"},
        ],
        // Clients' packets all go to b1.
        "groups": [{"name": "g", "members": [
            {"backend": "b1", "weight": 1, "state": "BACKEND_STATE_ACTIVE"},
            {"backend": "b2", "weight": 1, "state": "BACKEND_STATE_DOWN"},
            {"backend": "b9", "weight": 1, "state": "BACKEND_STATE_DOWN"},
        ]}],
        "services": [
            service("dns", "203.0.113.10", "ENCAP_GRE"),
            service("dns6", "2001:db8:a::10", "ENCAP_GRE"),
            service("gue", "203.0.113.20", "ENCAP_GUE"),
        ],
        "probing": {"ports": {"first": 20000, "last": 20009}, "assigned": assigned},
        "forwarder": {
            "connectionsMax": "10000",
            "interfaces": [
                {"name": "eth0", "driver": "DRIVER_AF_XDP"},
                {"name": "eth1", "driver": "DRIVER_AF_XDP"},
            ],
        },
    })
}

const ASSIGNED: [(u32, &str, &str); 4] = [
    (20_000, "b1", "ENCAP_GRE"),
    (20_001, "b2", "ENCAP_GRE"),
    (20_002, "b1", "ENCAP_GUE"),
    (20_003, "b9", "ENCAP_GRE"),
];

/// A socket as the controller's for probes, in the balancer.
fn prober(net: &Net, port: u16, vip: &str) -> UdpSocket {
    let socket = unmarked(net, port, vip);
    SockRef::from(&socket).set_mark(MARK).unwrap();
    socket
}

/// The same, but as packets of the kernel's that have no socket.
fn unmarked(net: &Net, port: u16, vip: &str) -> UdpSocket {
    let vip: SocketAddr = vip.parse().unwrap();
    let source = if vip.is_ipv4() { "10.0.1.1" } else { "fd00:1::1" };
    let source = SocketAddr::new(source.parse().unwrap(), port);
    net.balancer.inside(|| {
        let socket = Socket::new(Domain::for_address(vip), Type::DGRAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&source.into()).unwrap();
        socket.connect(&vip.into()).unwrap();
        let socket = UdpSocket::from(socket);
        socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        socket
    })
}

/// Hears what tunnels of that protocol bring to the backend: IPv4 packets.
fn tunnel_end(net: &Net, protocol: u32) -> OwnedFd {
    let socket = net.backend.inside(|| raw_socket(AddressFamily::INET, protocol));
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(3))).unwrap();
    socket
}

fn next(end: &OwnedFd) -> Vec<u8> {
    let mut bytes = [0; 2048];
    let length = receive(end, &mut bytes).expect("a packet in time");
    bytes[..length].to_vec()
}

fn destination(packet: &[u8]) -> String {
    format!("{}.{}.{}.{}", packet[16], packet[17], packet[18], packet[19])
}

fn count(forwarder: &mut Forwarder, result: &str) -> u64 {
    let line = format!("guideway_tunnel_probe_packets_total{{result=\"{result}\"}} ");
    let metrics = forwarder.metrics();
    let found = metrics.lines().find_map(|at| at.strip_prefix(&line));
    found.unwrap_or_else(|| panic!("{line}in\n{metrics}")).parse().unwrap()
}

/// The thread that counts runs beside.
fn until_counted(forwarder: &mut Forwarder, result: &str, expected: u64) {
    let start = Instant::now();
    while count(forwarder, result) != expected {
        assert!(start.elapsed() < Duration::from_secs(3), "{result}: {}", forwarder.metrics());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A client's packet that is the probe's, bit by bit.
fn send_as_client(net: &Net, packet: &[u8]) {
    let to = net.balancer.inside(|| Interface::find("eth0").unwrap().mac);
    let ether_type: [u8; 2] = if packet[0] >> 4 == 4 { [0x08, 0] } else { [0x86, 0xdd] };
    let frame = [&to.0[..], &[2; 6], &ether_type, packet].concat();
    net.client.inside(|| {
        let index = Interface::find("eth0").unwrap().index;
        LinkSender::open(index).unwrap().send(&frame).unwrap();
    });
}

#[test]
fn a_probe_reaches_the_backend_of_its_port_as_a_clients_packet_would() {
    if !root_or_skip("a_probe_reaches_the_backend_of_its_port_as_a_clients_packet_would") {
        return;
    }
    let net = net();
    let mut forwarder = Forwarder::start(&net.balancer);
    let answer = forwarder.set_plan(&plan(1, &ASSIGNED)).unwrap();
    assert!(answer.warnings.iter().all(|warning| !warning.contains("health")), "{answer:?}");
    let device = forwarder.status().probe_device.expect("the plan has probes");
    assert_eq!((device.name.as_str(), device.problem.as_str()), ("gw-probe", ""));

    // Bytes behind the outer IPv4 header: GRE has 4, GUE a UDP header and 4.
    for (vip, port, protocol, overhead) in
        [(VIP, 20_000, 47, 24), (VIP6, 20_000, 47, 24), ("203.0.113.20:53", 20_002, 17, 32)]
    {
        let end = tunnel_end(&net, protocol);
        prober(&net, port, vip).send(b"are you there?").unwrap();
        let probe = next(&end);
        assert_eq!(destination(&probe), "10.0.1.11");
        assert!(probe.ends_with(b"are you there?"));
        send_as_client(&net, &probe[overhead..]);
        assert_eq!(next(&end), probe, "{vip}: what traffic's packet looks like");
    }

    let end = tunnel_end(&net, 47);
    unmarked(&net, 20_000, VIP6).send(b"a reset, say").unwrap();
    assert!(next(&end).ends_with(b"a reset, say"), "it is no traffic either");
    prober(&net, 20_001, VIP).send(b"and you?").unwrap();
    assert_eq!(destination(&next(&end)), "10.0.1.12", "though no client's packet goes there");
    until_counted(&mut forwarder, "sent", 5);
    let totals = forwarder.at_rest();
    assert_eq!((totals.sent, totals.unaccounted), (3, 0), "probes are none of traffic's packets");
}

#[test]
fn what_is_no_probe_is_dropped_and_counted() {
    if !root_or_skip("what_is_no_probe_is_dropped_and_counted") {
        return;
    }
    let net = net();
    let mut forwarder = Forwarder::start(&net.balancer);
    forwarder.set_plan(&plan(1, &ASSIGNED)).unwrap();
    let end = tunnel_end(&net, 47);
    prober(&net, 20_008, VIP).send(b"no backend's port").unwrap();
    until_counted(&mut forwarder, "port_unassigned", 1);
    prober(&net, 20_000, "192.0.2.1:53").send(b"no VIP").unwrap();
    until_counted(&mut forwarder, "no_probe", 1);
    prober(&net, 20_000, VIP).send(&[0; 3000]).unwrap();
    until_counted(&mut forwarder, "no_probe", 4);
    prober(&net, 20_003, VIP).send(b"b9 has no neighbour").unwrap();
    until_counted(&mut forwarder, "no_neighbour", 1);
    net.balancer.inside(|| {
        // An address that is not the machine's: its port would name a backend.
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        socket.set_mark(MARK).unwrap();
        let source: SocketAddr = "10.0.0.1:20000".parse().unwrap();
        socket.bind(&source.into()).unwrap();
        let vip: SocketAddr = VIP.parse().unwrap();
        socket.send_to(b"spoofed", &vip.into()).unwrap();
    });
    until_counted(&mut forwarder, "no_probe", 5);
    assert_eq!(count(&mut forwarder, "sent"), 0);
    set_socket_timeout(&end, Timeout::Recv, Some(Duration::from_millis(50))).unwrap();
    assert!(receive(&end, &mut [0; 64]).is_err(), "none of them reached a backend");
}

/// Sources of answers are VIPs, whose route is another one than the answers'.
#[test]
fn answers_come_whatever_rp_filter_and_routes_of_vips() {
    if !root_or_skip("answers_come_whatever_rp_filter_and_routes_of_vips") {
        return;
    }
    let net = net();
    let mut forwarder = Forwarder::start(&net.balancer);
    forwarder.set_plan(&plan(1, &ASSIGNED)).unwrap();
    let answers = net.backend.inside(|| [VIP, VIP6].map(|vip| UdpSocket::bind(vip).unwrap()));
    for blackhole in [false, true] {
        if blackhole {
            net.balancer.run("ip route add blackhole 203.0.113.0/24");
            net.balancer.run("ip -6 route add blackhole 2001:db8:a::/48");
        }
        for rp_filter in 0..=2 {
            for name in ["all", "eth0", "eth1"] {
                net.balancer.run(&format!("sysctl -qw net.ipv4.conf.{name}.rp_filter={rp_filter}"));
            }
            for ((vip, source), from) in
                [(VIP, "10.0.1.1:20000"), (VIP6, "[fd00:1::1]:20000")].into_iter().zip(&answers)
            {
                let end = tunnel_end(&net, 47);
                let prober = prober(&net, 20_000, vip);
                prober.send(b"ping").expect("a way to the VIP");
                assert!(next(&end).ends_with(b"ping"));
                from.send_to(b"pong", source).unwrap();
                let mut bytes = [0; 16];
                let got = receive(&prober, &mut bytes);
                let words = format!("{vip}: blackhole {blackhole}, rp_filter {rp_filter}");
                assert_eq!(got.unwrap_or_else(|error| panic!("{words}: {error}")), 4);
            }
        }
    }
}

/// As its resets of probes' connections are.
#[test]
fn what_the_kernel_sends_without_a_socket_does_not_reach_the_vips_owner() {
    if !root_or_skip("what_the_kernel_sends_without_a_socket_does_not_reach_the_vips_owner") {
        return;
    }
    let net = net(); // whose backend answers ARP for the VIP, as an owner does
    let mut forwarder = Forwarder::start(&net.balancer);
    forwarder.set_plan(&plan(1, &ASSIGNED)).unwrap();
    net.balancer.run("ip route add 203.0.113.0/24 dev eth1");
    let owner = net.backend.inside(|| UdpSocket::bind(VIP).unwrap());
    owner.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    for (port, words) in [(20_000, "a reset"), (30_000, "a client's")] {
        unmarked(&net, port, VIP).send(words.as_bytes()).unwrap();
    }
    let mut bytes = [0; 16];
    let (length, _) = owner.recv_from(&mut bytes).unwrap();
    assert_eq!(&bytes[..length], b"a client's");
}

#[test]
fn the_device_and_its_rules_are_made_anew_and_go_on_with_a_successor() {
    if !root_or_skip("the_device_and_its_rules_are_made_anew_and_go_on_with_a_successor") {
        return;
    }
    let net = net();
    let mut forwarder = Forwarder::start(&net.balancer);
    forwarder.set_plan(&plan(1, &ASSIGNED)).unwrap();
    let index = || net.balancer.run("cat /sys/class/net/gw-probe/ifindex");
    let reaches = |words: &str| {
        let end = tunnel_end(&net, 47);
        prober(&net, 20_001, VIP).send(words.as_bytes()).unwrap();
        assert!(next(&end).ends_with(words.as_bytes()));
    };
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(5), "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    reaches("first");

    // As a network manager does that does not know them.
    net.balancer.run("ip rule del pref 26487");
    net.balancer.run("ip rule del pref 26488");
    let rules = || net.balancer.run("ip rule show");
    until("rules", &|| ["26487:", "26488:"].iter().all(|rule| rules().contains(rule)));
    reaches("with rules");
    net.balancer.run("ip link del gw-probe");
    until("device", &|| {
        net.balancer.run("ip -o link").contains("gw-probe")
            && net.balancer.run("ip route show table 26487").contains("dev gw-probe")
    });
    reaches("by another device");

    let before = index();
    forwarder.take_over(&[]);
    assert_eq!(index(), before, "the successor has the same device");
    reaches("after a take-over");

    // Without probes in the plan nothing is left of it all.
    let mut without = plan(2, &[]);
    without.as_object_mut().unwrap().remove("probing");
    forwarder.set_plan(&without).unwrap();
    assert!(!net.balancer.run("ip -o link").contains("gw-probe"));
    assert!(!rules().contains("2648"), "{}", rules());
    assert!(forwarder.status().probe_device.is_none());

    // A dead forwarder lets no probe out by another way.
    forwarder.set_plan(&plan(3, &ASSIGNED)).unwrap();
    reaches("again");
    forwarder.terminate();
    net.balancer.run("ip route add default via 10.0.0.2");
    net.balancer.inside(|| {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        socket.set_mark(MARK).unwrap();
        let vip: SocketAddr = VIP.parse().unwrap();
        let refused = socket.send_to(b"?", &vip.into()).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::HostUnreachable);
    });
}

/// A plan makes it where the thread could not: probes that the kernel hands to it are
/// not to wait until the thread cares for the device the next time, a second later.
#[test]
fn a_device_that_another_thread_made_is_read_at_once() {
    if !root_or_skip("a_device_that_another_thread_made_is_read_at_once") {
        return;
    }
    let net = net();
    let mut forwarder = Forwarder::start(&net.balancer);
    net.balancer.run("ip link add gw-probe type veth peer name other");
    forwarder.set_plan(&plan(1, &ASSIGNED)).unwrap();
    let problem = forwarder.status().probe_device.expect("probes").problem;
    assert!(!problem.is_empty(), "the name is taken");

    net.balancer.run("ip link del gw-probe");
    forwarder.set_plan(&plan(2, &ASSIGNED)).unwrap();
    let end = tunnel_end(&net, 47);
    let sent = Instant::now();
    prober(&net, 20_001, VIP).send(b"at once").unwrap();
    assert!(next(&end).ends_with(b"at once"));
    assert!(sent.elapsed() < Duration::from_millis(400), "{:?}, a probe's timeout", sent.elapsed());
}

#[test]
fn without_tun_the_plan_is_served_and_it_is_said() {
    if !root_or_skip("without_tun_the_plan_is_served_and_it_is_said") {
        return;
    }
    let net = net();
    let mut forwarder = Forwarder::start_without_tun(&net.balancer);
    let answer = forwarder.set_plan(&plan(1, &ASSIGNED)).unwrap();
    let said = answer.warnings.iter().any(|warning| {
        warning.contains("health checks through the tunnels") && warning.contains("modprobe tun")
    });
    assert!(said, "{answer:?}");
    let device = forwarder.status().probe_device.expect("the plan has probes");
    assert!(device.problem.contains("modprobe tun"), "{}", device.problem);
    assert!(forwarder.metrics().contains("guideway_tunnel_probe_device_up 0\n"));
}
