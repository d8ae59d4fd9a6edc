//! Checks whether clients' packets, after decapsulation, find a socket here: nothing may
//! listen, or only in another network namespace.

use std::collections::BTreeSet;
use std::net::IpAddr;

use wire::Protocol;

use super::Findings;
use super::machine::Machine;
use super::network;
use crate::config::{self, Config};
use crate::sockets::Listener;

/// Listeners of other namespaces that are named, at most.
const HINTS_MAX: usize = 16;

/// A service's address and port on this backend.
type Port = (IpAddr, &'static str, u16);

pub fn check(config: &Config, machine: &Machine, findings: &mut Findings) {
    let known = served(machine);
    behind(config, &known, findings);
    listeners(config, machine, &known, findings);
}

/// VIPs that the load balancers have for this backend, and its config lacks.
fn behind(config: &Config, known: &BTreeSet<Port>, findings: &mut Findings) {
    let addresses: BTreeSet<IpAddr> = known.iter().map(|(address, ..)| *address).collect();
    for address in addresses {
        if config::lacks(&config.vips, address) {
            findings.fail("vips", format!("{address} is a VIP of this backend for the load balancers, and not among `vips`: its packets are dropped; run `guideway-agent setup` with what `guideway config backend NAME` prints there now"));
        }
    }
}

/// What the load balancers' controllers say that is served here.
fn served(machine: &Machine) -> BTreeSet<Port> {
    let Ok((_, status)) = &machine.status else { return BTreeSet::new() };
    let protocol = |name: &str| if name == "udp" { "udp" } else { "tcp" };
    status.services.iter().map(|one| (one.address, protocol(&one.protocol), one.port)).collect()
}

fn name(protocol: Protocol) -> &'static str {
    if protocol == Protocol::UDP { "udp" } else { "tcp" }
}

/// True if a packet to this address and port finds the socket.
fn takes(listener: &Listener, (address, protocol, port): Port) -> bool {
    let is_any = match listener.address {
        IpAddr::V4(v4) => v4.is_unspecified() && address.is_ipv4(),
        // Unless the program chose otherwise, for IPv4, too.
        IpAddr::V6(v6) => v6.is_unspecified(),
    };
    name(listener.protocol) == protocol
        && listener.port == port
        && (is_any || listener.address == address)
}

fn listeners(config: &Config, machine: &Machine, known: &BTreeSet<Port>, findings: &mut Findings) {
    let missing: Vec<&Port> = known
        .iter()
        .filter(|port| !machine.listeners.iter().any(|listener| takes(listener, **port)))
        .collect();
    for port in &missing {
        let (address, protocol, number) = port;
        let text = format!(
            "nothing listens on {address} port {number} ({protocol}) in this network namespace"
        );
        let other = machine.elsewhere.iter().find(|(listener, _)| takes(listener, **port));
        findings.fail("sockets", match other {
            Some((_, process)) => format!("{text}, but in that of {process}: the agent finds sockets in its own alone; let the service use this one (host network), or run the agent there: ss -ltnp"),
            None => format!("{text}: start the service, or take this backend out of the pool (ss -ltnup shows what listens)"),
        });
    }
    if missing.is_empty() && !known.is_empty() {
        findings
            .ok("sockets", format!("all {} ports of services have a listener here", known.len()));
    }
    if known.is_empty() {
        some_listener(config, machine, findings);
    }
}

/// Without word from controllers no port is known: what is in no doubt is an address
/// that no socket at all can be reached at.
fn some_listener(config: &Config, machine: &Machine, findings: &mut Findings) {
    let mut without = network::single(config).filter(|vip| {
        let takes_any =
            |listener: &Listener| takes(listener, (*vip, name(listener.protocol), listener.port));
        !machine.listeners.iter().any(takes_any)
    });
    if let Some(vip) = without.next() {
        let others = machine.elsewhere.iter().filter(|(l, _)| takes(l, (vip, "tcp", l.port)));
        let hints: Vec<String> = others
            .map(|(listener, process)| format!("; port {} in that of {process}", listener.port))
            .take(HINTS_MAX)
            .collect();
        let hints = hints.concat();
        findings.fail("sockets", format!("nothing listens on {vip} in this network namespace{hints}: start the service in it, or run the agent where the service is"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vip_that_only_the_load_balancers_know_is_a_failure() {
        let text = "interface: eth0\nload_balancers: [10.0.0.1]\nvips: [203.0.113.0/28]\n";
        let config = Config::parse("agent.yaml", text).unwrap();
        let port = |address: &str, port| (address.parse().unwrap(), "tcp", port);
        let known = BTreeSet::from([
            port("203.0.113.10", 80),
            port("203.0.113.20", 80),
            port("203.0.113.20", 443),
        ]);
        let mut findings = Findings::default();
        behind(&config, &known, &mut findings);
        assert_eq!(findings.0.len(), 1, "{:?}", findings.0);
        assert!(findings.0[0].text.starts_with("203.0.113.20 is a VIP"), "{:?}", findings.0);
    }
}
