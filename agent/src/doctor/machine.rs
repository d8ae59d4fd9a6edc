//! Collects doctor's input, each part once: the kernel's settings, devices, addresses,
//! routes and sockets, and the status of the running agent. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nexthops::Unresolved;
use nexthops::routes::{self, Hop};
use nexthops::socket::Requests;
use wire::{IpPrefix, Protocol};

use crate::config::Config;
use crate::multipath::{Kernel, counter};
use crate::sockets::{self, Listener};
use crate::status::{self, Status};

/// Between two readings of the running agent's counters: what grows goes wrong now.
const COUNTING: Duration = Duration::from_millis(500);

/// Sockets of other namespaces are looked for in this many processes at most.
const PROCESSES_MAX: usize = 10_000;

/// All of it.
pub struct Machine {
    /// Every device of this network namespace.
    pub devices: Vec<Device>,
    /// Addresses and prefixes that are delivered here, and by which device.
    pub local: Vec<Local>,
    /// By family: IPv4, IPv6.
    pub default_routes: [Vec<DefaultRoute>; 2],
    /// The ways to the other agents.
    pub routes: BTreeMap<IpAddr, Result<Vec<Hop>, Unresolved>>,
    /// Sockets of this namespace.
    pub listeners: Vec<Listener>,
    /// TCP sockets of other namespaces that wait for clients, with their process.
    pub elsewhere: Vec<(Listener, String)>,
    /// What `nft --json list ruleset` printed, or why it could not.
    pub ruleset: Result<String, String>,
    /// Tables of the older iptables, which nft does not show.
    pub legacy_tables: Vec<String>,
    /// Entries of connection tracking, and how many there may be; None: it is not there.
    pub conntrack: Option<(u64, u64)>,
    /// Of the config's interface; None: the driver does not say.
    pub receive_offload: Option<ebpf::ReceiveOffload>,
    /// Settings by name, as sysctl has them.
    pub settings: BTreeMap<String, u32>,
    /// What handshakes of Multipath TCP need of the kernel.
    pub multipath: Kernel,
    /// Of the running agent, now and a moment later.
    pub status: Result<(Status, Status), String>,
    /// Segments and datagrams that the kernel dropped in that moment for their checksums.
    pub wrong_checksums: u64,
}

/// A network device.
#[derive(Debug, Clone, Default)]
pub struct Device {
    /// The kernel's number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its driver's kind, where it is a virtual one: "gre", "veth".
    pub kind: String,
    /// Administratively up.
    pub is_up: bool,
    /// Up, with a carrier.
    pub is_running: bool,
    /// The largest IP packet.
    pub mtu: u32,
}

/// What is delivered here.
#[derive(Debug, Clone)]
pub struct Local {
    /// An address, or a prefix whose addresses are all delivered.
    pub prefix: IpPrefix,
    /// By this device.
    pub device: u32,
}

/// A way to clients.
#[derive(Debug, Clone, Default)]
pub struct DefaultRoute {
    /// The devices that it leaves by.
    pub devices: Vec<u32>,
    /// The largest MSS that is announced to clients; 0: by the MTU.
    pub advmss: u32,
}

impl Machine {
    /// Reads it, in the network namespace of the calling thread.
    pub fn read(config: &Config) -> io::Result<Machine> {
        let wrong_before = wrong_checksums();
        let mut requests = Requests::open()?;
        let routes = all_routes(&mut requests)?;
        let others: Vec<IpAddr> = config.other_agents().collect();
        Ok(Machine {
            devices: devices(&mut requests)?,
            local: routes.iter().filter_map(local).collect(),
            default_routes: [AddressFamily::Inet, AddressFamily::Inet6].map(|family| {
                routes.iter().filter_map(|route| default_route(route, family)).collect()
            }),
            routes: others
                .into_iter()
                .map(|agent| (agent, routes::lookup(&mut requests, agent)))
                .collect(),
            listeners: sockets::listeners()?,
            elsewhere: elsewhere(),
            ruleset: ruleset(),
            legacy_tables: legacy_tables(),
            conntrack: conntrack(),
            receive_offload: ebpf::receive_offload(&config.interface).ok(),
            settings: settings(&config.interface),
            multipath: Kernel::read(),
            status: twice(&config.interface),
            wrong_checksums: wrong_checksums().saturating_sub(wrong_before),
        })
    }

    /// The device of this name.
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// What people call a device.
    pub fn name(&self, index: u32) -> String {
        let device = self.devices.iter().find(|device| device.index == index);
        device.map_or_else(|| format!("device {index}"), |device| device.name.clone())
    }

    /// A setting of an interface that is the larger one of its own and that of `all`
    /// (Documentation/networking/ip-sysctl.rst).
    pub fn setting(&self, name: &str) -> u32 {
        let of = |which: &str| self.settings.get(&format!("{which}/{name}")).copied();
        of("all").max(of("own")).unwrap_or_default()
    }
}

/// Since the namespace was made.
fn wrong_checksums() -> u64 {
    let counted = |group| counter("snmp", group, "InCsumErrors").unwrap_or_default();
    counted("Tcp") + counted("Udp")
}

fn twice(interface: &str) -> Result<(Status, Status), String> {
    let before = status::read(interface)?;
    sleep(COUNTING);
    Ok((before, status::read(interface)?))
}

fn devices(requests: &mut Requests) -> io::Result<Vec<Device>> {
    let answers = requests.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let devices = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) => Some(device(&link)),
        _ => None,
    });
    Ok(devices.collect())
}

fn device(link: &LinkMessage) -> Device {
    let flags = link.header.flags;
    let mut device = Device {
        index: link.header.index,
        is_up: flags.contains(LinkFlags::Up),
        is_running: flags.contains(LinkFlags::Up | LinkFlags::Running),
        ..Device::default()
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => device.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => device.mtu = *mtu,
            LinkAttribute::LinkInfo(list) => {
                let kind = list.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
                device.kind = kind.unwrap_or_default();
            }
            _ => {}
        }
    }
    device
}

fn all_routes(requests: &mut Requests) -> io::Result<Vec<RouteMessage>> {
    let mut routes = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        let answers = requests.dump(RouteNetlinkMessage::GetRoute(message))?;
        routes.extend(answers.into_iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewRoute(route) => Some(route),
            _ => None,
        }));
    }
    Ok(routes)
}

fn local(route: &RouteMessage) -> Option<Local> {
    if route.header.kind != RouteType::Local {
        return None;
    }
    let address: IpAddr = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some((*address).into()),
        RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some((*address).into()),
        _ => None,
    })?;
    let prefix = IpPrefix::new(address, route.header.destination_prefix_length)?;
    Some(Local { prefix, device: device_of(route)? })
}

fn device_of(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    })
}

fn default_route(route: &RouteMessage, family: AddressFamily) -> Option<DefaultRoute> {
    let header = &route.header;
    let is_default = header.address_family == family
        && header.destination_prefix_length == 0
        && header.kind == RouteType::Unicast;
    if !is_default {
        return None;
    }
    let mut found = DefaultRoute { devices: device_of(route).into_iter().collect(), advmss: 0 };
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::MultiPath(legs) => {
                found.devices.extend(legs.iter().map(|leg| leg.interface_index));
            }
            RouteAttribute::Metrics(metrics) => {
                found.advmss = metrics.iter().fold(0, |advmss, metric| match metric {
                    RouteMetric::Advmss(advmss) => *advmss,
                    _ => advmss,
                });
            }
            _ => {}
        }
    }
    Some(found)
}

/// Those of IPv4 that have a value for `all` and one for each interface.
fn settings(interface: &str) -> BTreeMap<String, u32> {
    let mut settings = BTreeMap::new();
    for name in ["arp_ignore", "arp_announce", "rp_filter"] {
        for (which, directory) in [("all", "all"), ("own", interface)] {
            let path = format!("/proc/sys/net/ipv4/conf/{directory}/{name}");
            let value =
                std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
            settings.extend(value.map(|value| (format!("{which}/{name}"), value)));
        }
    }
    settings
}

pub fn ruleset() -> Result<String, String> {
    let output = Command::new("nft").args(["--json", "list", "ruleset"]).output();
    let output = output.map_err(|error| format!("nft cannot be run: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("nft: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

fn legacy_tables() -> Vec<String> {
    let mut tables = Vec::new();
    for program in ["ip", "ip6"] {
        let text = std::fs::read_to_string(format!("/proc/net/{program}_tables_names"));
        let names = text.unwrap_or_default();
        tables.extend(names.lines().map(|table| format!("{program}tables {table}")));
    }
    tables
}

fn conntrack() -> Option<(u64, u64)> {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}"));
        text.ok()?.trim().parse().ok()
    };
    Some((read("count")?, read("max")?))
}

/// TCP listeners of the network namespaces that other processes are in.
fn elsewhere() -> Vec<(Listener, String)> {
    let namespace = |process: &str| {
        std::fs::metadata(format!("/proc/{process}/ns/net")).ok().map(|file| file.ino())
    };
    let mut seen: BTreeSet<u64> = namespace("self").into_iter().collect();
    let mut found = Vec::new();
    let Ok(processes) = std::fs::read_dir("/proc") else { return found };
    let ids = processes.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let ids = ids.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    for id in ids.take(PROCESSES_MAX) {
        // The first process of a namespace stands for it.
        if !namespace(&id).is_some_and(|namespace| seen.insert(namespace)) {
            continue;
        }
        let name = std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        let process = format!("process {id} ({})", name.trim());
        for file in ["tcp", "tcp6"] {
            let text = std::fs::read_to_string(format!("/proc/{id}/net/{file}"));
            let listeners = text.unwrap_or_default();
            let listeners = listeners.lines().filter_map(listener);
            found.extend(listeners.map(|listener| (listener, process.clone())));
        }
    }
    found
}

/// A line of /proc/net/tcp or tcp6: number, local address, remote address, state, in
/// hexadecimal digits; addresses as words of the machine's order.
fn listener(line: &str) -> Option<Listener> {
    const LISTEN: &str = "0A";
    let mut fields = line.split_whitespace().skip(1);
    let (address, port) = fields.next()?.split_once(':')?;
    if fields.nth(1)? != LISTEN {
        return None;
    }
    let words: Option<Vec<[u8; 4]>> = (0..address.len())
        .step_by(8)
        .map(|at| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes()))
        .collect();
    let bytes = words?.concat();
    let address: IpAddr = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(v4) => Ipv4Addr::from(v4).into(),
        Err(_) => Ipv6Addr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?).into(),
    };
    Some(Listener { protocol: Protocol::TCP, address, port: u16::from_str_radix(port, 16).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_read_from_procfs() {
        let v4 = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 0 0 1";
        let v6 = "   0: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 0";
        let seen = |line: &str| listener(line).map(|l| (l.address.to_string(), l.port));
        assert_eq!(seen(v4), Some(("127.0.0.1".to_string(), 8080)));
        assert_eq!(seen(v6), Some(("::".to_string(), 80)));
        assert_eq!(seen(&v4.replace("0A", "01")), None);
        assert_eq!(seen("  sl  local_address rem_address   st"), None);
    }
}
