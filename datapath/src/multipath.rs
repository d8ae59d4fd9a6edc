//! Keys of Multipath TCP connections, chosen by load balancers so that a connection's token
//! identifies its bucket (MPLB, section 3.1). SYNs that join the connection carry the token,
//! and servers put its 13 lowest bits into their timestamps.
//!
//! ```text
//!  SYN ─► key = AES-CBC-MAC(five-tuple, version, initial sequence, client's key)
//!         │ SHA-1 (version 0), SHA-256 (version 1)
//!         └► token, 32 bits ─► bucket: its lowest bits
//! ```
//!
//! On every load balancer with the secret, a repeated SYN gets the same key, and another
//! connection with the same five-tuple gets another one. Tested against
//! `vectors/multipath.json`.

use aes::Aes128;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use wire::flow::BLOCK_BYTES;
use wire::tcp::Flags;
use wire::tcp_options::{self, Malformed, Version};
use wire::{Family, FlowKey};

use crate::block::{Block, first_half};
use crate::secret::Secret;

/// What the hashes begin with (FIPS 180-4, sections 5.3.1 and 5.3.3).
const SHA1_INITIAL: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
const SHA256_INITIAL: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// Of a TCP header.
pub(crate) const FLAGS_OFFSET: usize = 13;

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

    /// What selects the bucket of a TCP segment of a service with Multipath TCP (MPLB,
    /// figure 6).
    #[inline]
    pub(crate) fn selection(&self, flow: impl FnOnce() -> FlowKey, segment: &[u8]) -> Selection {
        match tcp_options::signal(segment) {
            Ok(tcp_options::Signal::Echo(echo)) => Selection::Echo(echo),
            Ok(tcp_options::Signal::Join { token }) => Selection::Token(token),
            Ok(tcp_options::Signal::Capable { version, initial_sequence }) => {
                let key = self.key(&flow(), version, initial_sequence);
                Selection::Key { version, key, token: token(version, key) }
            }
            Ok(tcp_options::Signal::None) => Selection::Flow(WithoutBits::of(segment)),
            Err(malformed) => Selection::Flow(malformed.into()),
        }
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

/// What selects the bucket of a TCP segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// A SYN requests a connection of several paths, which gets this key.
    Key {
        /// The protocol's version.
        version: Version,
        /// The key.
        key: u64,
        /// The key's.
        token: u32,
    },
    /// A SYN joins the connection of this token.
    Token(u32),
    /// A timestamp of the server's is echoed, whose lowest bits are those of a token or
    /// the bucket of a plain connection.
    Echo(u32),
    /// The five-tuple: it says no bits of a bucket.
    Flow(WithoutBits),
}

impl Selection {
    /// Whose lowest are the bucket's number; None: the five-tuple selects.
    #[inline]
    #[must_use]
    pub fn bits(self) -> Option<u32> {
        match self {
            Selection::Key { token, .. } | Selection::Token(token) => Some(token),
            Selection::Echo(echo) => Some(echo),
            Selection::Flow(_) => None,
        }
    }

    /// What the load balancer chose for the connection that it opens; 0: it opens none of
    /// several paths.
    #[inline]
    #[must_use]
    pub fn key(self) -> u64 {
        match self {
            Selection::Key { key, .. } => key,
            _ => 0,
        }
    }

    /// Its index in [`Selection::NAMES`].
    #[inline(always)]
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Selection::Key { version: Version::V0 { .. }, .. } => 0,
            Selection::Key { version: Version::V1, .. } => 1,
            Selection::Token(_) => 2,
            Selection::Echo(_) => Selection::ECHO,
            Selection::Flow(why) => 4 + why as usize,
        }
    }

    /// The index of echoes.
    pub(crate) const ECHO: usize = 3;
    /// How many names there are.
    pub const COUNT: usize = Selection::NAMES.len();
    /// The names in metrics and journeys.
    pub const NAMES: [&'static str; 9] = [
        "key_v0",
        "key_v1",
        "token",
        "timestamp",
        "plain_syn",
        "no_timestamp",
        "cut_option",
        "option_length",
        "repeated_option",
    ];

    /// Its name in metrics and journeys.
    #[must_use]
    pub fn name(self) -> &'static str {
        Selection::NAMES[self.index()]
    }
}

/// Why a segment's five-tuple selects its bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithoutBits {
    /// A SYN without an option of Multipath TCP that counts.
    PlainSyn,
    /// No SYN, and it echoes no timestamp.
    NoTimestamp,
    /// An option ends behind the header, or says that it has less than two bytes.
    CutOption,
    /// An option has a length that its kind does not have.
    OptionLength,
    /// There are two options of a kind.
    RepeatedOption,
}

impl WithoutBits {
    /// Of a segment whose options are in order.
    #[inline]
    fn of(segment: &[u8]) -> WithoutBits {
        match is_syn(segment) {
            true => WithoutBits::PlainSyn,
            false => WithoutBits::NoTimestamp,
        }
    }
}

impl From<Malformed> for WithoutBits {
    fn from(malformed: Malformed) -> WithoutBits {
        match malformed {
            Malformed::Cut => WithoutBits::CutOption,
            Malformed::Length => WithoutBits::OptionLength,
            Malformed::Repeated => WithoutBits::RepeatedOption,
        }
    }
}

/// True for a segment that opens a connection or a path of one.
#[inline]
fn is_syn(segment: &[u8]) -> bool {
    segment.get(FLAGS_OFFSET).is_some_and(|flags| Flags(*flags).opens())
}

/// True for a SYN that requests a connection of several paths.
pub(crate) fn is_requested(syn: &[u8]) -> bool {
    matches!(tcp_options::signal(syn), Ok(tcp_options::Signal::Capable { .. }))
}

/// The token of the connection that has this key: the first word of its digest.
#[inline]
#[must_use]
pub fn token(version: Version, key: u64) -> u32 {
    let block = only_block(key);
    match version {
        Version::V0 { .. } => {
            let mut state = SHA1_INITIAL;
            sha1::block_api::compress(&mut state, &[block]);
            state[0]
        }
        Version::V1 => {
            let mut state = SHA256_INITIAL;
            sha2::block_api::compress256(&mut state, &[block]);
            state[0]
        }
    }
}

/// The one block that a key is digested in, padded as both hashes require (FIPS 180-4,
/// section 5.1.1). By the hashes' own buffers it takes half as long again.
#[inline]
fn only_block(key: u64) -> [u8; 64] {
    let mut block = [0; 64];
    block[..8].copy_from_slice(&key.to_be_bytes());
    block[8] = 0x80;
    block[56..].copy_from_slice(&u64::from(u64::BITS).to_be_bytes());
    block
}

/// The bucket, of a power of two up to 8192, of a connection that has this token, or one
/// whose timestamps have its thirteen lowest bits.
#[inline]
#[must_use]
pub fn bucket(token: u32, buckets: u32) -> u32 {
    token & (buckets - 1)
}
