//! The Internet checksum (RFC 1071): full, and incremental (RFC 1624).
//!
//! Sums are carried unfolded as `u64` so that they can be added up from
//! precomputed parts; [`finish`] folds and complements once at the end.

/// The one's complement sum of `bytes` as big-endian 16-bit words, not folded.
/// An odd last byte counts as the upper half of a word.
#[inline]
#[must_use]
pub fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut total: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    let mut tail = [0u8; 4];
    tail[..rest.len()].copy_from_slice(rest);
    total += u64::from(u32::from_be_bytes(tail));
    total
}

/// The sum of an IPv6 pseudo header (RFC 8200 section 8.1) or, with addresses
/// of four bytes, of an IPv4 one (RFC 9293 section 3.1).
#[must_use]
pub fn pseudo_header(source: &[u8], destination: &[u8], protocol: u8, payload_bytes: usize) -> u64 {
    sum(source) + sum(destination) + u64::from(protocol) + payload_bytes as u64
}

/// Folds a sum to 16 bits with end-around carry.
#[inline]
#[must_use]
pub fn fold(sum: u64) -> u16 {
    let (low, carry) = (sum as u32).overflowing_add((sum >> 32) as u32);
    // No overflow: after a carry the rest is less than what was added.
    let both = low + u32::from(carry);
    // Each half plus the other: the lower one's carry goes where it belongs.
    (both.wrapping_add(both.rotate_left(16)) >> 16) as u16
}

/// The checksum field's value for a sum taken with the field as zero.
#[inline]
#[must_use]
pub fn finish(sum: u64) -> u16 {
    !fold(sum)
}

/// True if `bytes`, checksum field included, sum up to all ones.
#[inline]
#[must_use]
pub fn is_valid(bytes: &[u8]) -> bool {
    // To fold is to divide by 0xffff: valid sums are its multiples, but for
    // zero. A number is a multiple if its product with the inverse modulo 2^64
    // is no larger than the largest quotient; this compiler divides instead.
    const INVERSE: u64 = 0xfffe_fffe_fffe_ffff;
    const QUOTIENT_MAX: u64 = u64::MAX / 0xffff;
    let quotient = sum_unordered(bytes).wrapping_mul(INVERSE);
    quotient.wrapping_sub(1) < QUOTIENT_MAX
}

/// The sum in the machine's byte order: RFC 1071 section 2(B) shows that only
/// the order of the result's bytes depends on it.
#[inline]
fn sum_unordered(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut tail = [0u8; 4];
    tail[..rest.len()].copy_from_slice(rest);
    let whole: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    whole + u64::from(u32::from_ne_bytes(tail))
}

/// The checksum after one 16-bit word changed from `old` to `new`
/// (RFC 1624 equation 3).
#[inline]
#[must_use]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    finish(u64::from(!checksum) + u64::from(!old) + u64::from(new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rfc_1071_example_sums_as_printed_there() {
        assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
    }

    #[test]
    fn folding_carries_round_the_end() {
        for (sum, folded) in [
            (0, 0),
            (0xffff, 0xffff),
            (0x1_0000, 1),
            (0xffff_ffff, 0xffff),
            (1 << 32, 1),
            (u64::MAX, 0xffff),
        ] {
            assert_eq!(fold(sum), folded, "{sum:x}");
        }
    }

    /// The plainest sum there is, to hold the others against.
    fn by_words(bytes: &[u8]) -> u16 {
        let mut total = 0u32;
        for pair in bytes.chunks(2) {
            total += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            total = (total & 0xffff) + (total >> 16);
        }
        total as u16
    }

    proptest! {
        #[test]
        fn sum_equals_the_plain_sum(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(fold(sum(&bytes)), by_words(&bytes));
            prop_assert_eq!(is_valid(&bytes), by_words(&bytes) == 0xffff);
        }

        #[test]
        fn update_equals_a_full_sum(mut words in proptest::collection::vec(any::<u16>(), 2..20), at in any::<prop::sample::Index>(), new: u16) {
            let bytes = |words: &[u16]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>();
            // A checksum over nothing but zeros is the one case in which the
            // two zeros of one's complement differ; headers are never zero.
            words.push(0x4500);
            let before = finish(sum(&bytes(&words)));
            let index = at.index(words.len() - 1);
            let old = std::mem::replace(&mut words[index], new);
            prop_assert_eq!(update(before, old, new), finish(sum(&bytes(&words))));
        }
    }
}
