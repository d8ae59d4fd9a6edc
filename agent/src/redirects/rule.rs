//! The encoding of rules in messages between agents (docs/formats.md):
//!
//! ```text
//! action 1 | family 1 | client's port 2 | VIP's port 2 | client 4 or 16 | VIP 4 or 16
//! ```

use zerocopy::IntoBytes;
use zerocopy::network_endian::U16;

use crate::records::{Address, Flow, mapped};

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
        let is_v4 = flow.is_v4();
        let action = match action {
            Action::Handshake => 1,
            Action::Connection => 2,
            Action::End => 3,
        };
        bytes.extend([action, if is_v4 { 4 } else { 6 }]);
        bytes.extend(flow.client_port.as_bytes());
        bytes.extend(flow.vip_port.as_bytes());
        for address in [&flow.client, &flow.vip] {
            bytes.extend(if is_v4 { &address[12..] } else { &address[..] });
        }
    }
    bytes
}

/// Reads them; None: they are malformed.
pub fn parse(mut bytes: &[u8]) -> Option<Vec<Rule>> {
    let mut rules = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let [action, family, c0, c1, v0, v1] = *header;
        let action = match action {
            1 => Action::Handshake,
            2 => Action::Connection,
            3 => Action::End,
            _ => return None,
        };
        let ([client, vip], rest) = match family {
            4 => addresses(rest, |bytes: [u8; 4]| mapped(bytes.into()))?,
            6 => addresses(rest, |bytes: [u8; 16]| bytes)?,
            _ => return None,
        };
        let ports = [[c0, c1], [v0, v1]].map(U16::from_bytes);
        let flow = Flow { client, vip, client_port: ports[0], vip_port: ports[1] };
        // There is one form of each.
        if flow.is_v4() != (family == 4) {
            return None;
        }
        rules.push(Rule { action, flow });
        bytes = rest;
    }
    bytes.is_empty().then_some(rules)
}

/// The client's and the VIP's address, and what is behind them.
fn addresses<const BYTES: usize>(
    bytes: &[u8],
    address: impl Fn([u8; BYTES]) -> Address,
) -> Option<([Address; 2], &[u8])> {
    let (client, rest) = bytes.split_first_chunk::<BYTES>()?;
    let (vip, rest) = rest.split_first_chunk::<BYTES>()?;
    Some(([address(*client), address(*vip)], rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(is_v6: bool) -> Flow {
        let address = if is_v6 { [7; 16] } else { mapped([7; 4].into()) };
        let port = 0x0707.into();
        Flow { client: address, vip: address, client_port: port, vip_port: port }
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
