//! Code shared by the tests in namespaces.

use testnet::{Namespace, link};

/// ```text
///  client 10.0.0.2 ──eth0── 10.0.0.1 balancer 10.0.1.1 ──eth1── 10.0.1.11, .12, … backend
/// ```
/// Room for tunnels behind the balancer; both its links have queues.
pub struct Net {
    pub client: Namespace,
    pub balancer: Namespace,
    pub backend: Namespace,
}

impl Net {
    /// With `client_queues` queues towards the client, two towards the backend, which
    /// has the addresses of `hosts`.
    pub fn new(client_queues: u32, hosts: std::ops::RangeInclusive<u8>) -> Net {
        let (client, balancer) = (Namespace::new("client"), Namespace::new("lb"));
        let net = Net { client, balancer, backend: Namespace::new("backend") };
        link(&net.client, "eth0", &net.balancer, "eth0", client_queues);
        link(&net.balancer, "eth1", &net.backend, "eth0", 2);
        net.balancer.run("ip link set eth1 mtu 1600");
        net.backend.run("ip link set eth0 mtu 1600");
        net.client.run("ip addr add 10.0.0.2/24 dev eth0");
        net.balancer.run("ip addr add 10.0.0.1/24 dev eth0");
        net.balancer.run("ip addr add 10.0.1.1/24 dev eth1");
        for host in hosts {
            net.backend.run(&format!("ip addr add 10.0.1.{host}/24 dev eth0"));
        }
        net.client.run("ip route add 203.0.113.10 via 10.0.0.1");
        net
    }
}
