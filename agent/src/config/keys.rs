//! This agent's keys, from a file that `guideway config backend NAME` prints.
//!
//! ```yaml
//! agent: "web-1"
//! key_id: "0123456789abcdef"
//! message_key: "64 hexadecimal digits"
//! bucket_key: "32 hexadecimal digits"
//! peers:
//!   "web-2": "64 hexadecimal digits"
//! ```
//!
//! They are derived from the cluster's secret, which backends do not have.

use std::collections::BTreeMap;
use std::fmt;

use super::fields::{Node, Reader};

/// Bytes of the name of a secret.
pub const KEY_ID_BYTES: usize = 8;

/// The longest name of an agent.
const NAME_BYTES_MAX: usize = 255;

/// What this agent knows of the cluster's secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// The backend's name.
    pub agent: String,
    /// Names the secret without giving it away.
    pub id: [u8; KEY_ID_BYTES],
    /// Authenticates messages from and to this agent.
    pub message: [u8; 32],
    /// Of the hash that selects buckets.
    pub bucket: [u8; 16],
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.agent)
    }
}

/// By name of another agent: authenticates messages between it and this one.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Peers(pub BTreeMap<String, [u8; 32]>);

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Reads a key file; what is wrong with it is entered in `reader`. Files of old have no
/// peers.
pub fn read(reader: &mut Reader, root: &Node) -> Option<(Keys, Peers)> {
    let mut fields = reader.fields(root)?;
    let what = "as `guideway config backend NAME` prints it";
    let [agent, id, message, bucket] =
        ["agent", "key_id", "message_key", "bucket_key"].map(|name| fields.required(name, what));
    let peers = fields.optional("peers");
    fields.finish();
    let agent_text = agent.as_ref().and_then(|node| reader.text(node));
    if let (Some(node), Some(name)) = (&agent, &agent_text)
        && name.len() > NAME_BYTES_MAX
    {
        reader.refuse(node, &format!("has more than {NAME_BYTES_MAX} bytes"));
    }
    let id = id.and_then(|node| hex(reader, &node));
    let message = message.and_then(|node| hex(reader, &node));
    let bucket = bucket.and_then(|node| hex(reader, &node));
    let keys = Keys { agent: agent_text?, id: id?, message: message?, bucket: bucket? };
    let peers = peers.map(|node| read_peers(reader, &node)).unwrap_or_default();
    Some((keys, peers))
}

fn read_peers(reader: &mut Reader, node: &Node) -> Peers {
    let entries = reader.entries(node);
    let peers = entries.into_iter().filter_map(|(name, node)| {
        if name.len() > NAME_BYTES_MAX {
            reader.refuse(&node, &format!("is of a name with more than {NAME_BYTES_MAX} bytes"));
        }
        Some((name, hex(reader, &node)?))
    });
    Peers(peers.collect())
}

fn hex<const BYTES: usize>(reader: &mut Reader, node: &Node) -> Option<[u8; BYTES]> {
    let text = reader.text(node)?;
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let Some(digits) = digits.filter(|digits| digits.len() == 2 * BYTES) else {
        let digits = 2 * BYTES;
        let cure = "print it anew by `guideway config backend NAME`";
        reader.refuse(node, &format!("is not {digits} hexadecimal digits in quotes: {cure}"));
        return None;
    };
    Some(std::array::from_fn(|at| digits[2 * at] << 4 | digits[2 * at + 1]))
}
