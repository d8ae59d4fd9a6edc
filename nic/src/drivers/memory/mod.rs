//! A device in memory, for tests: frames are pushed in at one end and taken
//! out at the other.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wire::{BATCH_MAX, Batch};

use crate::device::{Meter, Queue, Tally};
use crate::driver::{Abilities, Driver, QueueOwners, inherits_nothing, opens_nothing};
use crate::memory::Pool;

/// Frames that a test pushes in and takes out.
pub static DRIVER: Driver = Driver {
    name: "memory",
    abilities: Abilities {
        filter: false,
        kernel_interface: false,
        take_over: false,
        kernel_cache: None,
    },
    queues: QueueOwners::Shared,
    chunks: |_| BATCH_MAX,
    pool: Pool::new,
    open: opens_nothing,
    inherit: inherits_nothing,
};

/// The worker's end.
pub struct MemoryQueue {
    cable: Arc<Mutex<Cable>>,
    tally: Arc<Tally>,
}

/// The test's end.
#[derive(Clone)]
pub struct MemoryPeer {
    cable: Arc<Mutex<Cable>>,
}

/// See [`MemoryPeer::hang`].
pub struct Hang<'p> {
    _cable: MutexGuard<'p, Cable>,
}

#[derive(Default)]
struct Cable {
    to_worker: VecDeque<Vec<u8>>,
    from_worker: VecDeque<Vec<u8>>,
    tx_capacity: Option<usize>,
    leaks: usize,
}

/// A queue and its other end. It has room for any number of frames, unless
/// [`MemoryPeer::limit_tx`] says otherwise.
#[must_use]
pub fn pair() -> (MemoryQueue, MemoryPeer) {
    let cable = Arc::new(Mutex::new(Cable::default()));
    (MemoryQueue { cable: Arc::clone(&cable), tally: Arc::default() }, MemoryPeer { cable })
}

impl MemoryPeer {
    /// Sends a frame to the worker.
    pub fn push(&self, frame: &[u8]) {
        self.lock().to_worker.push_back(frame.to_vec());
    }

    /// The next frame that the worker sent.
    #[must_use]
    pub fn take(&self) -> Option<Vec<u8>> {
        self.lock().from_worker.pop_front()
    }

    /// From now on the ring to us holds up to `frames` that were not taken.
    pub fn limit_tx(&self, frames: usize) {
        self.lock().tx_capacity = Some(frames);
    }

    /// The next `frames` frames are counted as received and then lost, as a
    /// faulty driver would: the conservation law must notice.
    pub fn leak(&self, frames: usize) {
        self.lock().leaks += frames;
    }

    /// Has the next call to the device hang until the value is dropped, as a
    /// faulty driver would.
    #[must_use]
    pub fn hang(&self) -> Hang<'_> {
        Hang { _cable: self.lock() }
    }

    fn lock(&self) -> MutexGuard<'_, Cable> {
        self.cable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue for MemoryQueue {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>) {
        let mut cable = self.cable.lock().unwrap_or_else(PoisonError::into_inner);
        while !batch.is_full() && pool.free() > 0 {
            let Some(bytes) = cable.to_worker.pop_front() else { return };
            let Some(frame) = pool.frame_of(&bytes) else {
                self.tally.rx_too_long.add(1);
                continue;
            };
            self.tally.received.add(1);
            self.tally.received_bytes.add(bytes.len() as u64);
            if cable.leaks > 0 {
                cable.leaks -= 1;
                pool.give_frame(frame);
                continue;
            }
            batch.push(frame);
        }
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>) {
        let mut cable = self.cable.lock().unwrap_or_else(PoisonError::into_inner);
        let capacity = cable.tx_capacity.unwrap_or(usize::MAX);
        let taken = batch.len().min(capacity.saturating_sub(cable.from_worker.len()));
        for frame in batch.drain(..taken) {
            self.tally.transmitted.add(1);
            self.tally.transmitted_bytes.add(frame.len() as u64);
            cable.from_worker.push_back(frame.bytes().to_vec());
            pool.give_frame(frame);
        }
    }

    fn fd(&self) -> Option<RawFd> {
        None
    }

    fn meter(&self) -> Meter {
        Meter::new(&self.tally, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_pass_in_order_and_their_chunks_come_back() {
        let (mut queue, peer) = pair();
        let mut pool = Pool::new(4).unwrap();
        let mut batch = Batch::new();
        (0..3_u8).for_each(|n| peer.push(&[n; 60]));
        queue.rx(&mut pool, &mut batch);
        assert_eq!(batch.len(), 3);
        queue.tx(&mut pool, &mut batch);
        assert!(batch.is_empty());
        for n in 0..3_u8 {
            assert_eq!(peer.take().unwrap(), [n; 60]);
        }
        let counters = queue.meter().read();
        assert_eq!((counters.received, counters.transmitted, pool.free()), (3, 3, 4));
    }

    #[test]
    fn a_full_ring_leaves_frames_in_the_batch() {
        let (mut queue, peer) = pair();
        let mut pool = Pool::new(4).unwrap();
        let mut batch = Batch::new();
        peer.limit_tx(1);
        peer.push(b"first");
        peer.push(b"second");
        queue.rx(&mut pool, &mut batch);
        queue.tx(&mut pool, &mut batch);
        assert_eq!(batch.len(), 1);
        assert_eq!(batch[0].bytes(), b"second");
        batch.drain(..).for_each(|frame| pool.give_frame(frame));
        assert_eq!(pool.free(), 4);
    }

    #[test]
    fn an_empty_pool_leaves_frames_in_the_ring() {
        let (mut queue, peer) = pair();
        let mut pool = Pool::new(1).unwrap();
        let mut batch = Batch::new();
        peer.push(b"first");
        peer.push(b"second");
        queue.rx(&mut pool, &mut batch);
        assert_eq!(queue.meter().read().received, 1);
        queue.tx(&mut pool, &mut batch);
        queue.rx(&mut pool, &mut batch);
        assert_eq!(batch[0].bytes(), b"second");
        queue.tx(&mut pool, &mut batch);
    }

    #[test]
    fn a_leaking_device_counts_what_it_loses() {
        let (mut queue, peer) = pair();
        let mut pool = Pool::new(4).unwrap();
        let mut batch = Batch::new();
        peer.leak(1);
        peer.push(b"lost");
        peer.push(b"kept");
        queue.rx(&mut pool, &mut batch);
        assert_eq!((batch.len(), queue.meter().read().received), (1, 2));
        queue.tx(&mut pool, &mut batch);
    }
}
