//! The agent's config: one YAML file, read once into a valid value.
//!
//! ```yaml
//! interface: eth0
//! load_balancers: [10.0.0.1, 10.0.0.2]
//! vips: [203.0.113.10]
//! name: web-1
//! agents: {web-1: 10.1.0.11, web-2: [10.1.0.12, 2001:db8:1::12]}
//! ```
//!
//! A [`Config`] is guaranteed to have at least one load balancer and one VIP, lists that
//! fit the program's tables, agents without a shared address, and, if there are agents, its
//! own name among them. All errors are reported at once, each with its line, field and
//! cure.

mod fields;
mod keys;
mod multipath;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use saphyr::{LoadableYamlNode, MarkedYaml};
use wire::IpPrefix;

use fields::{Node, Reader};
pub use keys::{KEY_ID_BYTES, Keys, Peers};

/// Entries of each table of the program: `ADDRESSES_MAX` in bpf/. A
/// hundred times the largest cluster that was tried; more are refused here.
pub const ADDRESSES_MAX: usize = 4096;

/// Of the config and of the key file: [`ADDRESSES_MAX`] agents whose names have 255 bytes
/// take 2 MiB of each. Longer files are refused.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Where controllers receive agents' messages, unless a port is given.
const CONTROLLER_PORT: u16 = 9475;

/// Where programs outlive their agent, unless the config says otherwise.
const BPF_FILE_SYSTEM: &str = "/sys/fs/bpf";

/// Where tunnels are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preference {
    /// Where it costs least.
    #[default]
    Auto,
    /// At XDP, in the driver.
    Native,
    /// At XDP, in the kernel's generic path.
    Generic,
    /// At traffic control.
    Tc,
}

/// What the agent does, and for whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where tunnelled packets arrive.
    pub interface: String,
    /// How the program is attached there.
    pub mode: Preference,
    /// Whose tunnels are opened, beside those of agents.
    pub load_balancers: Vec<IpPrefix>,
    /// Where packets out of tunnels may go.
    pub vips: Vec<IpPrefix>,
    /// This agent among `agents`; empty where there are none.
    pub name: String,
    /// The agents of all backends, this one included.
    pub agents: BTreeMap<String, Vec<IpAddr>>,
    /// This agent's keys; none: it says nothing to controllers.
    pub keys: Option<Keys>,
    /// Keys for messages to other agents; without them no redirect rules are requested.
    pub peers: Peers,
    /// Where its state goes; empty without keys.
    pub controllers: Vec<SocketAddr>,
    /// Services whose connections of Multipath TCP load balancers choose the keys of.
    pub multipath: Vec<SocketAddr>,
    /// Measure how long clients wait for answers.
    pub measures_responses: bool,
    /// A directory of the BPF file system, where the program outlives the agent; None: it
    /// goes with the agent.
    pub pin: Option<PathBuf>,
    /// `pin: off`.
    pub unpinned: bool,
    /// Where metrics are served.
    pub metrics_listen: Option<SocketAddr>,
    /// Between log lines with the counters; zero: none.
    pub stats_interval: Duration,
}

/// All that is wrong with a config, in the order of its lines.
#[derive(Debug)]
pub struct ConfigError(Vec<String>);

impl ConfigError {
    /// One line each.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigError {}

/// Whether packets to an address in a tunnel are dropped, as none of these VIPs contains it.
pub fn lacks(vips: &[IpPrefix], address: IpAddr) -> bool {
    !vips.iter().any(|prefix| prefix.contains(address))
}

impl Config {
    /// Reads a file.
    pub fn load(file: &Path) -> Result<Config, ConfigError> {
        let name = file.display().to_string();
        let text = read_text(file).map_err(|error| {
            ConfigError(vec![format!("cannot read {name}: {error}; --config names the file")])
        })?;
        let mut config = Config::parse(&name, &text)?;
        if config.pin.is_none() && !config.unpinned && may_pin_by_default() {
            config.pin = Some(Path::new(BPF_FILE_SYSTEM).join("guideway-agent"));
        }
        Ok(config)
    }

    /// Reads a text; `file` is for messages. What depends on the machine is not looked at.
    pub fn parse(file: &str, text: &str) -> Result<Config, ConfigError> {
        let documents = MarkedYaml::load_from_str(text).map_err(|error| {
            let at = error.marker();
            let problem = error.info();
            ConfigError(vec![format!("{file}:{}:{}: {problem}", at.line(), at.col() + 1)])
        })?;
        let [document] = documents.as_slice() else {
            let cure = "write one, with `interface`, `load_balancers` and `vips`";
            let count = documents.len();
            return Err(ConfigError(vec![format!("{file} has {count} YAML documents: {cure}")]));
        };
        let mut reader = Reader::new(file);
        let config = read(&mut reader, Node::root(document));
        let problems = reader.into_problems();
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(ConfigError(problems)),
        }
    }

    /// This agent's own address of the family of `other`.
    #[must_use]
    pub fn own_address(&self, other: IpAddr) -> Option<IpAddr> {
        let own = self.agents.get(&self.name)?;
        own.iter().copied().find(|address| address.is_ipv4() == other.is_ipv4())
    }

    /// This agent's own addresses.
    pub fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.agents.get(&self.name).into_iter().flatten().copied()
    }

    /// The addresses of all agents but this one.
    pub fn other_agents(&self) -> impl Iterator<Item = IpAddr> {
        let others = self.agents.iter().filter(|(name, _)| **name != self.name);
        others.flat_map(|(_, addresses)| addresses.iter().copied())
    }
}

fn read(reader: &mut Reader, root: Node) -> Option<Config> {
    let mut fields = reader.fields(&root)?;
    let interface = fields.required("interface", "the one that tunnelled packets arrive on");
    let load_balancers =
        fields.required("load_balancers", "the addresses whose tunnels are opened");
    let vips = fields.required("vips", "the service addresses that this backend has on lo");
    let (mode, name, agents) =
        (fields.optional("mode"), fields.optional("name"), fields.optional("agents"));
    let (metrics_listen, stats_interval) =
        (fields.optional("metrics_listen"), fields.optional("stats_interval"));
    let pin = fields.optional("pin");
    let (key_file, controllers) = (fields.optional("key_file"), fields.optional("controllers"));
    let (mptcp, response_times) = (fields.optional("mptcp"), fields.optional("response_times"));
    fields.finish();

    let agents_node = agents.clone();
    let (keys, peers) = key_file.as_ref().and_then(|node| read_keys(reader, node)).unzip();
    let mut config = Config {
        interface: interface.and_then(|node| reader.text(&node)).unwrap_or_default(),
        mode: mode.and_then(|node| read_mode(reader, &node)).unwrap_or_default(),
        load_balancers: read_prefixes(reader, load_balancers),
        vips: read_prefixes(reader, vips),
        name: name.as_ref().and_then(|node| reader.text(node)).unwrap_or_default(),
        agents: agents.map(|node| read_agents(reader, &node)).unwrap_or_default(),
        keys,
        peers: peers.unwrap_or_default(),
        controllers: controllers
            .as_ref()
            .map(|node| read_controllers(reader, node))
            .unwrap_or_default(),
        multipath: Vec::new(),
        measures_responses: response_times
            .is_some_and(|node| read_auto(reader, &node, "auto (from Linux 6.6 on)")),
        pin: None,
        unpinned: false,
        metrics_listen: metrics_listen.and_then(|node| {
            reader.parsed(&node, "an address with a port", "127.0.0.1:9473 or \"[::1]:9473\"")
        }),
        stats_interval: stats_interval
            .and_then(|node| read_duration(reader, &node))
            .unwrap_or_default(),
    };
    if let Some(node) = pin {
        read_pin(reader, &node, &mut config);
    }
    if let Some(node) = agents_node {
        check_agents(reader, &node, name.as_ref(), &config);
    }
    if let Some(node) = mptcp {
        config.multipath = multipath::read(reader, &node, &config.vips);
    }
    check_messages(reader, key_file.as_ref(), controllers.as_ref(), name.as_ref(), &mut config);
    Some(config)
}

fn read_mode(reader: &mut Reader, node: &Node) -> Option<Preference> {
    match reader.text(node)?.as_str() {
        "auto" => Some(Preference::Auto),
        "native" => Some(Preference::Native),
        "generic" => Some(Preference::Generic),
        "tc" => Some(Preference::Tc),
        other => {
            let cure = "write auto (what suits the driver), native (XDP in the driver, or nothing), generic (XDP, slowly) or tc (traffic control)";
            reader.refuse(node, &format!("{other:?} is no mode: {cure}"));
            None
        }
    }
}

/// What is done by itself, or `off`.
fn read_auto(reader: &mut Reader, node: &Node, auto: &str) -> bool {
    // YAML has `off` for a text, and we have it for false.
    match reader.text(node).as_deref() {
        Some("auto") => return true,
        Some("off") | None => {}
        Some(other) => {
            reader.refuse(node, &format!("{other:?} is unknown: write {auto}, or off"));
        }
    }
    false
}

fn read_pin(reader: &mut Reader, node: &Node, config: &mut Config) {
    let Some(text) = reader.text(node) else { return };
    if text == "off" {
        config.unpinned = true;
        return;
    }
    let directory = PathBuf::from(text);
    if directory.is_relative() {
        let problem = format!(
            "{} is relative: write /sys/fs/bpf/guideway-agent, or off",
            directory.display()
        );
        reader.refuse(node, &problem);
    }
    config.pin = Some(directory);
}

/// A file's text, which is UTF-8.
fn read_text(path: &Path) -> io::Result<String> {
    let bytes = nic::folder::read_named(path, FILE_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// There is a BPF file system, and this is the machine's own network namespace: agents of
/// others would take the same directory for theirs.
fn may_pin_by_default() -> bool {
    const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
    /// Which no other namespace has.
    const SETTING_OF_MACHINE: &str = "/proc/sys/net/core/netdev_max_backlog";
    rustix::fs::statfs(BPF_FILE_SYSTEM).is_ok_and(|found| found.f_type == BPF_FS_MAGIC)
        && Path::new(SETTING_OF_MACHINE).exists()
}

/// The keys in a file; a relative path is one beside the config.
fn read_keys(reader: &mut Reader, node: &Node) -> Option<(Keys, Peers)> {
    let path = reader.text(node)?;
    let path = reader.beside(&path);
    let cure = "print it by `guideway config backend NAME` on a load balancer, with mode 0600";
    let text = match read_text(&path) {
        Ok(text) => text,
        Err(error) => {
            reader.refuse(node, &format!("cannot read {}: {error}; {cure}", path.display()));
            return None;
        }
    };
    let name = path.display().to_string();
    let documents = MarkedYaml::load_from_str(&text).unwrap_or_default();
    let [document] = documents.as_slice() else {
        reader.refuse(node, &format!("{name} is no key file; {cure}"));
        return None;
    };
    let mut inner = Reader::new(&name);
    let keys = keys::read(&mut inner, &Node::root(document));
    let problems = inner.into_problems();
    problems.iter().for_each(|problem| reader.refuse(node, problem));
    keys.filter(|_| problems.is_empty())
}

fn read_controllers(reader: &mut Reader, node: &Node) -> Vec<SocketAddr> {
    let elements = reader.list(node);
    let controllers = elements.iter().filter_map(|node| {
        let text = reader.text(node)?;
        let address = text.parse::<IpAddr>().map(|address| (address, CONTROLLER_PORT).into());
        let address = address.or_else(|_| text.parse());
        if address.is_err() {
            let problem = format!("{text:?} is no address: write 10.0.0.1 or 10.0.0.1:9475");
            reader.refuse(node, &problem);
        }
        address.ok()
    });
    controllers.collect()
}

/// What messages to controllers need; without a list they go to the load balancers.
fn check_messages(
    reader: &mut Reader,
    key_file: Option<&Node>,
    controllers: Option<&Node>,
    name: Option<&Node>,
    config: &mut Config,
) {
    let Some(node) = key_file else {
        if let Some(node) = controllers {
            reader.refuse(node, "need `key_file`: messages to them are authenticated by it");
        }
        return;
    };
    if controllers.is_none() {
        let bits = |prefix: &IpPrefix| if prefix.address().is_ipv4() { 32 } else { 128 };
        let single = config.load_balancers.iter().filter(|prefix| prefix.len() == bits(prefix));
        config.controllers =
            single.map(|prefix| (prefix.address(), CONTROLLER_PORT).into()).collect();
    }
    if config.controllers.is_empty() && config.keys.is_some() {
        let problem = "is for messages to controllers, and there are none: list the load balancers' addresses in `controllers`";
        reader.refuse(node, problem);
    }
    if let (Some(name), Some(keys)) = (name, &config.keys)
        && keys.agent != config.name
    {
        let problem = format!("{:?} is another than the key file's: {:?}", config.name, keys.agent);
        reader.refuse(name, &problem);
    }
}

/// As in the controller's config: a number and a unit.
fn read_duration(reader: &mut Reader, node: &Node) -> Option<Duration> {
    let text = reader.text(node)?;
    let seconds = [("m", 60), ("s", 1)].into_iter().find_map(|(unit, seconds)| {
        let number: u32 = text.strip_suffix(unit)?.parse().ok()?;
        Some(u64::from(number) * seconds)
    });
    if seconds.is_none() {
        reader.refuse(node, &format!("{text:?} is no duration: write 30s or 5m"));
    }
    seconds.map(Duration::from_secs)
}

/// A list of prefixes with at least one. A missing one has been reported.
fn read_prefixes(reader: &mut Reader, node: Option<Node>) -> Vec<IpPrefix> {
    let Some(node) = node else { return Vec::new() };
    let elements = reader.list(&node);
    if elements.is_empty() {
        reader.refuse(&node, "is empty: without one no packet is taken out of a tunnel");
    }
    let prefixes: Vec<IpPrefix> = elements
        .iter()
        .filter_map(|node| reader.parsed(node, "an address or prefix", "10.0.0.1 or 10.0.0.0/24"))
        .collect();
    check_count(reader, &node, prefixes.len());
    prefixes
}

fn check_count(reader: &mut Reader, node: &Node, count: usize) {
    if count > ADDRESSES_MAX {
        let problem = format!("has {count} addresses, more than {ADDRESSES_MAX}: write prefixes");
        reader.refuse(node, &problem);
    }
}

fn read_agents(reader: &mut Reader, node: &Node) -> BTreeMap<String, Vec<IpAddr>> {
    let mut agents = BTreeMap::new();
    for (name, node) in reader.entries(node) {
        let elements = if node.is_list() { reader.list(&node) } else { vec![node.clone()] };
        let addresses: Vec<IpAddr> =
            elements.iter().filter_map(|node| read_agent_address(reader, node)).collect();
        if elements.is_empty() {
            reader.refuse(&node, "has no address: write one of IPv4, of IPv6, or of each");
        }
        if elements.len() > 2 || addresses.iter().filter(|address| address.is_ipv4()).count() == 2 {
            reader.refuse(&node, "has more than one address of a family: one of each is enough");
        }
        agents.insert(name, addresses);
    }
    agents
}

fn read_agent_address(reader: &mut Reader, node: &Node) -> Option<IpAddr> {
    let address: IpAddr = reader.parsed(node, "an address", "10.1.0.11 or 2001:db8::11")?;
    if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
        reader.refuse(node, &format!("{address} is no address of a backend"));
        return None;
    }
    Some(address)
}

/// What agents need of one another.
fn check_agents(reader: &mut Reader, node: &Node, name: Option<&Node>, config: &Config) {
    check_count(reader, node, config.agents.values().map(Vec::len).sum());
    let mut owners: BTreeMap<IpAddr, &str> = BTreeMap::new();
    for (agent, address) in config
        .agents
        .iter()
        .flat_map(|(name, list)| list.iter().map(move |address| (name, address)))
    {
        if let Some(other) = owners.insert(*address, agent) {
            let problem = format!("{address} is an address of {other} and of {agent}");
            reader.refuse(node, &format!("{problem}: each agent has its own"));
        }
    }
    match (name, config.agents.contains_key(&config.name)) {
        (Some(_), true) => check_families(reader, node, config),
        (Some(name), false) => {
            let listed: Vec<&str> = config.agents.keys().map(String::as_str).collect();
            let problem = format!("{:?} is none of the agents: {}", config.name, listed.join(", "));
            reader.refuse(name, &problem);
        }
        (None, _) => reader.refuse(node, "needs `name`: which of them this one is"),
    }
}

/// A packet that goes on to an agent leaves with an address of the same family.
fn check_families(reader: &mut Reader, node: &Node, config: &Config) {
    for address in config.other_agents() {
        if config.own_address(address).is_none() {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            let problem =
                format!("{} has no {family} address to reach {address} from", config.name);
            reader.refuse(node, &format!("{problem}: add one, or take {address} out"));
        }
    }
}

#[cfg(test)]
mod tests;
