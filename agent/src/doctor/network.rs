//! Checks devices, VIPs and the kernel's settings for them.

use std::net::IpAddr;

use wire::IpPrefix;

use super::machine::{Device, Machine};
use super::{Findings, firewall};
use crate::config::Config;

/// Kinds of devices by which the kernel opens tunnels itself.
const TUNNELS: [&str; 9] =
    ["gre", "gretap", "ip6gre", "ip6gretap", "erspan", "ipip", "sit", "ip6tnl", "geneve"];

/// What clients send where nothing says otherwise.
const CLIENT_BYTES: u32 = 1500;

/// Of UDP and Geneve without options.
const TUNNEL_BYTES: u32 = 8 + 8;

/// Of a Geneve tunnel's longest options: what load balancers leave room for.
const OPTIONS_BYTES: u32 = wire::tunnel::route_option::BYTES_MAX as u32;

/// IP and TCP headers of a segment inside, by family: IPv4, IPv6.
const SEGMENT_HEADERS_BYTES: [u32; 2] = [20 + 20, 40 + 20];

/// Of more connections than this part of what fits, new ones will soon be dropped.
const CONNTRACK_PERCENT_MAX: u64 = 90;

pub fn check(config: &Config, machine: &Machine, findings: &mut Findings) {
    let Some(device) = machine.device(&config.interface) else {
        let names: Vec<&str> = machine.devices.iter().map(|device| device.name.as_str()).collect();
        findings.fail(
            "interface",
            format!("there is no {}; there are: {}: write the one that tunnelled packets arrive on into `interface`", config.interface, names.join(", ")),
        );
        return;
    };
    interface(device, machine, findings);
    vips(config, machine, findings);
    arp(config, machine, findings);
    reverse_path(config, device, machine, findings);
    mtu(config, device, machine, findings);
    tunnels(machine, findings);
    merging(device, machine, findings);
    checksums(machine, findings);
    conntrack(machine, findings);
}

fn interface(device: &Device, machine: &Machine, findings: &mut Findings) {
    let Device { name, mtu, .. } = device;
    if !device.is_up {
        findings.fail("interface", format!("{name} is down: ip link set {name} up"));
    } else if !device.is_running {
        findings.fail(
            "interface",
            format!("{name} has no carrier: look at its cable or peer (ip link show {name})"),
        );
    } else if machine.status.as_ref().is_ok_and(|(_, status)| !status.is_attached) {
        findings.fail("interface", format!("a program of the agent was taken off {name}, and the agent runs on: systemctl restart guideway-agent"));
    } else {
        findings.ok("interface", format!("{name} is up, MTU {mtu}"));
    }
}

fn vips(config: &Config, machine: &Machine, findings: &mut Findings) {
    let before = findings.problems();
    for vip in &config.vips {
        let is_one = *vip == IpPrefix::from(vip.address());
        if is_one {
            one_vip(config, *vip, machine, findings)
        } else {
            prefix(*vip, machine, findings)
        }
    }
    if findings.problems() == before {
        findings.ok(
            "vips",
            format!("{} delivered here, and not by {}", config.vips.len(), config.interface),
        );
    }
}

fn one_vip(config: &Config, vip: IpPrefix, machine: &Machine, findings: &mut Findings) {
    let covering = machine.local.iter().filter(|local| local.prefix.contains(vip.address()));
    let Some(local) = covering.max_by_key(|local| local.prefix.len()) else {
        findings.fail("vips", format!("{vip} is no address of this machine, which drops or routes on what clients send there: ip address replace {vip} dev lo"));
        return;
    };
    if machine.name(local.device) == config.interface {
        let interface = &config.interface;
        findings.fail(
            "vips",
            format!("{vip} is on {interface}, which answers for it to the whole network: ip address del {vip} dev {interface} && ip address replace {vip} dev lo (ip -o address show to {vip} shows the prefix length)"),
        );
    }
}

/// Of a prefix not every address need be a VIP.
fn prefix(vips: IpPrefix, machine: &Machine, findings: &mut Findings) {
    let is_served = machine.local.iter().any(|local| {
        vips.contains(local.prefix.address()) || local.prefix.contains(vips.address())
    });
    if !is_served {
        findings.fail("vips", format!("no address of {vips} is this machine's: ip address replace VIP dev lo for each, or ip route replace local {vips} dev lo for all"));
    }
}

fn has_v4(config: &Config) -> bool {
    config.vips.iter().any(|vip| vip.address().is_ipv4())
}

fn arp(config: &Config, machine: &Machine, findings: &mut Findings) {
    if !has_v4(config) {
        return;
    }
    let (ignore, announce) = (machine.setting("arp_ignore"), machine.setting("arp_announce"));
    if !(1..=2).contains(&ignore) {
        findings.fail("arp", format!("arp_ignore is {ignore}: this machine answers for the VIPs and draws their packets past the load balancers: sysctl -w net.ipv4.conf.all.arp_ignore=1"));
    }
    if announce != 2 {
        findings.fail("arp", format!("arp_announce is {announce}: this machine's own ARP requests announce the VIPs to the network: sysctl -w net.ipv4.conf.all.arp_announce=2"));
    }
    if (1..=2).contains(&ignore) && announce == 2 {
        findings.ok("arp", "no request for a VIP is answered, none is sent from one");
    }
}

/// Strict filtering takes packets only from where answers to them would leave.
fn reverse_path(config: &Config, device: &Device, machine: &Machine, findings: &mut Findings) {
    const STRICT: u32 = 1;
    if !has_v4(config) {
        return;
    }
    let routes = &machine.default_routes[0];
    if routes.is_empty() {
        findings.warn("answers", "there is no default route of IPv4: clients that no other route leads to get no answer: ip route add default via GATEWAY");
        return;
    }
    let leaves_here = routes.iter().any(|route| route.devices.contains(&device.index));
    let filter = machine.setting("rp_filter");
    if filter == STRICT && !leaves_here {
        let (name, other) =
            (&device.name, machine.name(routes[0].devices.first().copied().unwrap_or_default()));
        findings.fail(
            "rp_filter",
            format!("it is {filter} and answers leave by {other}: the kernel drops clients' packets, which come by {name}: sysctl -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.{name}.rp_filter=0"),
        );
    } else {
        findings
            .ok("rp_filter", format!("{filter}: packets that come by {} are taken", device.name));
    }
}

fn mtu(config: &Config, device: &Device, machine: &Machine, findings: &mut Findings) {
    // Only where agents are named do packets name any to be passed on to.
    let options = if config.agents.is_empty() { 0 } else { OPTIONS_BYTES };
    let tunnel = tunnel_bytes(config) + options;
    let needed = CLIENT_BYTES + tunnel;
    let ruled = firewall::largest_mss(machine);
    // Where a rule, or every way to clients, announces a smaller MSS, segments fit.
    let announces = |family: usize| {
        let routes = &machine.default_routes[family];
        let largest = device.mtu.saturating_sub(tunnel + SEGMENT_HEADERS_BYTES[family]);
        let fits = |mss: u32| (1..=largest).contains(&mss);
        ruled[family].is_some_and(fits)
            || !routes.is_empty() && routes.iter().all(|route| fits(route.advmss))
    };
    let is_used =
        |family: usize| config.vips.iter().any(|vip| vip.address().is_ipv6() == (family == 1));
    if device.mtu >= needed || (0..2).filter(|family| is_used(*family)).all(announces) {
        findings.ok("mtu", format!("{}: clients' packets fit into tunnels", device.mtu));
        return;
    }
    let (name, mtu) = (&device.name, device.mtu);
    findings.warn(
        "mtu",
        format!("{mtu}: full segments of clients ({CLIENT_BYTES} bytes) do not fit into tunnels, and are sent again smaller: the script of `guideway config backend` lowers their MSS by an nftables rule (`guideway-agent setup`); or raise the fabric's MTU: ip link set {name} mtu {needed}"),
    );
}

/// Of a tunnel's headers, as long as they are here; its options not among them.
fn tunnel_bytes(config: &Config) -> u32 {
    let has_v6 = config.load_balancers.iter().any(|prefix| prefix.address().is_ipv6())
        || config.agents.values().flatten().any(|address| address.is_ipv6());
    let outer_ip = if has_v6 { 40 } else { 20 };
    outer_ip + TUNNEL_BYTES
}

/// The kernel's fallback devices (gre0, tunl0, ...) are there and down where a module is.
fn tunnels(machine: &Machine, findings: &mut Findings) {
    for device in machine.devices.iter().filter(|device| device.is_up) {
        if TUNNELS.contains(&device.kind.as_str()) {
            let Device { name, kind, .. } = device;
            findings.fail(
                "tunnels",
                format!("{name} ({kind}) opens tunnels beside the agent, also from other sources and for other addresses than the config has: ip link del {name}"),
            );
        }
    }
}

fn merging(device: &Device, machine: &Machine, findings: &mut Findings) {
    let Some(offload) = machine.receive_offload else { return };
    let name = &device.name;
    let is_generic = machine.status.as_ref().is_ok_and(|(_, status)| status.mode == "generic");
    if offload.lro {
        findings.fail("offload", format!("{name} merges received packets (LRO), of which the agent sees one: ethtool -K {name} lro off"));
    }
    if offload.gro && is_generic {
        findings.fail("offload", format!("the kernel merges packets of {name} (GRO) before a generic program, and what is sent on is too large: ethtool -K {name} gro off, or mode: native if the driver can"));
    }
}

fn checksums(machine: &Machine, findings: &mut Findings) {
    let count = machine.wrong_checksums;
    if count > 0 {
        findings.fail(
            "checksums",
            format!("the kernel dropped {count} packets in a moment for their checksums: clients or load balancers leave these to a device that the packets do not pass, as between namespaces and virtual machines of one host: there, ethtool -K INTERFACE tx off"),
        );
    }
}

fn conntrack(machine: &Machine, findings: &mut Findings) {
    let Some((count, max)) = machine.conntrack else { return };
    if max > 0 && count * 100 >= max * CONNTRACK_PERCENT_MAX {
        findings.fail(
            "conntrack",
            format!("{count} of {max} entries are taken, and connections beyond are dropped: sysctl -w net.netfilter.nf_conntrack_max={}, or exempt the VIPs (nft: notrack)", max * 4),
        );
    }
}

/// The VIPs that are single addresses.
pub fn single(config: &Config) -> impl Iterator<Item = IpAddr> {
    config.vips.iter().filter(|vip| **vip == IpPrefix::from(vip.address())).map(IpPrefix::address)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::Grade;
    use super::*;

    fn machine(device: Device) -> Machine {
        Machine {
            devices: vec![device],
            local: Vec::new(),
            default_routes: Default::default(),
            routes: BTreeMap::new(),
            listeners: Vec::new(),
            elsewhere: Vec::new(),
            ruleset: Ok("{\"nftables\": []}".to_string()),
            legacy_tables: Vec::new(),
            conntrack: None,
            receive_offload: None,
            settings: BTreeMap::new(),
            multipath: Default::default(),
            status: Err("no agent".to_string()),
            wrong_checksums: 0,
        }
    }

    fn device(kind: &str, is_up: bool) -> Device {
        Device { name: "dev1".to_string(), kind: kind.to_string(), is_up, ..Device::default() }
    }

    fn failures(check: impl FnOnce(&mut Findings)) -> Vec<String> {
        let mut findings = Findings::default();
        check(&mut findings);
        assert!(findings.0.iter().all(|finding| finding.grade == Grade::Fail));
        findings.0.into_iter().map(|finding| finding.text).collect()
    }

    /// Kernels that tests run on may have none of them.
    #[test]
    fn a_tunnel_device_that_is_up_is_found() {
        for kind in TUNNELS {
            let found = failures(|findings| tunnels(&machine(device(kind, true)), findings));
            assert!(found[0].contains("ip link del dev1"), "{found:?}");
            assert!(failures(|f| tunnels(&machine(device(kind, false)), f)).is_empty());
        }
        assert!(failures(|f| tunnels(&machine(device("veth", true)), f)).is_empty());
    }

    #[test]
    fn merging_by_the_device_is_found() {
        let found = |lro, gro| {
            let receive_offload = Some(ebpf::ReceiveOffload { lro, gro });
            let machine = Machine { receive_offload, ..machine(device("", true)) };
            failures(|findings| merging(&machine.devices[0], &machine, findings))
        };
        assert!(found(true, false)[0].contains("ethtool -K dev1 lro off"));
        assert!(found(false, true).is_empty(), "no generic program");
    }

    #[test]
    fn what_is_dropped_for_its_checksum_is_found() {
        let found = |wrong_checksums| {
            let machine = Machine { wrong_checksums, ..machine(device("", true)) };
            failures(|findings| checksums(&machine, findings))
        };
        assert!(found(0).is_empty());
        assert!(found(7)[0].contains("dropped 7 packets"));
    }

    #[test]
    fn a_full_connection_table_is_found() {
        let found = |count| {
            let machine = Machine { conntrack: Some((count, 1000)), ..machine(device("", true)) };
            failures(|findings| conntrack(&machine, findings))
        };
        assert!(found(899).is_empty());
        assert!(found(900)[0].contains("nf_conntrack_max=4000"));
    }
}
