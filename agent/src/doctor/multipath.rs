//! Checks whether the kernel can do the handshakes of services with Multipath TCP.

use super::Findings;
use super::machine::Machine;
use crate::config::Config;
use crate::redirects;

/// SYNs from which on it is no accident that they are not answered.
const SYNS_MIN: u64 = 10;

pub fn check(config: &Config, machine: &Machine, findings: &mut Findings) {
    if config.multipath.is_empty() {
        return;
    }
    let problems = machine.multipath.problems(config);
    for problem in &problems {
        let text = format!("{}: {}", problem.text, problem.cure);
        if problem.is_fatal {
            findings.fail("mptcp", format!("{text}; until then connections are plain TCP"));
        } else {
            findings.warn("mptcp", text);
        }
    }
    let missing = redirects::without_key(config);
    if !missing.is_empty() {
        let missing = missing.join(", ");
        let text = format!(
            "no key for messages to {missing}, so connections of clients without timestamps become plain TCP, and their RSTs and ICMP errors may be lost: print the key file anew by `guideway config backend NAME --keys`"
        );
        findings.warn("mptcp", text);
    }
    let are_answered = answers(config, machine, findings);
    if problems.is_empty() && are_answered {
        findings.ok("mptcp", "the kernel has what handshakes of Multipath TCP need");
    }
}

/// Whether the SYNs that the kernel gets by a device of the agent's are answered, or nothing
/// is known of them: seen by what comes of them, as firewalls are not interpreted.
fn answers(config: &Config, machine: &Machine, findings: &mut Findings) -> bool {
    let Ok((_, status)) = &machine.status else { return true };
    let Some(multipath) = &status.multipath else { return true };
    let count = |event: &str| multipath.events.get(event).copied().unwrap_or_default();
    let (given, answered) =
        (count("syn_cookie"), count("syn_ack_keyed") + count("syn_ack_stripped"));
    if given < SYNS_MIN || answered >= given / 2 {
        return true;
    }
    let interface = &config.interface;
    let text = format!(
        "{given} SYNs came to the kernel by gw-mptcp, and {answered} were answered: a firewall that accepts by interface has to accept that one, too (nft: iifname {{ {interface}, gw-mptcp }}); else no server listens"
    );
    findings.fail("mptcp", text);
    false
}
