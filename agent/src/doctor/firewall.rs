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
    rule: Option<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    expr: Vec<serde_json::Value>,
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

/// The largest MSS that rules set in SYNs, by family (IPv4, IPv6); None: none does.
pub fn largest_mss(machine: &Machine) -> [Option<u32>; 2] {
    let ruleset = machine.ruleset.as_ref().ok().and_then(|text| serde_json::from_str(text).ok());
    let items = ruleset.map(|ruleset: Ruleset| ruleset.nftables).unwrap_or_default();
    let mut largest = [None; 2];
    for rule in items.into_iter().filter_map(|item| item.rule) {
        let Some(mss) = rule.expr.iter().find_map(mss_set) else { continue };
        for (family, protocol) in ["ip", "ip6"].into_iter().enumerate() {
            if rule.is_of(protocol) {
                largest[family] = largest[family].max(Some(mss));
            }
        }
    }
    largest
}

/// The MSS that an expression sets, where it is a number.
fn mss_set(expression: &serde_json::Value) -> Option<u32> {
    let mangled = expression.pointer("/mangle/key/tcp option/name")?;
    let value = expression.pointer("/mangle/value")?.as_u64()?;
    (mangled == "maxseg").then(|| value.try_into().ok())?
}

impl Rule {
    /// It matches packets of this protocol, or of either.
    fn is_of(&self, protocol: &str) -> bool {
        let named = |expression: &serde_json::Value| {
            expression.pointer("/match/left/payload/protocol")?.as_str().map(str::to_owned)
        };
        let mut families =
            self.expr.iter().filter_map(named).filter(|name| name == "ip" || name == "ip6");
        families.next().is_none_or(|name| name == protocol)
    }
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
