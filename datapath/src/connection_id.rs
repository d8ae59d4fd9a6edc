//! QUIC connection ids that name backends (draft-ietf-quic-load-balancers-21, section 5), so
//! that a client that changes its address keeps its server.
//!
//! ```text
//!  first byte          server id, then nonce
//! +-----------+-------------------------------------+
//! | config id | as it is; or one AES block; or four |
//! | 3 bits    | Feistel rounds of AES               |
//! +-----------+-------------------------------------+
//! ```
//!
//! Keys are derived from the cluster's secret and the config's id, so backends know them
//! without receiving them. Tested against `vectors/quic_lb.json`.

use aes::Aes128;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use plan::quic_lb::{CONFIG_IDS, Config};
use plan::{Admission, BackendId, Group, QuicLb};
use wire::quic::ConnectionId;

use crate::block::Block;
use crate::by_flow::ByFlow;
use crate::chosen_member::ChosenMember;
use crate::secret::Secret;

/// The keys of all configs, expanded.
#[derive(Clone)]
pub struct ConnectionIdKeys(Box<[Aes128; CONFIG_IDS]>);

impl std::fmt::Debug for ConnectionIdKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConnectionIdKeys")
    }
}

/// The config id of connection ids that name no server.
const UNROUTABLE: u8 = 7;

impl ConnectionIdKeys {
    /// For the cluster's secret.
    #[must_use]
    pub fn new(secret: &Secret) -> ConnectionIdKeys {
        let key = |id: usize| Aes128::new(&secret.connection_id_key(id as u8).into());
        ConnectionIdKeys(Box::new(std::array::from_fn(key)))
    }

    /// The member that a UDP datagram's connection id names, as long as it keeps
    /// connections.
    #[inline(never)]
    pub(crate) fn member(
        &self,
        quic_lb: &QuicLb,
        group: &Group,
        payload: &[u8],
    ) -> Result<ChosenMember, ByFlow> {
        let id = ConnectionId::parse(payload).ok_or(ByFlow::TooShort)?;
        available(group, self.backend(quic_lb, id.bytes())?)
    }

    /// The backend that a connection id at the beginning of `bytes` names.
    ///
    /// # Errors
    /// Where it names none.
    #[inline]
    pub fn backend(&self, quic_lb: &QuicLb, bytes: &[u8]) -> Result<BackendId, ByFlow> {
        let (_, config, server_id) = self.server_id(quic_lb, bytes)?;
        config.backend(server_id).ok_or(ByFlow::UnknownServer)
    }

    /// The config that a connection id is made by, and the server id, in the highest
    /// bytes.
    #[inline]
    fn server_id<'q>(
        &self,
        quic_lb: &'q QuicLb,
        bytes: &[u8],
    ) -> Result<(u8, &'q Config, u64), ByFlow> {
        let (first, rest) = bytes.split_first().ok_or(ByFlow::TooShort)?;
        let id = first >> 5;
        if id == UNROUTABLE {
            return Err(ByFlow::Unroutable);
        }
        let config = quic_lb.config(id).ok_or(ByFlow::UnknownConfig)?;
        let bytes = rest.get(..config.bytes()).ok_or(ByFlow::TooShort)?;
        let server_id = match config.encrypted {
            true => decrypt(&self.0[usize::from(id)], config, bytes),
            false => padded(bytes),
        };
        Ok((id, config, (server_id >> 64) as u64))
    }

    /// What a connection id says, and what becomes of its packets.
    pub(crate) fn explain(&self, quic_lb: &QuicLb, group: &Group, bytes: &[u8]) -> Explained {
        let (id, config, server_id) = match self.server_id(quic_lb, bytes) {
            Ok(decoded) => decoded,
            Err(by_flow) => return Explained { config: None, backend: None, named: Err(by_flow) },
        };
        let server_id = server_id.to_be_bytes()[..config.server_id_bytes.into()].to_vec();
        let config = Some(ExplainedConfig { id, encrypted: config.encrypted, server_id });
        let backend = self.backend(quic_lb, bytes);
        let named = backend.and_then(|backend| available(group, backend));
        Explained { config, backend: backend.ok(), named }
    }
}

/// What a connection id says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// None: it is not laid out by any of the service's.
    pub config: Option<ExplainedConfig>,
    /// Whose server id it has.
    pub backend: Option<BackendId>,
    /// Where its packets go, or why by their flow.
    pub named: Result<ChosenMember, ByFlow>,
}

/// The config that a connection id is made by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedConfig {
    /// Its id.
    pub id: u8,
    /// Its connection ids are encrypted.
    pub encrypted: bool,
    /// The connection id's server id.
    pub server_id: Vec<u8>,
}

/// The member of that backend, as long as it keeps connections.
#[inline]
fn available(group: &Group, backend: BackendId) -> Result<ChosenMember, ByFlow> {
    match group.member(backend) {
        Some((member, admission)) if admission != Admission::Nothing => {
            Ok(ChosenMember { member, backend })
        }
        _ => Err(ByFlow::Unavailable),
    }
}

/// The server id in the highest bits, with more behind it.
#[inline]
fn decrypt(key: &Aes128, config: &Config, bytes: &[u8]) -> u128 {
    match <[u8; 16]>::try_from(bytes) {
        Ok(block) => {
            let mut block = Block::from(block);
            key.decrypt_block(&mut block);
            u128::from_be_bytes(block.into())
        }
        Err(_) => decrypt_halves(key, usize::from(config.server_id_bytes), bytes),
    }
}

/// Undoes the four rounds; the last one only where a part of the server id is in the
/// right half.
fn decrypt_halves(key: &Aes128, server_id_bytes: usize, bytes: &[u8]) -> u128 {
    let length = bytes.len();
    // Of an odd number of bytes the one in the middle belongs to both halves: four
    // bits each, with zeros in place of the other four.
    let (half_bytes, odd_bits) = (length.div_ceil(2), 4 * (length % 2) as u32);
    let half_bits = 4 * length as u32;
    let left_mask = u128::MAX << (128 - half_bits);
    let right_mask = left_mask >> odd_bits;
    let round = |pass: u128, input: u128| {
        let mut block = Block::from((input | (length as u128) << 8 | pass).to_be_bytes());
        key.encrypt_block(&mut block);
        u128::from_be_bytes(block.into())
    };
    let left = padded(&bytes[..half_bytes]) & left_mask;
    let right = padded(&bytes[length - half_bytes..]) & right_mask;
    let left = (left ^ round(4, right)) & left_mask;
    let right = (right ^ round(3, left)) & right_mask;
    let left = (left ^ round(2, right)) & left_mask;
    if 8 * server_id_bytes as u32 <= half_bits {
        return left;
    }
    let right = (right ^ round(1, left)) & right_mask;
    left | right << odd_bits >> half_bits
}

/// The first 16 bytes, zeros in place of those that are not there.
#[inline]
fn padded(bytes: &[u8]) -> u128 {
    let mut block = [0; 16];
    let count = bytes.len().min(16);
    block[..count].copy_from_slice(&bytes[..count]);
    u128::from_be_bytes(block)
}
