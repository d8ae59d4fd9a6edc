//! Keys of Multipath TCP connections, which load balancers choose so that a
//! connection's token says which bucket it is in (MPLB, section 3.1): SYNs that join
//! it have the token, and servers put its thirteen lowest bits into their timestamps.
//!
//! ```text
//!  SYN ─► key = AES-CBC-MAC(five-tuple, version, initial sequence, client's key)
//!         │ SHA-1 (version 0), SHA-256 (version 1)
//!         └► token, 32 bits ─► bucket: its lowest bits
//! ```
//!
//! A SYN that is repeated gets the same key, another connection of the same five-tuple
//! another one, on every load balancer that has the secret. Held by
//! `vectors/multipath.json`.

use aes::Aes128;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use wire::flow::BLOCK_BYTES;
use wire::tcp_options::Version;
use wire::{Family, FlowKey};

use crate::flow_hash::{Block, first_half};
use crate::secret::Secret;

/// Chooses keys.
#[derive(Clone)]
pub struct MultipathKeys(Aes128);

impl std::fmt::Debug for MultipathKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MultipathKeys")
    }
}

impl MultipathKeys {
    /// For the cluster's secret.
    #[must_use]
    pub fn new(secret: &Secret) -> MultipathKeys {
        MultipathKeys(Aes128::new(&secret.hash_key(b"guideway multipath key\0").into()))
    }

    /// The key of the connection that a SYN of this flow opens.
    #[must_use]
    pub fn key(&self, flow: &FlowKey, version: Version, initial_sequence: u32) -> u64 {
        let (version, client_key) = match version {
            Version::V0 { client_key } => (0u8, client_key),
            Version::V1 => (1, 0),
        };
        // Behind the five-tuple, whose layout ends in zeros: version (1), zero (1), the
        // sequence number (4), the client's key (8).
        let of_syn = u128::from(version) << 104
            | u128::from(initial_sequence) << 64
            | u128::from(client_key);
        let block = match flow.family {
            Family::V4 => {
                let first = u128::from_be_bytes(flow.block_v4()) | of_syn >> 96;
                self.chain(&[first, of_syn << 32])
            }
            Family::V6 => {
                let [first, second, third] = flow.blocks_v6().map(u128::from_be_bytes);
                self.chain(&[first, second, third | of_syn >> 32, of_syn << 96])
            }
        };
        first_half(block)
    }

    fn chain(&self, blocks: &[u128]) -> [u8; BLOCK_BYTES] {
        let state = blocks.iter().fold(0, |state, block| {
            let mut block = Block::from((state ^ block).to_be_bytes());
            self.0.encrypt_block(&mut block);
            u128::from_be_bytes(block.into())
        });
        state.to_be_bytes()
    }
}

/// The token of the connection that has this key.
#[must_use]
pub fn token(version: Version, key: u64) -> u32 {
    let first = |digest: &[u8]| u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
    match version {
        Version::V0 { .. } => first(&Sha1::digest(key.to_be_bytes())),
        Version::V1 => first(&Sha256::digest(key.to_be_bytes())),
    }
}

/// The bucket, of a power of two up to 8192, of a connection that has this token, or one
/// whose timestamps have its thirteen lowest bits.
#[inline]
#[must_use]
pub fn bucket(token: u32, buckets: u32) -> u32 {
    token & (buckets - 1)
}
