//! This agent's keys: a file that `guideway config backend NAME` prints.
//!
//! ```yaml
//! agent: "web-1"
//! key_id: "0123456789abcdef"
//! message_key: "64 hexadecimal digits"
//! bucket_key: "32 hexadecimal digits"
//! ```
//!
//! They come from the cluster's secret, which backends do not have.

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

/// Reads a key file; what is wrong with it is entered in `reader`.
pub fn read(reader: &mut Reader, root: &Node) -> Option<Keys> {
    let mut fields = reader.fields(root)?;
    let what = "as `guideway config backend NAME` prints it";
    let [agent, id, message, bucket] =
        ["agent", "key_id", "message_key", "bucket_key"].map(|name| fields.required(name, what));
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
    Some(Keys { agent: agent_text?, id: id?, message: message?, bucket: bucket? })
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
