//! Packet memory: one mapping, cut into chunks, handed out by a pool.
//!
//! ```text
//!  Memory  | chunk 0 | chunk 1 | chunk 2 | ... | ledger |    mapped once, never unmapped
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
//!
//! The mapping is of a file without a name (memfd), so that a successor can
//! map it too, while the kernel goes on filling chunks. The ledger behind the
//! chunks says which are in the kernel's hands; all others are free for a
//! successor, wherever its predecessor had them when it stopped.
//!
//! **Invariant:** one process uses a memory. Which one the kernel says, by a
//! lock on the file (flock): its holder is the process that has a pool in use.
//! The lock goes when all pools of the memory stand still
//! ([`Pool::stand_still`]) or when the process ends, however it does.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use wire::{CHUNK_BYTES, Frame};

/// A chunk of packet memory that its holder owns.
pub type Chunk = &'static mut [u8];

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Ask the kernel to join pages now (Linux 6.1); older headers lack it.
const MADV_COLLAPSE: libc::c_int = 25;

/// Entries of the ledger.
const OURS: u8 = 0;
const KERNELS: u8 = 1;

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
    file: OwnedFd,
    /// The file once more, opened by this process alone: a lock belongs to
    /// the opening, and a successor gets a copy of `file`.
    lock: File,
    /// Pools that may be used; the lock is held while there are any.
    pools: Mutex<usize>,
}

// SAFETY: `base` is an address, not an access. What reads or writes
// through it holds a chunk, which has one owner, or looks into the ledger by
// atomics; the mapping itself is never changed or unmapped.
unsafe impl Send for Memory {}
// SAFETY: as above: methods on `&Memory` only compute addresses, or use the
// ledger.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps new memory for `chunks` chunks: on huge pages if the machine has
    /// enough of them reserved, else on normal ones.
    fn new(chunks: usize) -> io::Result<Memory> {
        let bytes = mapped_bytes(chunks);
        let file = new_file(bytes, libc::MFD_HUGETLB | libc::MFD_HUGE_2MB);
        if let Ok(memory) = file.and_then(|file| Memory::map(file, chunks, Pages::Huge)) {
            return Ok(memory);
        }
        let memory = Memory::map(new_file(bytes, 0)?, chunks, Pages::Normal)?;
        join_pages(memory.base, bytes);
        Ok(memory)
    }

    /// Maps the memory that another process made and may still use, for as
    /// many chunks.
    pub(crate) fn adopt(file: OwnedFd, chunks: usize, pages: Pages) -> io::Result<&'static Memory> {
        check_file(&file, mapped_bytes(chunks))?;
        Ok(Box::leak(Box::new(Memory::map(file, chunks, pages)?)))
    }

    fn map(file: OwnedFd, chunks: usize, pages: Pages) -> io::Result<Memory> {
        let base = map_aligned(&file, mapped_bytes(chunks), pages)?;
        let again = format!("/proc/self/fd/{}", file.as_raw_fd());
        let lock = File::options().read(true).write(true).open(again)?;
        Ok(Memory { base, chunks, pages, file, lock, pools: Mutex::new(0) })
    }

    /// One more pool may be used; false: another process uses the memory.
    fn enter(&self) -> bool {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let is_ours = *pools > 0 || self.lock.try_lock().is_ok();
        *pools += usize::from(is_ours);
        is_ours
    }

    /// One pool less is used.
    fn leave(&self) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        *pools = pools.saturating_sub(1);
        if *pools == 0 {
            // If that fails the lock stays, and the process its holder.
            let _ = self.lock.unlock();
        }
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

    /// How many chunks there are.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// What it is made of.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// The file behind it, for a successor.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
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
        self.ledger(offset / CHUNK_BYTES).store(KERNELS, Relaxed);
        offset as u64
    }

    /// The chunk that `offset` lies in, with the place in it; None if the
    /// offset lies outside the memory, or the chunk is not the kernel's.
    ///
    /// # Safety
    /// No other thread may reclaim the same chunk at the same time. (That it
    /// was surrendered, and not reclaimed since, the ledger says.)
    pub(crate) unsafe fn reclaim(&self, offset: u64) -> Option<(Chunk, usize)> {
        let offset = usize::try_from(offset).ok().filter(|&offset| offset < self.len())?;
        let (index, place) = (offset / CHUNK_BYTES, offset % CHUNK_BYTES);
        if self.ledger(index).load(Relaxed) != KERNELS {
            return None;
        }
        self.ledger(index).store(OURS, Relaxed);
        // SAFETY: it was surrendered, so there is no reference to it; from
        // now on the ledger lets no other be made.
        Some((unsafe { self.chunk(index) }, place))
    }

    /// # Safety
    /// No other reference to the chunk may exist.
    unsafe fn chunk(&self, index: usize) -> Chunk {
        assert!(index < self.chunks);
        // SAFETY: needed to make a reference of what the kernel knows as an
        // offset. The chunk lies inside the mapping (checked above), which is
        // never unmapped; that no other reference to it exists is the
        // caller's promise.
        unsafe {
            std::slice::from_raw_parts_mut(self.base.as_ptr().add(index * CHUNK_BYTES), CHUNK_BYTES)
        }
    }

    /// Whose a chunk is. Written by its owner only.
    #[inline]
    fn ledger(&self, index: usize) -> &AtomicU8 {
        assert!(index < self.chunks);
        // SAFETY: the ledger has a byte for each chunk behind the last one,
        // inside the mapping, and all access to it is by atomics.
        unsafe { self.base.add(self.len() + index).cast::<AtomicU8>().as_ref() }
    }
}

/// Chunks and ledger, in whole huge pages.
pub(crate) fn mapped_bytes(chunks: usize) -> usize {
    (chunks * (CHUNK_BYTES + size_of::<AtomicU8>())).next_multiple_of(HUGE_PAGE_BYTES)
}

/// A file in memory, full of zeroes, that can never change its size: a
/// mapping of it is safe in two processes.
fn new_file(bytes: usize, flags: libc::c_uint) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flags;
    // SAFETY: a call with a C string; the result is checked.
    let fd = unsafe { libc::memfd_create(c"guideway packets".as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(bytes as u64)?;
    // SAFETY: a call without pointers on a descriptor that `file` keeps open.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file.into())
}

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// True memory of the size, and of no other ever.
fn check_file(file: &OwnedFd, bytes: usize) -> io::Result<()> {
    // SAFETY: a call without pointers on an open descriptor.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & SEALS != SEALS {
        return Err(io::Error::other("the packet memory is not a sealed memfd"));
    }
    let found = File::from(file.try_clone()?).metadata()?.len();
    match found == bytes as u64 {
        true => Ok(()),
        false => {
            Err(io::Error::other(format!("the packet memory has {found} bytes instead of {bytes}")))
        }
    }
}

/// Maps a file where a huge page could begin: only there the kernel can join
/// pages.
fn map_aligned(file: &OwnedFd, bytes: usize, pages: Pages) -> io::Result<NonNull<u8>> {
    let room = map(None, bytes + HUGE_PAGE_BYTES, libc::PROT_NONE, PRIVATE_ROOM, None)?;
    let start = room.addr().get().next_multiple_of(HUGE_PAGE_BYTES);
    // SAFETY: inside the room just made, which is longer by a huge page.
    let aligned = unsafe { room.add(start - room.addr().get()) };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let populate = if pages == Pages::Huge { libc::MAP_POPULATE } else { 0 };
    // It takes the room's place; what is left of the room stays unused.
    map(Some(aligned), bytes, protection, libc::MAP_SHARED | libc::MAP_FIXED | populate, Some(file))
}

const PRIVATE_ROOM: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// A new mapping; `at` must be room of ours, which it replaces.
fn map(
    at: Option<NonNull<u8>>,
    bytes: usize,
    protection: libc::c_int,
    flags: libc::c_int,
    file: Option<&OwnedFd>,
) -> io::Result<NonNull<u8>> {
    let address = at.map_or(ptr::null_mut(), |at| at.as_ptr().cast());
    let fd = file.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: at an address of the kernel's choice it touches no memory that
    // exists; at ours it replaces room that is not used.
    let base = unsafe { libc::mmap(address, bytes, protection, flags, fd, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap returned address zero"))
}

/// Asks the kernel for larger pages, and for all of them now: first as the
/// system's settings say, then expressly. Where it is not taken nothing is
/// lost.
fn join_pages(base: NonNull<u8>, bytes: usize) {
    for advice in [libc::MADV_HUGEPAGE, libc::MADV_POPULATE_WRITE, MADV_COLLAPSE] {
        // SAFETY: advice on the mapping just made, which stays as it is.
        unsafe { libc::madvise(base.as_ptr().cast(), bytes, advice) };
    }
}

/// The free chunks of a memory. Never grows, never allocates
/// after its start.
#[derive(Debug)]
pub struct Pool {
    memory: &'static Memory,
    free: Vec<Chunk>,
}

impl Pool {
    /// Maps memory for `chunks` chunks, all of them free.
    pub fn new(chunks: usize) -> io::Result<Pool> {
        let pool = Pool::of(Box::leak(Box::new(Memory::new(chunks)?)));
        pool.ok_or_else(|| io::Error::other("another process has locked new packet memory"))
    }

    /// The pool of a memory whose chunks are free but for those in the
    /// kernel's hands; None: it is in use, by this process or another.
    pub(crate) fn of(memory: &'static Memory) -> Option<Pool> {
        let unused = *memory.pools.lock().unwrap_or_else(PoisonError::into_inner) == 0;
        if !(unused && memory.enter()) {
            return None;
        }
        let mut pool = Pool { memory, free: Vec::with_capacity(memory.chunks) };
        pool.fill();
        Some(pool)
    }

    /// The pool is not used while `wait` runs. When that is so of all pools of
    /// a memory, a successor may take the memory. What this process has in
    /// frames and rings it must not touch meanwhile either.
    ///
    /// # Panics
    /// If a successor has taken it: no thread of this process may go on.
    pub fn stand_still(&mut self, wait: impl FnOnce()) {
        self.memory.leave();
        wait();
        assert!(self.memory.enter(), "a successor has taken the packet memory");
    }

    /// The lowest chunk is taken first: a busy worker stays on few pages.
    fn fill(&mut self) {
        let memory = self.memory;
        let ours = |index: &usize| memory.ledger(*index).load(Relaxed) == OURS;
        // SAFETY: there is no reference to a chunk that the ledger calls
        // ours: we hold the memory's lock and this is its first pool here, so
        // the memory is new, or its former user stands still or is no more;
        // each index is taken once.
        let chunk = |index| unsafe { memory.chunk(index) };
        self.free.extend((0..memory.chunks).rev().filter(ours).map(chunk));
    }

    /// A pool for another thread, without a chunk yet: chunks of the same
    /// memory may be moved between the two.
    #[must_use]
    pub fn sibling(&self) -> Pool {
        assert!(self.memory.enter(), "the memory is ours while this pool is");
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

impl Drop for Pool {
    fn drop(&mut self) {
        self.memory.leave();
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
        // SAFETY: on one thread.
        let (chunk, place) = unsafe { pool.memory().reclaim(offset + 300) }.unwrap();
        assert_eq!((chunk[place], place), (7, 300));
        // SAFETY: on one thread.
        assert!(unsafe { pool.memory().reclaim(offset) }.is_none(), "it is no longer the kernel's");
        pool.give(chunk);
    }

    #[test]
    fn a_successor_finds_every_chunk_once_and_those_of_the_kernel_not_at_all() {
        const CHUNKS: usize = 40;
        let mut pool = Pool::new(CHUNKS).unwrap();
        let mut in_kernel = Vec::new();
        for index in 0..CHUNKS {
            let chunk = pool.take().unwrap();
            chunk.fill(index as u8);
            // The others are in frames somewhere when their process stops.
            if index % 3 == 0 {
                in_kernel.push(pool.memory().surrender(chunk));
            }
        }
        let file = pool.memory().file().try_clone_to_owned().unwrap();
        let memory = Memory::adopt(file, CHUNKS, pool.memory().pages()).unwrap();
        assert!(Pool::of(memory).is_none(), "it is in use");
        drop(pool);
        let mut successor = Pool::of(memory).unwrap();
        assert_eq!(successor.free() + in_kernel.len(), CHUNKS);
        for offset in &in_kernel {
            // SAFETY: on one thread.
            let (chunk, _) = unsafe { successor.memory().reclaim(*offset) }.unwrap();
            successor.give(chunk);
        }
        let mut seen: Vec<u8> =
            std::iter::from_fn(|| successor.take()).map(|chunk| chunk[7]).collect();
        seen.sort_unstable();
        assert!(seen.iter().map(|&byte| usize::from(byte)).eq(0..CHUNKS), "{seen:?}");
    }

    #[test]
    fn memory_is_taken_only_while_all_its_pools_stand_still() {
        let mut pool = Pool::new(4).unwrap();
        let mut sibling = pool.sibling();
        let file = pool.memory().file().try_clone_to_owned().unwrap();
        let memory = Memory::adopt(file, 4, pool.memory().pages()).unwrap();
        pool.stand_still(|| assert!(Pool::of(memory).is_none(), "its sibling is in use"));
        pool.stand_still(|| {
            sibling.stand_still(|| drop(Pool::of(memory).expect("all stand still")));
        });
        assert!(Pool::of(memory).is_none(), "they went on");
    }

    #[test]
    #[should_panic(expected = "a successor has taken the packet memory")]
    fn who_was_succeeded_does_not_go_on() {
        let mut pool = Pool::new(4).unwrap();
        let file = pool.memory().file().try_clone_to_owned().unwrap();
        let memory = Memory::adopt(file, 4, pool.memory().pages()).unwrap();
        let mut successor = None;
        pool.stand_still(|| successor = Pool::of(memory));
    }

    #[test]
    fn memory_of_another_size_or_kind_is_refused() {
        let pool = Pool::new(4).unwrap();
        let file = pool.memory().file().try_clone_to_owned().unwrap();
        let error = Memory::adopt(file, 5000, Pages::Normal).unwrap_err().to_string();
        assert!(error.contains("bytes instead of"), "{error}");
        let other = OwnedFd::from(File::open("/dev/zero").unwrap());
        let error = Memory::adopt(other, 4, Pages::Normal).unwrap_err().to_string();
        assert!(error.contains("memfd"), "{error}");
    }

    #[test]
    fn offsets_outside_the_memory_are_refused() {
        let pool = Pool::new(4).unwrap();
        for offset in [pool.memory().len() as u64, u64::MAX] {
            // SAFETY: on one thread.
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
