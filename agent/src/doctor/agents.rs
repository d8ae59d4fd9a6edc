//! Checks the running agent, its present drops, and what its config says about itself and
//! other agents.

use std::net::IpAddr;

use super::Findings;
use super::machine::Machine;
use crate::config::Config;
use crate::status::{Configured, Status};

/// What cures packets that are dropped, or left to the kernel, by a name.
const CURES: [(&str, &str, &str); 12] = [
    (
        "dropped",
        "not_vip",
        "load balancers send packets to addresses that `vips` lacks: print the config anew (guideway config backend NAME, on a load balancer)",
    ),
    (
        "dropped",
        "not_agent",
        "load balancers name agents that `agents` lacks: print the config anew (guideway config backend NAME, on a load balancer), on every backend",
    ),
    (
        "dropped",
        "no_neighbour",
        "the next hop to another agent does not answer: guideway-agent status shows which, and why",
    ),
    (
        "dropped",
        "too_big",
        "the route to another agent has a smaller MTU than the packets that come: give it a route of its own without `mtu` (ip route replace)",
    ),
    (
        "dropped",
        "outer_fragment",
        "the fabric fragments tunnelled packets: raise its MTU, or let clients send less: `guideway config backend` prints the nftables rule",
    ),
    (
        "dropped",
        "gre_recursion",
        "the packets are for a load balancer: this address is a peer's in the load balancers' config",
    ),
    ("dropped", "geneve_option", "load balancers are newer than this agent: upgrade it"),
    (
        "dropped",
        "route_option",
        "load balancers and this agent are of versions that do not fit: upgrade it",
    ),
    (
        "dropped",
        "hop_limit",
        "agents send packets in a circle: their configs differ; print them anew (guideway config backend NAME)",
    ),
    (
        "dropped",
        "inner_protocol",
        "something that is no load balancer sends tunnels from one's address",
    ),
    (
        "dropped",
        "outer_header",
        "something between damages tunnelled packets, or the NIC's checksums: ethtool -S shows which",
    ),
    (
        "passed",
        "unknown_source",
        "tunnels come from an address that `load_balancers` lacks (tcpdump -ni INTERFACE 'proto gre or udp port 6080 or 6081'): add it if it is a load balancer, and restart",
    ),
];

pub fn check(config: &Config, machine: &Machine, findings: &mut Findings) {
    match &machine.status {
        Ok((before, now)) => {
            running(config, now, findings);
            others(config, now, findings);
            controllers(now, findings);
            growing(before, now, findings);
        }
        Err(problem) => findings.fail("agent", problem),
    }
    own_addresses(config, machine, findings);
    routes(config, machine, findings);
}

fn running(config: &Config, status: &Status, findings: &mut Findings) {
    if status.configured != Configured::of(config) {
        let file = status.config_file.display();
        findings.fail(
            "agent",
            format!("it runs with another config than this file has now (it read {file}): systemctl restart guideway-agent"),
        );
    } else {
        let Status { version, mode, .. } = status;
        findings.ok("agent", format!("version {version} takes packets out of tunnels ({mode})"));
    }
}

fn others(config: &Config, status: &Status, findings: &mut Findings) {
    let before = findings.problems();
    for other in &status.other_agents {
        if let Some(problem) = &other.problem {
            let (name, address) = (&other.name, other.address);
            findings.fail(
                "agents",
                format!("packets cannot be sent on to {name} ({address}): {problem}; is that backend up, and is the address in `agents` its own? ip route get {address}; ping {address}"),
            );
        }
    }
    if findings.problems() == before && !status.other_agents.is_empty() {
        let (count, name) = (status.other_agents.len(), &config.name);
        findings.ok("agents", format!("this is {name}; {count} addresses of others are reached"));
    }
}

fn controllers(status: &Status, findings: &mut Findings) {
    /// A controller sets intervals of at most this, twice.
    const SILENCE_SECONDS_MAX: f64 = 120.0;
    // The first answers are still to come.
    const UPTIME_SECONDS_MIN: u64 = 10;
    let silent = status.controllers.iter().filter(|controller| {
        controller.answered_seconds_ago.is_none_or(|ago| ago > SILENCE_SECONDS_MAX)
    });
    let silent: Vec<&str> = silent.map(|controller| controller.address.as_str()).collect();
    if status.uptime_seconds < UPTIME_SECONDS_MIN || status.controllers.is_empty() {
        return;
    }
    if silent.is_empty() {
        findings.ok("controllers", format!("all {} answer", status.controllers.len()));
    } else if silent.len() < status.controllers.len() {
        // A load balancer that is down is no fault of the backend's.
        findings.warn(
            "controllers",
            format!("{} do not answer: are they load balancers that are up, with `agents` in their config and UDP port 9475 open?", silent.join(", ")),
        );
    } else {
        findings.fail(
            "controllers",
            format!("none answers ({}): write `agents: {{}}` into the load balancers' config, open UDP port 9475 there, and print the key file anew (guideway config backend NAME --keys)", silent.join(", ")),
        );
    }
}

fn growing(before: &Status, now: &Status, findings: &mut Findings) {
    let count = |status: &Status, group: &str, name: &str| {
        status.packets.get(group).and_then(|group| group.get(name)).copied().unwrap_or_default()
    };
    for (group, name, cure) in CURES {
        let grown = count(now, group, name).saturating_sub(count(before, group, name));
        if grown > 0 {
            findings.fail(
                "packets",
                format!("{grown} within half a second were {group} as {name}: {cure}"),
            );
        }
    }
}

/// The config is printed on another machine: it may be another backend's.
fn own_addresses(config: &Config, machine: &Machine, findings: &mut Findings) {
    let is_here = |address: &IpAddr| {
        machine.local.iter().any(|local| local.prefix == wire::IpPrefix::from(*address))
    };
    let Some(own) = config.agents.get(&config.name) else { return };
    for address in own.iter().filter(|address| !is_here(address)) {
        let name = &config.name;
        let mut others = config.agents.iter().filter(|(other, _)| *other != name);
        let other = others.find(|(_, addresses)| addresses.iter().any(is_here));
        let cure = match other {
            Some((other, _)) => format!(
                "this machine has the address of {other}: write name: {other}, with its key file"
            ),
            None => {
                "write this machine's address there (ip address show), on every backend".to_string()
            }
        };
        findings.fail(
            "agents",
            format!(
                "`name` is {name}, and its address {address} is none of this machine's: {cure}"
            ),
        );
    }
}

/// What is sent on takes the kernel's route, by the config's interface.
fn routes(config: &Config, machine: &Machine, findings: &mut Findings) {
    let Some(device) = machine.device(&config.interface) else { return };
    for (agent, hops) in &machine.routes {
        // That there is none the running agent says.
        let Ok(hops) = hops else { continue };
        let narrow = hops.iter().filter(|hop| !hop.is_default).find_map(|hop| hop.mtu);
        if let Some(mtu) = narrow.filter(|mtu| *mtu < device.mtu) {
            let (name, wide) = (&device.name, device.mtu);
            findings.warn(
                "agents",
                format!("the route to {agent} has mtu {mtu}, and {name} has {wide}: larger packets that are to be sent on there are dropped as too_big; give it a route without one: ip route replace {agent} via GATEWAY dev {name}"),
            );
        }
    }
}
