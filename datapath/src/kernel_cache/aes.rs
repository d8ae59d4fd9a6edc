//! AES-128 (FIPS 197) as tables, with its round keys, for the flow hash in the kernel's program
//! (nic/bpf/flow_hash.h), which has no instruction for it.
//!
//! The time of a table lookup depends on the key, unlike that of the processor's instruction.
//! But a person who can measure that, packet by packet, on the machine where packets are
//! counted, needs no key to aim at a bucket.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::flow_hash::FlowHash;
use crate::secret::Secret;

const ROUNDS: usize = 10;
const KEY_WORDS: usize = 4 * (ROUNDS + 1);

/// Of FIPS 197, section 4.2: x^8 + x^4 + x^3 + x + 1, without its highest bit.
const POLYNOMIAL: u8 = 0x1b;

/// Fills in tables and keys.
///
/// # Panics
/// If there is another number of words.
pub fn write_hash(words: &[AtomicU64], secret: &Secret) {
    let tables = columns().into_iter().flatten();
    let all: Vec<u32> = tables.chain(FlowHash::keys(secret).into_iter().flat_map(keys)).collect();
    let (pairs, _) = all.as_chunks::<2>();
    assert_eq!(words.len(), pairs.len(), "not the memory of a hash");
    for (word, [low, high]) in words.iter().zip(pairs) {
        word.store(u64::from(*high) << 32 | u64::from(*low), Ordering::Relaxed);
    }
}

/// By the byte's place in its column, what SubBytes and MixColumns make of it.
fn columns() -> [[u32; 256]; 4] {
    let first: [u32; 256] = std::array::from_fn(|byte| {
        let byte = substitute(byte as u8);
        u32::from_be_bytes([multiply(byte, 2), byte, byte, multiply(byte, 3)])
    });
    std::array::from_fn(|place| first.map(|column| column.rotate_right(8 * place as u32)))
}

/// Section 5.2: the keys of the rounds.
fn keys(key: [u8; 16]) -> [u32; KEY_WORDS] {
    let mut words = [0; KEY_WORDS];
    for (word, bytes) in words.iter_mut().zip(key.as_chunks().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    let mut constant = 1;
    for at in 4..KEY_WORDS {
        let mut before: u32 = words[at - 1];
        if at % 4 == 0 {
            let bytes = before.rotate_left(8).to_be_bytes().map(substitute);
            before = u32::from_be_bytes(bytes) ^ u32::from(constant) << 24;
            constant = multiply(constant, 2);
        }
        words[at] = words[at - 4] ^ before;
    }
    words
}

/// Section 5.1.1: SubBytes.
fn substitute(byte: u8) -> u8 {
    // What is raised to the 254th power is inverted.
    let inverse = (0..254).fold(1, |power, _| multiply(power, byte));
    (1..5).fold(inverse ^ 0x63, |sum, bits| sum ^ inverse.rotate_left(bits))
}

/// Section 4.2: multiplication in the field of bytes.
fn multiply(a: u8, b: u8) -> u8 {
    let double = |a: u8| a << 1 ^ if a & 0x80 == 0 { 0 } else { POLYNOMIAL };
    let (product, _) = (0..8).fold((0, a), |(product, a), bit| {
        (product ^ if b >> bit & 1 == 0 { 0 } else { a }, double(a))
    });
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 197, appendix A.1 and figure 7.
    #[test]
    fn tables_and_keys_are_the_standards() {
        let key = 0x2b7e_1516_28ae_d2a6_abf7_1588_09cf_4f3cu128;
        let words = keys(key.to_be_bytes());
        assert_eq!(words[4..8], [0xa0fa_fe17, 0x8854_2cb1, 0x23a3_3939, 0x2a6c_7605]);
        assert_eq!(words[40..], [0xd014_f9a8, 0xc9ee_2589, 0xe13f_0cc8, 0xb663_0ca6]);
        let substituted = [0x00, 0x01, 0x53, 0xff].map(substitute);
        assert_eq!(substituted, [0x63, 0x7c, 0xed, 0x16]);
        assert_eq!(columns()[0][1], 0xf87c_7c84);
        assert_eq!(columns()[3][1], 0x7c7c_84f8);
    }
}
