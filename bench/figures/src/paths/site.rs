//! One path with its namespaces, its programs and its server.

use std::net::Ipv4Addr;
use std::process::id;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Client, Options, Way};
use crate::veth::{self, Namespaces, Running, command};

const VIP: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
const LOAD_BALANCER: Ipv4Addr = Ipv4Addr::new(10, 78, 2, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 78, 2, 2);
/// On the link to the client.
const SERVER_DIRECT: Ipv4Addr = Ipv4Addr::new(10, 78, 3, 2);

/// Of the stateless service.
const BUCKETS: usize = 4096;

/// It ends, with all that is in it, when dropped: programs first.
pub(super) struct Site {
    way: Way,
    /// The server, and for the last way the agent and the forwarder.
    programs: Vec<Running>,
    namespaces: Namespaces<3>,
}

impl Site {
    pub(super) fn new(way: Way, options: &Options) -> Result<Site, String> {
        let names = ["c", "l", "s"].map(|end| format!("gw-path-{}-{}-{end}", id(), way.name()));
        let mut site = Site { way, programs: Vec::new(), namespaces: Namespaces::new(names)? };
        site.build()?;
        let [_, load_balancer, server] = &site.namespaces.names;
        let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        let mut programs = vec![veth::program(&own, server, &["path-end"])?];
        match way {
            Way::Direct => {}
            Way::Nft => site.route_by_nft()?,
            Way::Guideway | Way::Stateless => {
                let agent = json!({
                    "interface": "eth0",
                    "load_balancers": [LOAD_BALANCER],
                    "vips": [VIP],
                    "pin": "off",
                });
                programs.push(veth::agent(&options.agent, server, &agent)?);
                programs.push(veth::forwarder(&options.forwarder, load_balancer, &plan(way))?);
            }
        }
        site.programs = programs;
        site.wait_until_it_answers()?;
        Ok(site)
    }

    /// ```text
    ///  client 10.78.1.1 ══ eth0 10.78.1.2 load balancer eth1 10.78.2.1 ══ eth0 10.78.2.2 server
    ///         10.78.3.1 ══════════════════════════════════════════════════ eth1 10.78.3.2
    /// ```
    fn build(&self) -> Result<(), String> {
        let [client, load_balancer, server] = &self.namespaces.names;
        for (one, port, other, other_port, mtu) in [
            (client, "eth0", load_balancer, "eth0", 1500),
            // A tunnel's headers have room.
            (load_balancer, "eth1", server, "eth0", 1600),
            (client, "eth1", server, "eth1", 1500),
        ] {
            command(&format!(
                "ip -n {one} link add {port} mtu {mtu} type veth peer name {other_port} mtu {mtu} netns {other}"
            ))?;
        }
        for (namespace, address, port) in [
            (client, "10.78.1.1/24", "eth0"),
            (client, "10.78.3.1/24", "eth1"),
            (load_balancer, "10.78.1.2/24", "eth0"),
            (load_balancer, "10.78.2.1/24", "eth1"),
            (server, "10.78.2.2/24", "eth0"),
            (server, "10.78.3.2/24", "eth1"),
        ] {
            command(&format!("ip -n {namespace} addr add {address} dev {port}"))?;
            command(&format!("ip -n {namespace} link set {port} up"))?;
        }
        command(&format!("ip -n {server} addr add {VIP}/32 dev lo"))?;
        command(&format!("ip -n {client} route add {VIP}/32 via 10.78.1.2 src 10.78.1.1"))?;
        command(&format!("ip -n {server} route add 10.78.1.0/24 via 10.78.3.1"))?;
        for (namespace, setting) in [
            // Answers come and packets arrive another way than they would go.
            (client, "net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth1.rp_filter=0"),
            (server, "net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0"),
        ] {
            command(&format!("ip netns exec {namespace} sysctl -qw {setting}"))?;
        }
        Ok(())
    }

    fn route_by_nft(&self) -> Result<(), String> {
        let [_, load_balancer, server] = &self.namespaces.names;
        let (from, to) = (veth::mac_of(load_balancer, "eth1")?, veth::mac_of(server, "eth0")?);
        let nft = format!("ip netns exec {load_balancer} nft");
        command(&format!("{nft} add table netdev direct"))?;
        command(&format!(
            "{nft} add chain netdev direct in {{ type filter hook ingress device eth0 priority 0 ; }}"
        ))?;
        command(&format!(
            "{nft} add rule netdev direct in ip daddr {VIP} ether saddr set {from} ether daddr set {to} fwd to eth1"
        ))?;
        Ok(())
    }

    fn wait_until_it_answers(&self) -> Result<(), String> {
        let mut said = String::new();
        for _ in 0..50 {
            match self.client(Client::Upload, 0.05) {
                Ok(_) => return Ok(()),
                Err(error) => said = error,
            }
            thread::sleep(Duration::from_millis(100));
        }
        Err(said)
    }

    /// Nanoseconds that the forwarder has been on a core.
    pub(super) fn forwarder_cpu_ns(&self) -> Result<u64, String> {
        match (self.way, self.programs.last()) {
            (Way::Guideway | Way::Stateless, Some(forwarder)) => forwarder.cpu_ns(),
            _ => Ok(0),
        }
    }

    /// What a client says that ran for so long.
    pub(super) fn client(&self, client: Client, seconds: f64) -> Result<Value, String> {
        let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        let address = if self.way == Way::Direct { SERVER_DIRECT } else { VIP };
        let text = command(&format!(
            "ip netns exec {} {} path-end --client {} --address {address} --seconds {seconds}",
            self.namespaces.names[0],
            own.display(),
            client.name(),
        ))?;
        serde_json::from_str(&text)
            .map_err(|error| format!("the client's answer {text:?}: {error}"))
    }
}

fn plan(way: Way) -> Value {
    let interface = |name| json!({"name": name, "driver": "DRIVER_AF_PACKET", "queues": 1});
    let mut service = json!({"name": "web", "vips": [{"address": VIP}], "group": "web"});
    if way == Way::Stateless {
        service["mode"] = json!("MODE_STATELESS");
        service["encap"] = json!("ENCAP_GENEVE");
        service["bucketMap"] =
            json!({"generation": "1", "backends": ["server"], "byBucket": vec![0; BUCKETS]});
    }
    json!({
        "generation": "1",
        "cluster": {"name": "figures", "keyId": "derived"},
        "machine": {"name": "figures", "addresses": [LOAD_BALANCER]},
        "backends": [{"name": "server", "address": SERVER}],
        "services": [service],
        "groups": [{"name": "web", "members": [{"backend": "server", "weight": 1, "state": "BACKEND_STATE_ACTIVE"}]}],
        "forwarder": {"interfaces": [interface("eth0"), interface("eth1")], "kernelCache": "KERNEL_CACHE_ON"},
    })
}
