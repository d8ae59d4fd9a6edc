//! Whether the kernel can do the handshakes of services with Multipath TCP.

use super::Findings;
use super::machine::Machine;
use crate::config::Config;
use crate::redirects;

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
    if problems.is_empty() {
        findings.ok("mptcp", "the kernel has what handshakes of Multipath TCP need");
    }
}
