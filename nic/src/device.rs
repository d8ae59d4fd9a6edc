//! A driver's interface: queues of frames.
//!
//! A device is a driver's network interface; a [`Queue`] is one pair of its receive and
//! transmit rings, owned by one worker. Nothing here ever waits; for that there is
//! [`crate::wait`].

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use wire::Batch;

use crate::memory::Pool;

/// One receive and transmit pair of a device.
pub trait Queue: Send {
    /// Appends the frames that are there, until the batch is full.
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>);

    /// True if frames are taken off the device that no batch has had room for: the next
    /// are these, and no others.
    fn holds(&self) -> bool {
        false
    }

    /// Sends frames, in order. Those taken leave the batch. Those that do not
    /// fit the ring stay in it: the caller counts them (`tx_full`) and gives
    /// them back to the pool.
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>);

    /// Readable when frames are there; None for a device without kernel.
    fn fd(&self) -> Option<RawFd>;

    /// A handle to the queue's counters that any thread may read.
    fn meter(&self) -> Meter;
}

/// What happened at a queue, independent of what became of the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Frames taken off the receive ring, and cut from those that were joined.
    pub received: u64,
    /// Bytes in them.
    pub received_bytes: u64,
    /// Frames put on the transmit ring.
    pub transmitted: u64,
    /// Bytes in them.
    pub transmitted_bytes: u64,
    /// Frames the kernel dropped before us: longer than a chunk holds
    /// (`af_xdp`), or no room in the socket's buffer (`af_packet`).
    pub rx_dropped: u64,
    /// Frames the kernel dropped because the receive ring was full: the
    /// worker is too slow.
    pub rx_ring_full: u64,
    /// Times the kernel found no free chunk: the worker is too slow, or the
    /// pool too small.
    pub fill_empty: u64,
    /// Frames of segments that GRO or TSO joined, taken off the ring and cut
    /// (`af_packet`): the device counts one where `received` counts the segments.
    pub rx_joined: u64,
    /// Frames longer than a chunk holds, where we see them ourselves, and joined ones that
    /// cannot be cut (`af_packet`).
    pub rx_too_long: u64,
    /// Descriptors from the kernel that point outside the memory (never seen,
    /// checked nevertheless), checksums to complete that do (`af_packet`); packets that a
    /// capture cut short (`pcap`).
    pub rx_invalid: u64,
    /// Frames the kernel refused to send: longer than the link's MTU.
    pub tx_invalid: u64,
}

/// A queue's counters, readable by any thread at any time. By default those of
/// a queue that counts nothing itself.
#[derive(Clone, Default)]
pub struct Meter {
    tally: Arc<Tally>,
    kernel: Option<Arc<dyn KernelCounters>>,
}

/// Counters that the kernel keeps for a queue; fills in what it knows.
pub(crate) trait KernelCounters: Send + Sync {
    fn read(&self, counters: &mut QueueCounters);
}

impl Meter {
    pub(crate) fn new(tally: &Arc<Tally>, kernel: Option<Arc<dyn KernelCounters>>) -> Meter {
        Meter { tally: Arc::clone(tally), kernel }
    }

    /// The counters now.
    #[must_use]
    pub fn read(&self) -> QueueCounters {
        let mut counters = self.tally.read();
        if let Some(kernel) = &self.kernel {
            kernel.read(&mut counters);
        }
        counters
    }
}

/// The counters that a queue keeps itself: written by its worker only, on a
/// cache line of their own.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    pub(crate) received: Counter,
    pub(crate) received_bytes: Counter,
    pub(crate) transmitted: Counter,
    pub(crate) transmitted_bytes: Counter,
    pub(crate) rx_joined: Counter,
    pub(crate) rx_too_long: Counter,
    pub(crate) rx_invalid: Counter,
    pub(crate) tx_invalid: Counter,
}

impl Tally {
    fn read(&self) -> QueueCounters {
        QueueCounters {
            received: self.received.get(),
            received_bytes: self.received_bytes.get(),
            transmitted: self.transmitted.get(),
            transmitted_bytes: self.transmitted_bytes.get(),
            rx_joined: self.rx_joined.get(),
            rx_too_long: self.rx_too_long.get(),
            rx_invalid: self.rx_invalid.get(),
            tx_invalid: self.tx_invalid.get(),
            ..QueueCounters::default()
        }
    }
}

/// A counter with one writer: an addition without a locked instruction.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
