//! A frame: one Ethernet frame in one chunk of packet memory, with room in
//! front of it for an outer header.
//!
//! ```text
//!  chunk  |......headroom......|==== the frame ====|....tailroom....|
//!         0                  start                end            chunk.len()
//! ```
//!
//! A `Frame` owns its chunk: it can be moved but not copied, so every chunk
//! has exactly one owner at any time. Code that takes a frame off a ring must
//! put it on another one, or give it back to its pool.

use arrayvec::ArrayVec;

/// Bytes of packet memory per frame. One page holds two; a frame that does
/// not fit between the headroom and the end is never received whole.
pub const CHUNK_BYTES: usize = 2048;

/// Room kept in front of a received frame. The largest outer header is
/// Ethernet 14 + IPv6 40 + UDP 8 + Geneve 8 with options 64 = 134 bytes, less
/// the 14 bytes of the inner Ethernet header that it replaces.
/// A multiple of 64 so that received headers start on a cache line.
pub const HEADROOM_BYTES: usize = 256;

/// The longest frame that fits in a chunk behind its headroom.
pub const FRAME_BYTES_MAX: usize = CHUNK_BYTES - HEADROOM_BYTES;

/// Frames handled together. Ring operations and cache misses are spread over
/// this many; more would not fit the first-level cache.
pub const BATCH_MAX: usize = 64;

/// Up to [`BATCH_MAX`] frames on their way through the same stages.
pub type Batch<'m> = ArrayVec<Frame<'m>, BATCH_MAX>;

/// One Ethernet frame in memory that it owns. See the module.
#[derive(Debug)]
#[must_use = "a frame that is dropped takes its chunk out of the pool for good"]
pub struct Frame<'m> {
    chunk: &'m mut [u8],
    start: u32,
    end: u32,
    misdirected: bool,
    tunnelled: bool,
    outer_ecn: u8,
}

impl<'m> Frame<'m> {
    /// A frame of the bytes `start..end` of `chunk`.
    ///
    /// # Panics
    /// If the range does not lie inside the chunk.
    pub fn new(chunk: &'m mut [u8], start: usize, end: usize) -> Frame<'m> {
        assert!(
            start <= end && end <= chunk.len(),
            "frame {start}..{end} outside its chunk of {}",
            chunk.len()
        );
        Frame {
            chunk,
            start: start as u32,
            end: end as u32,
            misdirected: false,
            tunnelled: false,
            outer_ecn: 0,
        }
    }

    /// A frame with a copy of `bytes` behind the usual headroom; gives the
    /// chunk back if the bytes do not fit.
    pub fn copy_of(chunk: &'m mut [u8], bytes: &[u8]) -> Result<Frame<'m>, &'m mut [u8]> {
        let end = HEADROOM_BYTES + bytes.len();
        if end > chunk.len() {
            return Err(chunk);
        }
        chunk[HEADROOM_BYTES..end].copy_from_slice(bytes);
        Ok(Frame::new(chunk, HEADROOM_BYTES, end))
    }

    /// The frame's bytes, from the Ethernet header on.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.chunk[self.start as usize..self.end as usize]
    }

    /// The frame's bytes, to change.
    #[inline]
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.chunk[self.start as usize..self.end as usize]
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// True for a frame of no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Offset of the first byte in the chunk.
    #[inline]
    #[must_use]
    pub fn start(&self) -> usize {
        self.start as usize
    }

    /// Bytes free in front of the frame.
    #[inline]
    #[must_use]
    pub fn headroom(&self) -> usize {
        self.start as usize
    }

    /// The whole chunk.
    #[inline]
    #[must_use]
    pub fn chunk(&self) -> &[u8] {
        self.chunk
    }

    /// Marks the frame as steered to another worker than its flow's, because
    /// that one was full: it must not be remembered there.
    pub fn set_misdirected(&mut self) {
        self.misdirected = true;
    }

    /// True for a frame that was steered to another worker than its flow's.
    #[inline]
    #[must_use]
    pub fn is_misdirected(&self) -> bool {
        self.misdirected
    }

    /// Marks the frame as taken out of a tunnel: the machine that it came
    /// from does not know the way to its packet's source.
    pub fn set_tunnelled(&mut self) {
        self.tunnelled = true;
    }

    /// True for a frame that was taken out of a tunnel.
    #[inline]
    #[must_use]
    pub fn is_tunnelled(&self) -> bool {
        self.tunnelled
    }

    /// Notes the ECN bits of the tunnel that the frame was taken out of.
    pub fn set_outer_ecn(&mut self, ecn: u8) {
        self.outer_ecn = ecn;
    }

    /// The ECN bits of its tunnel; zero if it came in none.
    #[must_use]
    pub fn outer_ecn(&self) -> u8 {
        self.outer_ecn
    }

    /// Cuts the frame's end so that `len` bytes remain; a frame that is
    /// already as short stays as it is.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.end = self.end.min(self.start + len as u32);
    }

    /// Replaces the first `removed` bytes by `ADDED` bytes whose content is
    /// undefined, and keeps `kept` of the rest, which stay where they are. None
    /// (and nothing changed) if the frame is shorter or the headroom too small.
    #[inline(always)]
    pub fn replace_ends<const ADDED: usize>(
        &mut self,
        removed: usize,
        kept: usize,
    ) -> Option<&mut [u8; ADDED]> {
        let rest = self.start as usize + removed;
        let (start, end) = (rest.checked_sub(ADDED)?, rest + kept);
        let added = self.chunk.get_mut(start..)?.first_chunk_mut()?;
        if end > self.end as usize {
            return None;
        }
        (self.start, self.end) = (start as u32, end as u32);
        Some(added)
    }

    /// Replaces the first `removed` bytes by `added` bytes whose content is
    /// undefined; the rest stays where it is. None (and nothing changed) if
    /// the frame is shorter than `removed` or the headroom too small.
    #[inline]
    pub fn replace_front(&mut self, removed: usize, added: usize) -> Option<&mut [u8]> {
        if removed > self.len() {
            return None;
        }
        let start = (self.start as usize + removed).checked_sub(added)?;
        self.start = start as u32;
        Some(&mut self.chunk[start..start + added])
    }

    /// Gives the chunk up, for the pool or the ring that takes it over.
    #[must_use]
    pub fn into_chunk(self) -> &'m mut [u8] {
        self.chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_the_front_keeps_the_rest_in_place() {
        let mut memory = [0u8; 512];
        let mut frame = Frame::copy_of(&mut memory, b"eth|payload").unwrap();
        frame.replace_front(4, 6).unwrap().copy_from_slice(b"outer|");
        assert_eq!(frame.bytes(), b"outer|payload");
        assert_eq!(frame.headroom(), HEADROOM_BYTES - 2);
    }

    #[test]
    fn replacing_the_ends_keeps_the_middle_in_place() {
        let mut memory = [0u8; 512];
        let mut frame = Frame::copy_of(&mut memory, b"eth|payload|padding").unwrap();
        *frame.replace_ends(4, 7).unwrap() = *b"outer|";
        assert_eq!(frame.bytes(), b"outer|payload");
        assert_eq!(frame.headroom(), HEADROOM_BYTES - 2);
        *frame.replace_ends(6, 7).unwrap() = *b"e|";
        assert_eq!(frame.bytes(), b"e|payload");
        assert!(frame.replace_ends::<2>(10, 0).is_none());
        assert!(frame.replace_ends::<2>(2, 8).is_none());
        assert!(frame.replace_ends::<300>(2, 7).is_none());
        assert_eq!(frame.bytes(), b"e|payload");
    }

    #[test]
    fn a_front_that_does_not_fit_changes_nothing() {
        let mut memory = [0u8; 512];
        let mut frame = Frame::copy_of(&mut memory, b"abc").unwrap();
        assert!(frame.replace_front(4, 4).is_none());
        assert!(frame.replace_front(0, HEADROOM_BYTES + 1).is_none());
        assert_eq!(frame.bytes(), b"abc");
    }

    #[test]
    fn bytes_that_do_not_fit_give_the_chunk_back() {
        let mut memory = [0u8; HEADROOM_BYTES + 2];
        assert!(Frame::copy_of(&mut memory, b"abc").is_err());
    }
}
