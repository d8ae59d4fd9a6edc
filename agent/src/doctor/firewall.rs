//! Checks whether this machine's firewall may drop packets from clients to a VIP, or
//! answers from a VIP: nftables base chains with policy drop. Rules are not interpreted, so
//! no finding says that a packet passes.

use serde::Deserialize;

use super::Findings;
use super::machine::Machine;

/// Hooks that packets of services pass on a backend.
const HOOKS: [&str; 6] = ["ingress", "prerouting", "input", "output", "postrouting", "egress"];

/// What `nft --json list ruleset` prints, as far as it matters here.
#[derive(Deserialize)]
struct Ruleset {
    nftables: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    chain: Option<Chain>,
}

#[derive(Deserialize)]
struct Chain {
    family: String,
    table: String,
    name: String,
    hook: Option<String>,
    policy: Option<String>,
}

pub fn check(machine: &Machine, findings: &mut Findings) {
    for table in &machine.legacy_tables {
        findings.warn(
            "firewall",
            format!("rules of {table} (legacy) are not examined: iptables-legacy-save shows them"),
        );
    }
    match machine.ruleset.as_ref().map_err(Clone::clone).and_then(|text| dropping_chains(text)) {
        Ok(chains) if chains.is_empty() => {
            findings.ok("firewall", "no base chain has the policy drop; rules are not examined");
        }
        Ok(chains) => findings.warn("firewall", to_be_checked(&chains)),
        Err(problem) => findings.warn(
            "firewall",
            format!("its chains are not known: {problem}: install nftables to have them examined"),
        ),
    }
}

pub fn to_be_checked(chains: &[String]) -> String {
    format!(
        "chains with the policy drop: {}: check that their rules accept the services' ports at the VIPs, in both directions (nft list ruleset)",
        chains.join(", ")
    )
}

/// Base chains on the services' way whose policy is drop.
pub fn dropping_chains(printed: &str) -> Result<Vec<String>, String> {
    let ruleset: Ruleset = serde_json::from_str(printed).map_err(|error| error.to_string())?;
    let drops = |chain: &Chain| {
        chain.policy.as_deref() == Some("drop")
            && chain.hook.as_deref().is_some_and(|hook| HOOKS.contains(&hook))
    };
    let chains = ruleset.nftables.into_iter().filter_map(|item| item.chain).filter(drops);
    Ok(chains.map(|chain| format!("{} {} {}", chain.family, chain.table, chain.name)).collect())
}
