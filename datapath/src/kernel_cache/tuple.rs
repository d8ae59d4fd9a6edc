//! The cache's hash of the five-tuple: SipHash-1-3, which the kernel's program computes, too.
//! Its key is drawn at each start and unrelated to the cluster's, so that no sender can aim at
//! a bucket. One round and three, as in the hash tables of Linux and of Rust: it authenticates
//! nothing.

use arrayvec::ArrayVec;
use siphasher::sip::SipHasher13;
use wire::FlowKey;

/// Source, destination, ports, protocol: as they follow each other in a packet, but
/// for the protocol. By its length a tuple of IPv4 is none of IPv6.
type Tuple = ArrayVec<u8, 37>;

/// Where an entry is, and what it is recognised by.
///
/// ```text
///  63 ................... 17 16 ... 0
///  tag                       of the entry: its validity, and the time of use
///            bucket, from bit 0 upwards
/// ```
///
/// Of 2^20 buckets and more the bucket's bits reach into the tag: another flow is
/// taken for this one with a chance of 8 / 2^44 at 2^20 buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TupleHash(u64);

impl TupleHash {
    pub(super) const TAG_MASK: u64 = !0x1_ffff;

    pub(super) fn of(hasher: &SipHasher13, key: &FlowKey) -> TupleHash {
        TupleHash(hasher.hash(&tuple(key)))
    }

    /// Never zero, which marks a free place.
    pub(super) fn tag(self) -> u64 {
        match self.0 & TupleHash::TAG_MASK {
            0 => 1 << 17,
            tag => tag,
        }
    }

    /// For the other bucket that the flow may be in: what is its bucket here is in the tag
    /// there, so that either is recognised by all of the hash.
    pub(super) fn second(self) -> TupleHash {
        TupleHash(self.0.rotate_left(32))
    }

    /// Of a number of buckets that is a power of two.
    pub(super) fn bucket(self, buckets: usize) -> usize {
        self.0 as usize & (buckets - 1)
    }
}

fn tuple(key: &FlowKey) -> Tuple {
    let mut tuple = Tuple::new();
    for address in [key.source, key.destination] {
        let bytes = address.to_be_bytes();
        tuple.extend(bytes[bytes.len() - key.family.address_bits() as usize / 8..].iter().copied());
    }
    tuple.extend(key.source_port.to_be_bytes());
    tuple.extend(key.destination_port.to_be_bytes());
    tuple.push(key.protocol.0);
    tuple
}
