//! Packet memory: one mapping, cut into chunks, handed out by a pool.
//!
//! ```text
//!  Memory  | chunk 0 | chunk 1 | chunk 2 | ...        mapped once, never unmapped
//!             |          |         '--- in the kernel's hands: only its address exists
//!             |          '------------- in a Frame, somewhere on its journey
//!             '------------------------ in the Pool's free list
//! ```
//!
//! Each worker has a `Memory` and a `Pool` of its own: no two threads share a
//! chunk. Frames borrow for `'static`, because the mapping lives as long as
//! the process: it is made once, at start.
//!
//! **Invariant:** a chunk is in exactly one of the three places. A
//! `&'static mut [u8]` to it exists in the first two and none in the third;
//! the only way to a chunk's address is to give the reference up
//! ([`Memory::surrender`]), the only way back is [`Memory::reclaim`].

use std::io;
use std::ptr::{self, NonNull};

use wire::{CHUNK_BYTES, Frame};

/// A chunk of packet memory that its holder owns.
pub type Chunk = &'static mut [u8];

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// What the memory is made of, for people to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Reserved pages of 2 MiB (`vm.nr_hugepages`).
    Huge,
    /// Pages of 4 KiB; the kernel was asked to join them.
    Normal,
}

/// A mapping of packet memory. See the module.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    chunks: usize,
    pages: Pages,
}

// SAFETY: `base` is an address, not an access. Whoever reads or writes
// through it holds a chunk, which has one owner; the mapping itself is never
// changed or unmapped.
unsafe impl Send for Memory {}
// SAFETY: as above: methods on `&Memory` only compute addresses.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps memory for `chunks` chunks: on huge pages if the machine has
    /// enough of them reserved, else on normal ones.
    fn map(chunks: usize) -> io::Result<Memory> {
        let bytes = (chunks * CHUNK_BYTES).next_multiple_of(HUGE_PAGE_BYTES);
        if let Ok(base) = map_anonymous(bytes, libc::MAP_HUGETLB | libc::MAP_POPULATE) {
            return Ok(Memory { base, chunks, pages: Pages::Huge });
        }
        let base = map_anonymous(bytes, 0)?;
        join_pages(base, bytes);
        Ok(Memory { base, chunks, pages: Pages::Normal })
    }

    /// Address of the first byte.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes in all chunks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.chunks * CHUNK_BYTES
    }

    /// True if there is no chunk.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks == 0
    }

    /// What it is made of.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Gives a chunk up for its offset in the memory: from here on only the
    /// kernel knows it.
    ///
    /// # Panics
    /// If the chunk is not one of this memory: frames of two workers were
    /// mixed up.
    #[must_use]
    pub fn surrender(&self, chunk: Chunk) -> u64 {
        let offset = chunk.as_ptr().addr().wrapping_sub(self.base.addr().get());
        assert!(
            offset < self.len() && offset.is_multiple_of(CHUNK_BYTES) && chunk.len() == CHUNK_BYTES,
            "a chunk of other memory"
        );
        offset as u64
    }

    /// The chunk that `offset` lies in, with the place in it; None if the
    /// offset lies outside the memory.
    ///
    /// # Safety
    /// The chunk must have been surrendered, and not been reclaimed since.
    pub(crate) unsafe fn reclaim(&self, offset: u64) -> Option<(Chunk, usize)> {
        let offset = usize::try_from(offset).ok().filter(|&offset| offset < self.len())?;
        let place = offset % CHUNK_BYTES;
        // SAFETY: needed to make a reference of what the kernel knows as an
        // offset. The chunk lies inside the mapping (checked above), which is
        // never unmapped; that no other reference to it exists is the
        // caller's promise.
        let chunk = unsafe {
            std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset - place), CHUNK_BYTES)
        };
        Some((chunk, place))
    }
}

fn map_anonymous(bytes: usize, flags: libc::c_int) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice
    // touches no memory that exists.
    let base = unsafe {
        libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap returned address zero"))
}

/// Asks the kernel for larger pages, and for all of them now. The advice must
/// come before the first touch; where it is not taken nothing is lost.
fn join_pages(base: NonNull<u8>, bytes: usize) {
    for advice in [libc::MADV_HUGEPAGE, libc::MADV_POPULATE_WRITE] {
        // SAFETY: advice on the mapping just made, which stays as it is.
        unsafe { libc::madvise(base.as_ptr().cast(), bytes, advice) };
    }
}

/// The chunks of a memory that nobody uses. Never grows, never allocates
/// after its start.
#[derive(Debug)]
pub struct Pool {
    memory: &'static Memory,
    free: Vec<Chunk>,
}

impl Pool {
    /// Maps memory for `chunks` chunks, all of them free.
    pub fn new(chunks: usize) -> io::Result<Pool> {
        let memory: &'static Memory = Box::leak(Box::new(Memory::map(chunks)?));
        let chunk = |index| {
            // SAFETY: the memory is new, so nobody has a reference to any of
            // its chunks; each index is taken once.
            unsafe { memory.reclaim((index * CHUNK_BYTES) as u64) }
        };
        // The lowest chunk is taken first: a busy worker stays on few pages.
        let free = (0..chunks).rev().filter_map(chunk).map(|(chunk, _)| chunk).collect();
        Ok(Pool { memory, free })
    }

    /// A pool for another thread, without a chunk yet: chunks of the same
    /// memory may be moved between the two.
    #[must_use]
    pub fn sibling(&self) -> Pool {
        Pool { memory: self.memory, free: Vec::with_capacity(self.memory.chunks) }
    }

    /// The memory that the chunks are of.
    #[must_use]
    pub fn memory(&self) -> &'static Memory {
        self.memory
    }

    /// How many chunks are free.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// A free chunk. The one used last comes first: it is in the cache.
    pub fn take(&mut self) -> Option<Chunk> {
        self.free.pop()
    }

    /// Takes a chunk back.
    ///
    /// # Panics
    /// If it belongs to another worker's pool.
    pub fn give(&mut self, chunk: Chunk) {
        let range =
            self.memory.base.addr().get()..self.memory.base.addr().get() + self.memory.len();
        assert!(range.contains(&chunk.as_ptr().addr()), "a chunk of another pool");
        debug_assert!(self.free.len() < self.free.capacity());
        self.free.push(chunk);
    }

    /// Takes a frame's chunk back.
    pub fn give_frame(&mut self, frame: Frame<'static>) {
        self.give(frame.into_chunk());
    }

    /// A frame with a copy of `bytes`; None if no chunk is free or the bytes
    /// do not fit.
    #[must_use]
    pub fn frame_of(&mut self, bytes: &[u8]) -> Option<Frame<'static>> {
        match Frame::copy_of(self.take()?, bytes) {
            Ok(frame) => Some(frame),
            Err(chunk) => {
                self.give(chunk);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_handed_out_once_and_comes_back() {
        let mut pool = Pool::new(8).unwrap();
        let mut taken: Vec<Chunk> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(taken.len(), 8);
        for (index, chunk) in taken.iter_mut().enumerate() {
            chunk.fill(index as u8);
        }
        for (index, chunk) in taken.iter().enumerate() {
            assert!(chunk.iter().all(|&byte| byte == index as u8), "chunks overlap");
        }
        taken.into_iter().for_each(|chunk| pool.give(chunk));
        assert_eq!(pool.free(), 8);
    }

    #[test]
    fn a_surrendered_chunk_comes_back_as_it_was() {
        let mut pool = Pool::new(4).unwrap();
        let chunk = pool.take().unwrap();
        chunk[300] = 7;
        let offset = pool.memory().surrender(chunk);
        // SAFETY: surrendered above, reclaimed once.
        let (chunk, place) = unsafe { pool.memory().reclaim(offset + 300) }.unwrap();
        assert_eq!((chunk[place], place), (7, 300));
        pool.give(chunk);
    }

    #[test]
    fn offsets_outside_the_memory_are_refused() {
        let pool = Pool::new(4).unwrap();
        for offset in [pool.memory().len() as u64, u64::MAX] {
            // SAFETY: no chunk has such an offset, so none is reclaimed.
            assert!(unsafe { pool.memory().reclaim(offset) }.is_none());
        }
    }

    #[test]
    #[should_panic(expected = "a chunk of another pool")]
    fn chunks_of_another_pool_are_refused() {
        let mut other = Pool::new(1).unwrap();
        Pool::new(1).unwrap().give(other.take().unwrap());
    }

    #[test]
    fn siblings_exchange_chunks() {
        let mut pool = Pool::new(2).unwrap();
        let mut sibling = pool.sibling();
        sibling.give(pool.take().unwrap());
        assert_eq!((pool.free(), sibling.free()), (1, 1));
        pool.give(sibling.take().unwrap());
        assert_eq!((pool.free(), sibling.free()), (2, 0));
    }

    #[test]
    fn bytes_that_do_not_fit_leave_the_pool_whole() {
        let mut pool = Pool::new(1).unwrap();
        assert!(pool.frame_of(&[0; CHUNK_BYTES]).is_none());
        let frame = pool.frame_of(b"frame").unwrap();
        assert!(pool.frame_of(b"no chunk left").is_none());
        pool.give_frame(frame);
        assert_eq!(pool.free(), 1);
    }
}
