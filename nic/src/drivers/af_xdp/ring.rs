//! The rings that a socket shares with the kernel.
//!
//! ```text
//!  FillRing        free chunks ──► kernel        Producer<u64>
//!  RxRing          received frames ◄── kernel    Consumer<xdp_desc>
//!  TxRing          frames to send ──► kernel     Producer<xdp_desc>
//!  CompletionRing  chunks sent ◄── kernel        Consumer<u64>
//! ```
//!
//! A producer can only push and a consumer only pop: a call on the wrong side
//! does not compile. Indices run freely and wrap at 2^32; the difference is
//! what counts.
//!
//! **Invariant:** entries between consumer and producer belong to the
//! consuming side, all others to the producing side. The side that moves its
//! index releases, the side that reads it acquires.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{XDP_RING_NEED_WAKEUP, xdp_desc, xdp_ring_offset};

pub(super) type FillRing = Producer<u64>;
pub(super) type RxRing = Consumer<xdp_desc>;
pub(super) type TxRing = Producer<xdp_desc>;
pub(super) type CompletionRing = Consumer<u64>;

/// The side that adds entries.
pub(super) struct Producer<T>(Ring<T>);

/// The side that takes entries.
pub(super) struct Consumer<T>(Ring<T>);

impl<T: Copy> Producer<T> {
    /// Maps a ring of the socket that we fill.
    ///
    /// # Safety
    /// As [`Ring::map`]'s.
    pub(super) unsafe fn map(
        socket: BorrowedFd,
        offset: libc::off_t,
        layout: &xdp_ring_offset,
        entries: u32,
    ) -> io::Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Ring::map(socket, offset, layout, entries) }.map(Producer)
    }

    /// Goes on where the predecessor on our side stopped.
    pub(super) fn resume(&mut self) {
        self.0.ours = self.0.producer().load(Ordering::Acquire);
        self.0.theirs = self.0.consumer().load(Ordering::Acquire);
    }

    /// The index of the next entry to push: counts all so far.
    pub(super) fn pushed(&self) -> u32 {
        self.0.ours
    }

    /// How many entries can be pushed.
    #[inline]
    pub(super) fn room(&mut self) -> u32 {
        self.0.theirs = self.0.consumer().load(Ordering::Acquire);
        self.0.size.saturating_sub(self.0.ours.wrapping_sub(self.0.theirs))
    }

    /// Adds an entry that the other side sees after [`Producer::publish`].
    ///
    /// # Panics
    /// If there is no room: the entry there is the other side's.
    #[inline]
    pub(super) fn push(&mut self, entry: T) {
        assert!(self.0.ours.wrapping_sub(self.0.theirs) < self.0.size, "pushed into a full ring");
        let place = self.0.entry_at(self.0.ours);
        // SAFETY: the place lies inside the mapping, and (asserted) behind the
        // entries that the other side may read.
        unsafe { place.write(entry) };
        self.0.ours = self.0.ours.wrapping_add(1);
    }

    /// Shows all entries pushed to the other side.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.0.producer().store(self.0.ours, Ordering::Release);
    }

    /// How many entries the other side has not taken yet.
    #[inline]
    pub(super) fn pending(&mut self) -> u32 {
        self.0.theirs = self.0.consumer().load(Ordering::Acquire);
        self.0.ours.wrapping_sub(self.0.theirs)
    }

    /// Whether the kernel sleeps and must be called to see new entries.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.0.flags().load(Ordering::Relaxed) & XDP_RING_NEED_WAKEUP != 0
    }
}

impl<T: Copy> Consumer<T> {
    /// Maps a ring of the socket that the kernel fills.
    ///
    /// # Safety
    /// As [`Ring::map`]'s.
    pub(super) unsafe fn map(
        socket: BorrowedFd,
        offset: libc::off_t,
        layout: &xdp_ring_offset,
        entries: u32,
    ) -> io::Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Ring::map(socket, offset, layout, entries) }.map(Consumer)
    }

    /// Goes on where the predecessor on our side stopped.
    pub(super) fn resume(&mut self) {
        self.0.ours = self.0.consumer().load(Ordering::Acquire);
        // Looked at when an entry is wanted.
        self.0.theirs = self.0.ours;
    }

    /// The index of the next entry to pop: counts all so far.
    pub(super) fn popped(&self) -> u32 {
        self.0.ours
    }

    /// The next entry. It goes back with [`Consumer::release`].
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.0.ours == self.0.theirs {
            self.0.theirs = self.0.producer().load(Ordering::Acquire);
            if self.0.ours == self.0.theirs {
                return None;
            }
        }
        let place = self.0.entry_at(self.0.ours);
        // SAFETY: the place lies inside the mapping, and the producer has
        // passed it, so it is written and ours until we release it.
        let entry = unsafe { place.read() };
        self.0.ours = self.0.ours.wrapping_add(1);
        Some(entry)
    }

    /// Gives all entries taken back to the other side.
    #[inline]
    pub(super) fn release(&mut self) {
        self.0.consumer().store(self.0.ours, Ordering::Release);
    }
}

/// What both sides share. `ours` is the index that we move, ahead of what we
/// have shown; `theirs` the other one, as last seen.
struct Ring<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    ours: u32,
    theirs: u32,
    /// Keeps the memory that all of these point into.
    _memory: RingMemory,
}

// SAFETY: the pointers are into memory that the ring owns and shares with the
// kernel alone; moving the ring to another thread moves our side as a whole.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps `entries` entries (a power of two) of a socket's ring.
    ///
    /// # Safety
    /// `layout` must be the kernel's for the ring at `offset`, and `entries`
    /// what that ring was made with.
    unsafe fn map(
        socket: BorrowedFd,
        offset: libc::off_t,
        layout: &xdp_ring_offset,
        entries: u32,
    ) -> io::Result<Ring<T>> {
        let bytes = layout.desc as usize + entries as usize * size_of::<T>();
        let memory = RingMemory::map(socket, offset, bytes)?;
        // SAFETY: the caller promises the layout; the memory is as long as
        // it says and page-aligned.
        Ok(unsafe { Ring::over(memory, layout, entries) })
    }

    /// # Safety
    /// `memory` must hold indices and `entries` entries where `layout` says,
    /// each aligned for its type.
    unsafe fn over(memory: RingMemory, layout: &xdp_ring_offset, entries: u32) -> Ring<T> {
        assert!(entries.is_power_of_two());
        // SAFETY: the caller promises that all of these lie inside.
        let at = |offset: u64| unsafe { memory.base.add(offset as usize) };
        Ring {
            producer: at(layout.producer).cast(),
            consumer: at(layout.consumer).cast(),
            flags: at(layout.flags).cast(),
            entries: at(layout.desc).cast(),
            size: entries,
            ours: 0,
            theirs: 0,
            _memory: memory,
        }
    }

    #[inline]
    fn entry_at(&self, index: u32) -> NonNull<T> {
        // SAFETY: masked, the index is below the number of entries.
        unsafe { self.entries.add((index & (self.size - 1)) as usize) }
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: points into memory that lives as long as the ring; other
        // writers use atomics too.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as for the producer.
        unsafe { self.consumer.as_ref() }
    }

    #[inline]
    fn flags(&self) -> &AtomicU32 {
        // SAFETY: as for the producer.
        unsafe { self.flags.as_ref() }
    }
}

/// A mapping of ring memory, unmapped with its ring.
struct RingMemory {
    base: NonNull<u8>,
    bytes: usize,
}

impl RingMemory {
    fn map(socket: BorrowedFd, offset: libc::off_t, bytes: usize) -> io::Result<RingMemory> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches
        // no memory that exists.
        let base = unsafe {
            libc::mmap(ptr::null_mut(), bytes, protection, flags, socket.as_raw_fd(), offset)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(RingMemory { base, bytes })
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the ring that points into it goes
        // with it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const LAYOUT: xdp_ring_offset =
        xdp_ring_offset { producer: 0, consumer: 64, flags: 128, desc: 192 };

    fn anonymous(bytes: usize, fd: libc::c_int) -> RingMemory {
        let flags = if fd < 0 { libc::MAP_SHARED | libc::MAP_ANONYMOUS } else { libc::MAP_SHARED };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, fd, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        RingMemory { base: NonNull::new(base.cast()).unwrap(), bytes }
    }

    /// Both sides of one ring, as we and the kernel have it: two mappings of
    /// the same memory.
    fn both_sides(entries: u32, start: u32) -> (Producer<u64>, Consumer<u64>) {
        // SAFETY: a call with a C string.
        let fd = unsafe { libc::memfd_create(c"ring".as_ptr(), 0) };
        assert!(fd >= 0);
        let bytes = 192 + entries as usize * 8;
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::ftruncate(fd, bytes as libc::off_t) }, 0);
        // SAFETY: the memory is as long as the layout and the entries need.
        let side = || unsafe { Ring::<u64>::over(anonymous(bytes, fd), &LAYOUT, entries) };
        let (mut producer, mut consumer) = (side(), side());
        producer.producer().store(start, Ordering::Relaxed);
        producer.consumer().store(start, Ordering::Relaxed);
        for ring in [&mut producer, &mut consumer] {
            (ring.ours, ring.theirs) = (start, start);
        }
        // SAFETY: it is not used any more.
        unsafe { libc::close(fd) };
        (Producer(producer), Consumer(consumer))
    }

    #[derive(Debug, Clone)]
    enum Step {
        Push(u32),
        Publish,
        Pop(u32),
        Release,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..20_u32).prop_map(Step::Push),
            Just(Step::Publish),
            (0..20_u32).prop_map(Step::Pop),
            Just(Step::Release)
        ]
    }

    proptest! {
        /// Any order of operations, at any index (wrapping included), does
        /// what a queue with a window of unpublished and unreleased entries
        /// does.
        #[test]
        fn a_ring_is_a_bounded_queue(steps in prop::collection::vec(step(), 1..200), start in prop_oneof![Just(0), Just(u32::MAX - 10), any::<u32>()]) {
            const SIZE: u32 = 16;
            let (mut producer, mut consumer) = both_sides(SIZE, start);
            let (mut hidden, mut visible) = (VecDeque::new(), VecDeque::new());
            let (mut unreleased, mut next) = (0, 0_u64);
            for step in steps {
                match step {
                    Step::Push(n) => {
                        let room = producer.room();
                        prop_assert_eq!(room as usize, SIZE as usize - hidden.len() - visible.len() - unreleased);
                        for _ in 0..n.min(room) {
                            producer.push(next);
                            hidden.push_back(next);
                            next += 1;
                        }
                    }
                    Step::Publish => {
                        producer.publish();
                        visible.append(&mut hidden);
                    }
                    Step::Pop(n) => for _ in 0..n {
                        let popped = consumer.pop();
                        prop_assert_eq!(popped, visible.pop_front());
                        unreleased += usize::from(popped.is_some());
                    },
                    Step::Release => {
                        consumer.release();
                        unreleased = 0;
                    }
                }
            }
            prop_assert_eq!(producer.pending() as usize, hidden.len() + visible.len() + unreleased);
        }
    }

    #[test]
    fn a_successor_goes_on_where_its_side_stopped() {
        let (mut producer, mut consumer) = both_sides(8, u32::MAX - 2);
        (0..5).for_each(|n| producer.push(n));
        producer.publish();
        assert_eq!((consumer.pop(), consumer.pop()), (Some(0), Some(1)));
        consumer.release();
        // As a successor's mapping begins.
        for ring in [&mut producer.0, &mut consumer.0] {
            (ring.ours, ring.theirs) = (0, 0);
        }
        producer.resume();
        consumer.resume();
        assert_eq!(producer.pushed().wrapping_sub(consumer.popped()), 3);
        assert_eq!((producer.room(), producer.pending()), (5, 3));
        producer.push(5);
        producer.publish();
        assert!(std::iter::from_fn(|| consumer.pop()).eq(2..6));
    }

    #[test]
    fn two_threads_see_every_entry_once_and_in_order() {
        let (mut producer, mut consumer) = both_sides(64, u32::MAX - 1000);
        const ENTRIES: u64 = 200_000;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut next = 0;
                while next < ENTRIES {
                    for _ in 0..producer.room().min(17).min((ENTRIES - next) as u32) {
                        producer.push(next);
                        next += 1;
                    }
                    producer.publish();
                    std::thread::yield_now();
                }
            });
            let mut expected = 0;
            while expected < ENTRIES {
                match consumer.pop() {
                    Some(entry) => {
                        assert_eq!(entry, expected);
                        expected += 1;
                    }
                    None => {
                        consumer.release();
                        std::thread::yield_now();
                    }
                }
            }
        });
    }

    #[test]
    #[should_panic(expected = "pushed into a full ring")]
    fn pushing_into_a_full_ring_is_our_fault() {
        let (mut producer, _consumer) = both_sides(2, 0);
        (0..3).for_each(|n| producer.push(n));
    }
}
