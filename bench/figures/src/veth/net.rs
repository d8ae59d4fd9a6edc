//! Two namespaces and a cable.
//!
//! ```text
//!  sender 10.77.0.1, backends 10.77.1.1 … ══ veth, n queues ══ 10.77.0.2 under test
//! ```

use std::process::{Command, id};

use serde_json::Value;

/// The interface's name at both ends.
pub const INTERFACE: &str = "eth0";
/// What programs under test receive packets to.
pub const VIPS: &str = "203.0.113.0/24";
/// Backends behind the sender's interface.
pub const BACKENDS: u8 = 10;
/// Destinations of what comes back: tunnelled by the forwarder, as it was by
/// the reflector.
pub const RETURNS: &str = "10.77.1.0/24,203.0.113.10/32";

/// The namespaces; gone when dropped.
#[derive(Debug)]
pub struct Net {
    /// Where the sender runs.
    pub sender: String,
    /// Where the one under test runs.
    pub tested: String,
}

impl Net {
    /// A cable with `queues` queues at both ends; `name` distinguishes it from others.
    pub fn new(name: &str, queues: u16) -> Result<Net, String> {
        let namespace = |end: &str| format!("gw-fig-{}-{name}-{end}", id());
        let net = Net { sender: namespace("s"), tested: namespace("t") };
        let Net { sender, tested } = &net;
        for namespace in [sender, tested] {
            run(&format!("ip netns add {namespace}"))?;
            run(&format!("ip -n {namespace} link set lo up"))?;
            // No host speaks IPv6 here, also not the kernel by itself.
            run(&format!(
                "ip netns exec {namespace} sysctl -qw net.ipv6.conf.default.disable_ipv6=1"
            ))?;
        }
        let queues = format!("numrxqueues {queues} numtxqueues {queues}");
        run(&format!(
            "ip -n {sender} link add {INTERFACE} mtu 1500 {queues} type veth \
             peer name {INTERFACE} mtu 1500 {queues} netns {tested}"
        ))?;
        // As next hops in memory have it (`sim::view::next_hop`): other frames that come back
        // would be the kernel's.
        run(&format!("ip -n {sender} link set {INTERFACE} address 02:00:00:00:00:fe"))?;
        for (namespace, address) in [(sender, "10.77.0.1/16"), (tested, "10.77.0.2/16")] {
            run(&format!("ip -n {namespace} addr add {address} dev {INTERFACE}"))?;
            run(&format!("ip -n {namespace} link set {INTERFACE} up"))?;
        }
        for backend in 1..=BACKENDS {
            run(&format!("ip -n {sender} addr add 10.77.1.{backend}/16 dev {INTERFACE}"))?;
        }
        Ok(net)
    }

    /// Link address of the one under test.
    pub fn mac(&self) -> Result<String, String> {
        let link = link(&self.tested)?;
        let mac = link["address"].as_str().map(str::to_owned);
        mac.ok_or_else(|| format!("{}: no link address", self.tested))
    }

    /// Packets that came back to the sender's interface so far, whatever
    /// became of them there.
    pub fn returned(&self) -> Result<u64, String> {
        let packets = link(&self.sender)?["stats64"]["rx"]["packets"].as_u64();
        packets.ok_or_else(|| format!("{}: no statistics", self.sender))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for namespace in [&self.sender, &self.tested] {
            let _ = Command::new("ip").args(["netns", "del", namespace]).status();
        }
    }
}

fn link(namespace: &str) -> Result<Value, String> {
    let text = run(&format!("ip -n {namespace} -j -s link show dev {INTERFACE}"))?;
    let links: Value =
        serde_json::from_str(&text).map_err(|error| format!("ip -j link: {error}"))?;
    Ok(links[0].clone())
}

/// Runs a command; its output.
pub fn run(command: &str) -> Result<String, String> {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a command");
    let output = Command::new(program)
        .args(words)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
