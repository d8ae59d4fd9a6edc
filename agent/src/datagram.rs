//! The header of datagrams between agents and controllers (docs/formats.md), and the
//! code that authenticates them.
//!
//! ```text
//! magic 4 | version 1 | kind 1 | part 1 | parts 1 | boot 8 | nonce 16 |
//! sequence 8 | key id 8 | name length 1 | name | body | MAC 16
//! ```

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::config::{KEY_ID_BYTES, Keys};

const MAGIC: &[u8; 4] = b"GWAG";
const VERSION: u8 = 1;
const FIXED_BYTES: usize = 49;
const MAC_BYTES: usize = 16;

/// Never fragmented: the smallest MTU of IPv6 without its header and UDP's.
pub const BYTES_MAX: usize = 1232;

/// Parts that a message has at most.
pub const PARTS_MAX: usize = 255;

/// What the receiver gives, and the sender shows.
pub type Nonce = [u8; 16];

const KIND_AT: usize = 5;

/// Who a datagram is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An agent.
    State = 1,
    /// A controller.
    Answer = 2,
    /// An agent, to another one.
    Rules = 3,
    /// That one.
    RulesAnswer = 4,
}

/// What is before the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// From an agent or from a controller.
    pub kind: Kind,
    /// Which of the datagrams that are one message: from 0.
    pub part: u8,
    /// How many they are.
    pub parts: u8,
    /// Differs each time the agent starts.
    pub boot: u64,
    /// The controller's.
    pub nonce: Nonce,
    /// Of the state that this is, or that is answered.
    pub sequence: u64,
}

/// Why a datagram counts for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// It is none of ours, or cut off.
    Malformed,
    /// It was signed by a key of another secret, or for another agent.
    OtherKey,
    /// It was not signed by our key.
    Forged,
}

/// Room for the body of a datagram from or to this agent.
pub fn body_bytes_max(keys: &Keys) -> usize {
    BYTES_MAX - FIXED_BYTES - keys.agent.len() - MAC_BYTES
}

/// Signs a datagram.
pub fn emit(keys: &Keys, header: &Header, body: &[u8]) -> Vec<u8> {
    let name_len = u8::try_from(keys.agent.len()).expect("a key file has no longer name");
    let mut bytes = MAGIC.to_vec();
    bytes.extend([VERSION, header.kind as u8, header.part, header.parts]);
    bytes.extend(header.boot.to_be_bytes());
    bytes.extend(header.nonce);
    bytes.extend(header.sequence.to_be_bytes());
    bytes.extend(keys.id);
    bytes.push(name_len);
    bytes.extend(keys.agent.as_bytes());
    bytes.extend(body);
    let code = mac(keys, &bytes).finalize().into_bytes();
    bytes.extend(&code[..MAC_BYTES]);
    bytes
}

/// True for what says that it answers a request for rules.
pub fn is_answer_to_rules(bytes: &[u8]) -> bool {
    bytes.get(KIND_AT) == Some(&(Kind::RulesAnswer as u8))
}

/// Reads a datagram that is this agent's, with its body.
pub fn parse<'d>(keys: &Keys, bytes: &'d [u8]) -> Result<(Header, &'d [u8]), Refused> {
    let end = bytes.len().checked_sub(MAC_BYTES).ok_or(Refused::Malformed)?;
    let (signed, code) = bytes.split_at(end);
    let (fixed, rest) = signed.split_at_checked(FIXED_BYTES).ok_or(Refused::Malformed)?;
    let header = header(fixed).ok_or(Refused::Malformed)?;
    let name_len = usize::from(fixed[FIXED_BYTES - 1]);
    let (name, body) = rest.split_at_checked(name_len).ok_or(Refused::Malformed)?;
    if fixed[40..40 + KEY_ID_BYTES] != keys.id || name != keys.agent.as_bytes() {
        return Err(Refused::OtherKey);
    }
    mac(keys, signed).verify_truncated_left(code).map_err(|_| Refused::Forged)?;
    Ok((header, body))
}

fn header(fixed: &[u8]) -> Option<Header> {
    let kind = match fixed[KIND_AT] {
        1 => Kind::State,
        2 => Kind::Answer,
        3 => Kind::Rules,
        4 => Kind::RulesAnswer,
        _ => return None,
    };
    let header = Header {
        kind,
        part: fixed[6],
        parts: fixed[7],
        boot: u64::from_be_bytes(fixed[8..16].try_into().ok()?),
        nonce: fixed[16..32].try_into().ok()?,
        sequence: u64::from_be_bytes(fixed[32..40].try_into().ok()?),
    };
    let is_ours = &fixed[..4] == MAGIC && fixed[4] == VERSION && header.part < header.parts;
    is_ours.then_some(header)
}

fn mac(keys: &Keys, signed: &[u8]) -> Hmac<Sha256> {
    let mac = Hmac::<Sha256>::new_from_slice(&keys.message).expect("any length is a key");
    mac.chain_update(signed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect()
    }

    fn text(value: &serde_json::Value, key: &str) -> String {
        value[key].as_str().unwrap_or_else(|| panic!("no text `{key}` in {value}")).to_string()
    }

    #[test]
    fn datagrams_are_the_same_in_every_language() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/agent_messages.json");
        let vectors = std::fs::read_to_string(path).unwrap();
        let vectors: Vec<serde_json::Value> = serde_json::from_str(&vectors).unwrap();
        let mut looked = 0;
        for case in &vectors {
            let field = |key| bytes(&text(case, key));
            let keys = Keys {
                agent: text(case, "agent"),
                id: field("key_id").try_into().unwrap(),
                message: field("message_key").try_into().unwrap(),
                bucket: field("bucket_key").try_into().unwrap(),
            };
            for datagram in case["datagrams"].as_array().unwrap() {
                let number = |key: &str| datagram[key].as_u64().unwrap();
                let header = Header {
                    kind: match text(datagram, "kind").as_str() {
                        "state" => Kind::State,
                        "answer" => Kind::Answer,
                        "rules" => Kind::Rules,
                        "rules_answer" => Kind::RulesAnswer,
                        other => panic!("{other}"),
                    },
                    part: number("part") as u8,
                    parts: number("parts") as u8,
                    boot: u64::from_str_radix(&text(datagram, "boot"), 16).unwrap(),
                    nonce: bytes(&text(datagram, "nonce")).try_into().unwrap(),
                    sequence: number("sequence"),
                };
                let body = bytes(&text(datagram, "body"));
                let emitted = emit(&keys, &header, &body);
                assert_eq!(emitted, bytes(&text(datagram, "datagram")), "{datagram}");
                assert_eq!(parse(&keys, &emitted), Ok((header, body.as_slice())));
                looked += 1;
            }
        }
        assert!(looked > 0, "no vectors");
    }

    #[test]
    fn what_is_changed_or_cut_off_counts_for_nothing() {
        let keys =
            Keys { agent: "web-1".to_string(), id: [1; 8], message: [2; 32], bucket: [3; 16] };
        let header =
            Header { kind: Kind::Answer, part: 0, parts: 1, boot: 1, nonce: [4; 16], sequence: 5 };
        let good = emit(&keys, &header, b"body");
        assert!(parse(&keys, &good).is_ok());
        for at in 0..good.len() {
            let mut changed = good.clone();
            changed[at] ^= 1;
            assert!(parse(&keys, &changed).is_err(), "byte {at}");
            assert!(parse(&keys, &good[..at]).is_err(), "cut off at {at}");
        }
    }
}
