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

/// Network namespaces; gone when dropped.
#[derive(Debug)]
pub struct Namespaces<const N: usize> {
    /// Their names.
    pub names: [String; N],
}

impl<const N: usize> Namespaces<N> {
    /// Of these names, with a loopback interface that is up.
    ///
    /// # Errors
    /// If one cannot be made.
    pub fn new(names: [String; N]) -> Result<Namespaces<N>, String> {
        let namespaces = Namespaces { names };
        for name in &namespaces.names {
            run(&format!("ip netns add {name}"))?;
            run(&format!("ip -n {name} link set lo up"))?;
            // No host speaks IPv6 here, also not the kernel by itself.
            run(&format!("ip netns exec {name} sysctl -qw net.ipv6.conf.default.disable_ipv6=1"))?;
        }
        Ok(namespaces)
    }
}

impl<const N: usize> Drop for Namespaces<N> {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// The two.
#[derive(Debug)]
pub struct Net {
    /// Where the sender runs.
    pub sender: String,
    /// Where the one under test runs.
    pub tested: String,
    _namespaces: Namespaces<2>,
}

impl Net {
    /// A cable with `queues` queues at both ends; `name` distinguishes it from others.
    pub fn new(name: &str, queues: u16) -> Result<Net, String> {
        let namespace = |end: &str| format!("gw-fig-{}-{name}-{end}", id());
        let names = [namespace("s"), namespace("t")];
        let [sender, tested] = names.clone();
        let net = Net { sender, tested, _namespaces: Namespaces::new(names)? };
        let Net { sender, tested, .. } = &net;
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
        mac_of(&self.tested, INTERFACE)
    }

    /// Packets that came back to the sender's interface so far, whatever
    /// became of them there.
    pub fn returned(&self) -> Result<u64, String> {
        let packets = link(&self.sender, INTERFACE)?["stats64"]["rx"]["packets"].as_u64();
        packets.ok_or_else(|| format!("{}: no statistics", self.sender))
    }
}

/// The link address of an interface.
///
/// # Errors
/// If there is no such interface.
pub fn mac_of(namespace: &str, interface: &str) -> Result<String, String> {
    let link = link(namespace, interface)?;
    let mac = link["address"].as_str().map(str::to_owned);
    mac.ok_or_else(|| format!("{interface} in {namespace}: no link address"))
}

fn link(namespace: &str, interface: &str) -> Result<Value, String> {
    let text = run(&format!("ip -n {namespace} -j -s link show dev {interface}"))?;
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
