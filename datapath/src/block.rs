//! One block of AES, for hashes, keys and connection ids.

use aes::cipher::Array;
use wire::flow::BLOCK_BYTES;

/// A block.
pub type Block = Array<u8, aes::cipher::consts::U16>;

/// The first 64 bits of an encrypted block.
#[inline]
#[must_use]
pub fn first_half(block: [u8; BLOCK_BYTES]) -> u64 {
    u64::from_be_bytes(*block.first_chunk().expect("a block has 16 bytes"))
}
