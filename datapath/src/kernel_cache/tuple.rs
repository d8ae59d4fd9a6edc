//! The five-tuple as the cache hashes it: SipHash-1-3, which the kernel's program
//! computes too. Its key is chosen anew at each start and has no relation to the
//! cluster's, so that no sender can aim at a bucket. One round and three, as in
//! the hash tables of Linux and of Rust: nothing is authenticated by it.

use siphasher::sip::SipHasher13;
use wire::{Family, FlowKey};

/// Source, destination, ports, protocol: as they follow each other in a packet, but
/// for the protocol.
const TUPLE_BYTES: usize = 13;

/// Where an entry is, and what it is recognised by.
///
/// ```text
///  63 ................... 16 15 ... 0
///  tag                       time of use, in the entry
///            bucket, from bit 0 upwards
/// ```
///
/// Of 2^20 buckets and more the bucket's bits reach into the tag: another flow is
/// taken for this one with a chance of 4 / 2^44 at 2^20 buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TupleHash(u64);

impl TupleHash {
    pub(super) const TAG_MASK: u64 = !0xffff;

    /// None: IPv6, which is not cached.
    pub(super) fn of(hasher: &SipHasher13, key: &FlowKey) -> Option<TupleHash> {
        Some(TupleHash(hasher.hash(&bytes(key)?)))
    }

    /// Never zero, which marks a free place.
    pub(super) fn tag(self) -> u64 {
        match self.0 & TupleHash::TAG_MASK {
            0 => 1 << 16,
            tag => tag,
        }
    }

    /// Of a number of buckets that is a power of two.
    pub(super) fn bucket(self, buckets: usize) -> usize {
        self.0 as usize & (buckets - 1)
    }
}

fn bytes(key: &FlowKey) -> Option<[u8; TUPLE_BYTES]> {
    if key.family != Family::V4 {
        return None;
    }
    let mut bytes = [0; TUPLE_BYTES];
    bytes[..4].copy_from_slice(&(key.source as u32).to_be_bytes());
    bytes[4..8].copy_from_slice(&(key.destination as u32).to_be_bytes());
    bytes[8..10].copy_from_slice(&key.source_port.to_be_bytes());
    bytes[10..12].copy_from_slice(&key.destination_port.to_be_bytes());
    bytes[12] = key.protocol.0;
    Some(bytes)
}
