//! Packets redirected by another load balancer are answered through a router, not through that
//! load balancer, which does not forward.
//!
//! ```text
//!  router 10.0.0.2, on lo the client 192.0.2.7 ──eth0── 10.0.0.1 balancer 10.0.1.1 ──eth1── 10.0.1.2 peer
//! ```

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::program::Forwarder;
use etherparse::PacketBuilder;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, sendto};
use serde_json::{Value, json};
use testnet::{Namespace, link, raw_socket, receive, root_or_skip};

struct Net {
    router: Namespace,
    balancer: Namespace,
    peer: Namespace,
}

impl Net {
    fn new() -> Net {
        let net = Net {
            router: Namespace::new("router"),
            balancer: Namespace::new("lb"),
            peer: Namespace::new("peer"),
        };
        link(&net.router, "eth0", &net.balancer, "eth0", 2);
        link(&net.balancer, "eth1", &net.peer, "eth0", 2);
        for (namespace, address, device) in [
            (&net.router, "10.0.0.2/24", "eth0"),
            (&net.router, "2001:db8:0::2/64", "eth0"),
            (&net.router, "192.0.2.7/32", "lo"),
            (&net.router, "2001:db8:c::7/128", "lo"),
            (&net.balancer, "10.0.0.1/24", "eth0"),
            (&net.balancer, "2001:db8:0::1/64", "eth0"),
            (&net.balancer, "10.0.1.1/24", "eth1"),
            (&net.balancer, "2001:db8:1::1/64", "eth1"),
            (&net.peer, "10.0.1.2/24", "eth0"),
            (&net.peer, "2001:db8:1::2/64", "eth0"),
        ] {
            namespace.run(&format!("ip addr add {address} dev {device}"));
        }
        // The answers' sources are the VIP's: the receiver does not validate them here.
        for name in ["all", "eth0"] {
            net.router.run(&format!("sysctl -qw net.ipv4.conf.{name}.rp_filter=0"));
        }
        net
    }

    /// The peer redirects an echo request from the client to the VIP; true if
    /// its reply reaches the router that the client is behind.
    fn is_answered(&self, vip: &str, client: &str) -> bool {
        let (vip, client): (IpAddr, IpAddr) = (vip.parse().unwrap(), client.parse().unwrap());
        let (outer, own) = match vip {
            IpAddr::V4(_) => (AddressFamily::INET, "10.0.1.1"),
            IpAddr::V6(_) => (AddressFamily::INET6, "2001:db8:1::1"),
        };
        let listener = self.router.inside(|| raw_socket(outer, if vip.is_ipv4() { 1 } else { 58 }));
        set_socket_timeout(&listener, Timeout::Recv, Some(Duration::from_millis(100))).unwrap();
        let sender = self.peer.inside(|| raw_socket(outer, 47));
        let to = SocketAddr::new(own.parse().unwrap(), 0);
        sendto(&sender, &redirected_echo(vip, client), SendFlags::empty(), &to).unwrap();
        let start = Instant::now();
        let mut bytes = [0; 256];
        while start.elapsed() < Duration::from_secs(1) {
            if let Ok(length) = receive(&listener, &mut bytes)
                && bytes[..length].ends_with(b"ways back")
            {
                return true;
            }
        }
        false
    }
}

/// GRE that permits one further encapsulation, and in it the request.
fn redirected_echo(vip: IpAddr, client: IpAddr) -> Vec<u8> {
    let mut packet = Vec::new();
    let gre = match (client, vip) {
        (IpAddr::V4(client), IpAddr::V4(vip)) => {
            let ip = PacketBuilder::ipv4(client.octets(), vip.octets(), 60);
            ip.icmpv4_echo_request(7, 1).write(&mut packet, b"ways back").unwrap();
            [1, 0, 0x08, 0x00]
        }
        (IpAddr::V6(client), IpAddr::V6(vip)) => {
            let ip = PacketBuilder::ipv6(client.octets(), vip.octets(), 60);
            ip.icmpv6_echo_request(7, 1).write(&mut packet, b"ways back").unwrap();
            [1, 0, 0x86, 0xdd]
        }
        _ => unreachable!("one family"),
    };
    [&gre[..], &packet].concat()
}

fn plan(generation: u64, routers: &[&str]) -> Value {
    json!({
        "generation": generation.to_string(),
        "cluster": {"name": "test", "keyId": "derived"},
        "machine": {
            "name": "lb-1", "addresses": ["10.0.1.1", "2001:db8:1::1"], "routers": routers,
        },
        "peers": [{"name": "lb-2", "addresses": ["10.0.1.2", "2001:db8:1::2"], "healthy": true}],
        "backends": [{"name": "b", "address": "10.0.1.2"}],
        "groups": [{"name": "g", "members": [{"backend": "b", "weight": 1, "state": "BACKEND_STATE_ACTIVE"}]}],
        "services": [{
            "name": "dns",
            "vips": [{"address": "203.0.113.10"}, {"address": "2001:db8:a::10"}],
            "group": "g",
        }],
        "forwarder": {
            "connectionsMax": "10000",
            "interfaces": [
                {"name": "eth0", "driver": "DRIVER_AF_XDP"},
                {"name": "eth1", "driver": "DRIVER_AF_XDP"},
            ],
        },
    })
}

/// Waits until the kernel knows the router's hardware address.
fn becomes_answered(net: &Net, vip: &str, client: &str) -> bool {
    (0..5).any(|_| net.is_answered(vip, client))
}

#[test]
fn a_peers_packets_are_answered_by_way_of_a_router() {
    if !root_or_skip("a_peers_packets_are_answered_by_way_of_a_router") {
        return;
    }
    let net = Net::new();
    let mut forwarder = Forwarder::start(&net.balancer);
    let flows = [("203.0.113.10", "192.0.2.7"), ("2001:db8:a::10", "2001:db8:c::7")];

    // No router to send answers by: they go back to the peer.
    forwarder.set_plan(&plan(1, &[])).unwrap();
    assert!(!net.is_answered(flows[0].0, flows[0].1));

    // The default route, once there is one.
    net.balancer.run("ip route add default via 10.0.0.2");
    for (vip, client) in flows {
        assert!(becomes_answered(&net, vip, client), "{vip}: a router forwards both families");
    }
    net.balancer.run("ip route del default via 10.0.0.2");
    std::thread::sleep(Duration::from_millis(100));
    assert!(!net.is_answered(flows[0].0, flows[0].1));

    // The routers that the plan names.
    forwarder.set_plan(&plan(2, &["10.0.0.99", "10.0.0.2"])).unwrap();
    for (vip, client) in flows {
        assert!(becomes_answered(&net, vip, client), "{vip}: the first router is not there");
    }
    let replied = forwarder.counters().replied;
    assert!(replied >= 6, "{replied}");
}

#[test]
fn a_router_that_is_no_address_is_refused_by_name() {
    if !root_or_skip("a_router_that_is_no_address_is_refused_by_name") {
        return;
    }
    let net = Net::new();
    let mut forwarder = Forwarder::start(&net.balancer);
    let refusal = forwarder.set_plan(&plan(1, &["10.0.0.2", "router"])).unwrap_err();
    assert!(refusal.message().contains("machine.routers[1]"), "{refusal}");
}
