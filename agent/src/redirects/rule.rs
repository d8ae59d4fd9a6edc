//! Rules in messages between agents (docs/formats.md):
//!
//! ```text
//! action 1 | family 1 | client's port 2 | VIP's port 2 | client 4 or 16 | VIP 4 or 16
//! ```

use std::net::Ipv6Addr;

/// A connection's flow as the programs' tables have it: `struct flow` in bpf/flow.h.
pub type Flow = [u8; 36];

/// The longest rule, of IPv6.
pub const BYTES_MAX: usize = 38;

const HEADER_BYTES: usize = 6;

/// What is to become of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It begins, for a handshake.
    Handshake,
    /// It begins, or goes on, for a connection.
    Connection,
    /// It ends.
    End,
}

/// A rule: packets of the flow are its sender's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// What becomes of it.
    pub action: Action,
    /// As packets from the client have it.
    pub flow: Flow,
}

/// The bytes of rules, one behind the other.
pub fn emit(rules: &[Rule]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(rules.len() * BYTES_MAX);
    for Rule { action, flow } in rules {
        let is_v4 = is_mapped(flow, 0) && is_mapped(flow, 16);
        let action = match action {
            Action::Handshake => 1,
            Action::Connection => 2,
            Action::End => 3,
        };
        bytes.extend([action, if is_v4 { 4 } else { 6 }]);
        bytes.extend(&flow[32..]);
        for address in [&flow[..16], &flow[16..32]] {
            bytes.extend(if is_v4 { &address[12..] } else { address });
        }
    }
    bytes
}

/// Reads them; None: they are malformed.
pub fn parse(mut bytes: &[u8]) -> Option<Vec<Rule>> {
    let mut rules = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let action = match header[0] {
            1 => Action::Handshake,
            2 => Action::Connection,
            3 => Action::End,
            _ => return None,
        };
        let mut flow = [0; 36];
        flow[32..].copy_from_slice(&header[2..]);
        bytes = match header[1] {
            4 => {
                let (addresses, rest) = rest.split_first_chunk::<8>()?;
                for (at, address) in [(0, &addresses[..4]), (16, &addresses[4..])] {
                    flow[at + 10..at + 12].fill(0xff);
                    flow[at + 12..at + 16].copy_from_slice(address);
                }
                rest
            }
            6 => {
                let (addresses, rest) = rest.split_first_chunk::<32>()?;
                flow[..32].copy_from_slice(addresses);
                // There is one form of each.
                if is_mapped(&flow, 0) && is_mapped(&flow, 16) {
                    return None;
                }
                rest
            }
            _ => return None,
        };
        rules.push(Rule { action, flow });
    }
    bytes.is_empty().then_some(rules)
}

fn is_mapped(flow: &Flow, at: usize) -> bool {
    let address: [u8; 16] = flow[at..at + 16].try_into().expect("16 bytes");
    Ipv6Addr::from(address).to_ipv4_mapped().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(is_v6: bool) -> Flow {
        let mut flow = [7; 36];
        if !is_v6 {
            for at in [0, 16] {
                flow[at..at + 10].fill(0);
                flow[at + 10..at + 12].fill(0xff);
            }
        }
        flow
    }

    #[test]
    fn rules_are_read_as_they_were_written_and_cut_ones_not_at_all() {
        let rules = [
            Rule { action: Action::Handshake, flow: flow(false) },
            Rule { action: Action::Connection, flow: flow(true) },
            Rule { action: Action::End, flow: flow(false) },
        ];
        let bytes = emit(&rules);
        assert_eq!(bytes.len(), 14 + 38 + 14);
        assert_eq!(parse(&bytes), Some(rules.to_vec()));
        for at in (1..bytes.len()).filter(|at| ![14, 52].contains(at)) {
            assert_eq!(parse(&bytes[..at]), None, "cut off at {at}");
        }
        assert_eq!(parse(&[4, 4, 0, 1, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8]), None, "an action");
        assert_eq!(parse(&[1, 5, 0, 1, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8]), None, "a family");
        assert_eq!(parse(&[]), Some(Vec::new()));
    }
}
