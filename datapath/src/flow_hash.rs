//! The flow hash: AES-128 with the cluster key over the five-tuple.
//!
//! It is a pseudo-random function: without the key nobody can aim at a backend or a bucket. It
//! is the same on every machine, CPU and version. One block for IPv4; for IPv6 CBC-MAC over
//! three, which is sound because the first byte determines the length. Tested against
//! `vectors/flow_hash.json`.

use aes::Aes128;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use arrayvec::ArrayVec;
use plan::{Affinity, Service, Tracking};
use wire::flow::BLOCK_BYTES;
use wire::{BATCH_MAX, Family, FlowKey};

use crate::block::{Block, first_half};
use crate::connection_id::ConnectionIdKeys;
use crate::multipath::MultipathKeys;
use crate::secret::Secret;

/// What keys are made of a secret for.
const FLOWS_PURPOSE: &[u8] = b"guideway flow hash\0";
const BUCKETS_PURPOSE: &[u8] = b"guideway bucket hash\0";

/// Hashes five-tuples under the cluster's keys, and reads QUIC connection ids by them.
#[derive(Clone)]
pub struct FlowHash {
    flows: KeyedHash,
    /// Of stateless services: backends' agents have this key, too.
    buckets: KeyedHash,
    pub(crate) connection_ids: ConnectionIdKeys,
    pub(crate) multipath: MultipathKeys,
}

/// What a backend's agent knows of the hash: that of buckets.
#[derive(Clone)]
pub struct BucketHash(KeyedHash);

impl BucketHash {
    /// By the key itself, which agents have instead of the secret.
    #[must_use]
    pub fn from_key(key: [u8; 16]) -> BucketHash {
        BucketHash(KeyedHash { cipher: Aes128::new(&key.into()) })
    }

    /// What selects the bucket of a stateless service's flow.
    #[must_use]
    pub fn selector(&self, affinity: Affinity, key: &FlowKey) -> u64 {
        self.0.bucket(affinity, key)
    }
}

/// The hash under one key.
#[derive(Clone)]
struct KeyedHash {
    cipher: Aes128,
}

impl std::fmt::Debug for FlowHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FlowHash")
    }
}

/// The five-tuples of a batch, then their hashes.
#[derive(Clone)]
pub struct Flows {
    /// The block of each, at its index; later its hash.
    blocks: [Block; BATCH_MAX],
    /// The first blocks of those that have further ones.
    states: ArrayVec<Block, BATCH_MAX>,
    /// In the same order.
    chained: ArrayVec<Chained, BATCH_MAX>,
}

/// The further blocks of an IPv6 flow.
#[derive(Clone)]
struct Chained {
    flow: u8,
    further: [[u8; BLOCK_BYTES]; 2],
}

impl Default for Flows {
    fn default() -> Flows {
        let blocks = [Block::default(); BATCH_MAX];
        Flows { blocks, states: ArrayVec::new(), chained: ArrayVec::new() }
    }
}

impl Flows {
    /// Sets one flow: one block for IPv4, three for IPv6.
    #[inline(always)]
    pub fn set<const BLOCKS: usize>(&mut self, index: usize, blocks: &[[u8; BLOCK_BYTES]; BLOCKS]) {
        match blocks.as_slice() {
            [first, second, third] => {
                self.states.push((*first).into());
                self.chained.push(Chained { flow: index as u8, further: [*second, *third] });
            }
            _ => self.blocks[index] = blocks[0].into(),
        }
    }

    /// Sets one flow.
    pub fn set_key(&mut self, index: usize, key: &FlowKey) {
        match key.family {
            Family::V4 => self.set(index, &[key.block_v4()]),
            Family::V6 => self.set(index, &key.blocks_v6()),
        }
    }

    /// All hashes, once they are made by [`FlowHash::flows`]; undefined where
    /// no flow was set.
    #[inline]
    pub fn hashes(&self) -> impl Iterator<Item = u64> {
        self.blocks.iter().map(|block| first_half((*block).into()))
    }
}

impl FlowHash {
    /// For the cluster's secret.
    #[must_use]
    pub fn new(secret: &Secret) -> FlowHash {
        FlowHash::under(secret, FLOWS_PURPOSE)
    }

    /// One that says nothing of [`FlowHash::new`]'s: a worker that got its
    /// flows by the same hash would use a part of its connection table only.
    #[must_use]
    pub fn for_steering(secret: &Secret) -> FlowHash {
        FlowHash::under(secret, b"guideway steering\0")
    }

    fn under(secret: &Secret, purpose: &[u8]) -> FlowHash {
        FlowHash {
            flows: KeyedHash::new(secret, purpose),
            buckets: KeyedHash::new(secret, BUCKETS_PURPOSE),
            connection_ids: ConnectionIdKeys::new(secret),
            multipath: MultipathKeys::new(secret),
        }
    }

    /// The keys of flows and of buckets, for the kernel's program.
    pub(crate) fn keys(secret: &Secret) -> [[u8; 16]; 2] {
        [FLOWS_PURPOSE, BUCKETS_PURPOSE].map(|purpose| secret.hash_key(purpose))
    }

    /// The hash of a flow.
    #[inline]
    #[must_use]
    pub fn flow(&self, key: &FlowKey) -> u64 {
        self.flows.flow(key)
    }

    /// What selects the backend of a service's flow that has this hash.
    #[inline]
    #[must_use]
    pub fn selector(&self, service: &Service, flow: u64, key: impl FnOnce() -> FlowKey) -> u64 {
        match (service.tracking, service.affinity) {
            (Tracking::Tracked, Affinity::Flow) => flow,
            _ => self.other_selector(service, &key()),
        }
    }

    /// The same where it is not the flow's hash. Not inline: new connections of
    /// all services would carry the code along.
    #[inline(never)]
    pub(crate) fn other_selector(&self, service: &Service, key: &FlowKey) -> u64 {
        match service.tracking {
            Tracking::Tracked => self.client(key),
            Tracking::Stateless
            | Tracking::StatelessQuic
            | Tracking::StatelessMultipath
            | Tracking::JoinPort => self.bucket(service.affinity, key),
        }
    }

    /// The hash of a flow's source address alone, for `affinity: client`.
    #[inline]
    #[must_use]
    pub fn client(&self, key: &FlowKey) -> u64 {
        self.flows.client(key)
    }

    /// The hash of the network that a packet comes from, as limits see it: /24
    /// of IPv4, /48 of IPv6.
    #[must_use]
    pub fn source_prefix(&self, key: &FlowKey) -> u64 {
        let host_bits = match key.family {
            Family::V4 => 8,
            Family::V6 => 80,
        };
        self.client(&FlowKey { source: key.source >> host_bits << host_bits, ..*key })
    }

    /// The identification of outer IPv4 headers from the machine of that
    /// address to `target`: the same for all flows, so that every error about
    /// them quotes it, and it cannot be computed without the key. Its first byte
    /// differs from those of flows and clients.
    #[must_use]
    pub fn outer_id(&self, own: u32, target: u32) -> u16 {
        let bits = 0xa4u128 << 120 | u128::from(own) << 80 | u128::from(target) << 48;
        let block = self.flows.encrypt(bits.to_be_bytes());
        u16::from_be_bytes(*block.first_chunk().expect("a block has 16 bytes"))
    }

    /// Hashes the first `count` flows of a batch. All are encrypted at once,
    /// which keeps the AES unit busy: several times faster than one after the
    /// other.
    #[inline]
    pub fn flows(&self, flows: &mut Flows, count: usize) {
        self.flows.flows(flows, count);
    }

    /// Their hashes by the key of buckets; to be called before they are hashed.
    #[inline(never)]
    pub(crate) fn bucket_flows(&self, flows: &Flows, count: usize) -> [u64; BATCH_MAX] {
        let mut flows = flows.clone();
        self.buckets.flows(&mut flows, count);
        let mut hashes = flows.hashes();
        std::array::from_fn(|_| hashes.next().unwrap_or_default())
    }

    /// What selects for a flow of a stateless service. Not inline: batches have
    /// hashed most of theirs.
    #[inline(never)]
    pub(crate) fn bucket(&self, affinity: Affinity, key: &FlowKey) -> u64 {
        self.buckets.bucket(affinity, key)
    }

    /// Encrypts blocks that do not depend on each other.
    #[inline]
    pub fn encrypt_all(&self, blocks: &mut [Block]) {
        self.flows.encrypt_all(blocks);
    }
}

impl KeyedHash {
    fn new(secret: &Secret, purpose: &[u8]) -> KeyedHash {
        KeyedHash { cipher: Aes128::new(&secret.hash_key(purpose).into()) }
    }

    #[inline]
    fn bucket(&self, affinity: Affinity, key: &FlowKey) -> u64 {
        match affinity {
            Affinity::Flow => self.flow(key),
            Affinity::Client => self.client(key),
        }
    }

    #[inline]
    fn flow(&self, key: &FlowKey) -> u64 {
        match key.family {
            Family::V4 => first_half(self.encrypt(key.block_v4())),
            Family::V6 => first_half(self.chain(&key.blocks_v6())),
        }
    }

    /// Of the source address alone. Its first byte differs from those of flows.
    #[inline]
    fn client(&self, key: &FlowKey) -> u64 {
        match key.family {
            Family::V4 => {
                let bits = 0x84u128 << 120 | (key.source & 0xffff_ffff) << 88;
                first_half(self.encrypt(bits.to_be_bytes()))
            }
            Family::V6 => {
                let first = 0x86u128 << 120 | key.source >> 8;
                let second = key.source << 120;
                first_half(self.chain(&[first.to_be_bytes(), second.to_be_bytes()]))
            }
        }
    }

    #[inline]
    fn flows(&self, flows: &mut Flows, count: usize) {
        if flows.states.len() < count {
            self.encrypt_all(&mut flows.blocks[..count]);
        }
        if !flows.states.is_empty() {
            self.chain_all(flows);
        }
    }

    /// Hashes those that have further blocks.
    fn chain_all(&self, Flows { blocks, states, chained }: &mut Flows) {
        self.encrypt_all(states);
        for round in 0..2 {
            for (state, chained) in states.iter_mut().zip(&*chained) {
                *state = xor((*state).into(), chained.further[round]).into();
            }
            self.encrypt_all(states);
        }
        for (state, chained) in states.iter().zip(&*chained) {
            blocks[usize::from(chained.flow)] = *state;
        }
    }

    /// Encrypts blocks that do not depend on each other.
    #[inline]
    fn encrypt_all(&self, blocks: &mut [Block]) {
        self.cipher.encrypt_blocks(blocks);
    }

    #[inline]
    fn encrypt(&self, block: [u8; BLOCK_BYTES]) -> [u8; BLOCK_BYTES] {
        let mut block = Block::from(block);
        self.cipher.encrypt_block(&mut block);
        block.into()
    }

    #[inline]
    fn chain(&self, blocks: &[[u8; BLOCK_BYTES]]) -> [u8; BLOCK_BYTES] {
        blocks.iter().fold([0; BLOCK_BYTES], |state, block| self.encrypt(xor(state, *block)))
    }
}

#[inline]
fn xor(a: [u8; BLOCK_BYTES], b: [u8; BLOCK_BYTES]) -> [u8; BLOCK_BYTES] {
    (u128::from_ne_bytes(a) ^ u128::from_ne_bytes(b)).to_ne_bytes()
}
