//! What the targets share: small plans made from a few bytes, and a machine that forwards by
//! them in memory.
//!
//! ```text
//!  input   | 16 bytes: a plan |  then frames: | wait | length (2) | up to 192 bytes | ...
//! ```
//!
//! Every byte string is a valid input, and golden captures become inputs by a few bytes in
//! front (see corpus.py).

pub mod machine;
pub mod plans;
pub mod targets;

#[cfg(test)]
mod corpus;

/// Takes numbers from the front of the input; zeros when it is used up.
#[derive(Debug, Clone, Copy)]
pub struct Bytes<'d>(pub &'d [u8]);

impl<'d> Bytes<'d> {
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// Up to `count` bytes.
    pub fn take(&mut self, count: usize) -> &'d [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// The next frame, and how many milliseconds later it comes. Of a long one
    /// only the beginning stands in the input: the rest is payload, zeros.
    pub fn frame(&mut self) -> Option<(u32, Vec<u8>)> {
        const GIVEN_BYTES_MAX: usize = 192;
        if self.0.is_empty() {
            return None;
        }
        // Mostly no wait, so that there are batches; now and then hours.
        let wait_ms = match self.byte() {
            long @ 0xf0.. => u32::from(long & 15) << 20,
            wait => u32::from(wait),
        };
        let length = usize::from(u16::from_le_bytes([self.byte(), self.byte()]) & 0x7ff);
        let mut frame = self.take(length.min(GIVEN_BYTES_MAX)).to_vec();
        frame.resize(length, 0);
        Some((wait_ms, frame))
    }
}
