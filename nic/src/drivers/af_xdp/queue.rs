//! A queue of an interface: frames through the four rings of its socket.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;

use libc::xdp_desc;
use wire::{Batch, CHUNK_BYTES, Frame};

use super::ring::{CompletionRing, FillRing, RxRing, TxRing};
use super::socket::{Socket, Statistics};
use crate::device::{KernelCounters, Meter, Queue, Tally};
use crate::memory::{Memory, Pool};

/// Chunks that the kernel has at most to receive into, in rings of ours: as many as the fill
/// ring and the ring of received frames hold. With those of a third ring, which are being sent,
/// that is all that a queue has memory for.
const RINGS_LENT: u32 = 2;

/// One RX queue of an interface and the TX queue of the same number.
///
/// Chunks that are in its rings when it is dropped are lost to the pool: a
/// queue is meant to live as long as its worker.
pub struct XdpQueue {
    fd: Arc<OwnedFd>,
    memory: &'static Memory,
    fill: FillRing,
    rx: RxRing,
    tx: TxRing,
    completion: CompletionRing,
    /// Frames handed to the kernel whose chunks have not come back. At most
    /// a ring of them, so that the completion ring has room for all.
    in_flight: u32,
    ring_entries: u32,
    zero_copy: bool,
    tally: Arc<Tally>,
    statistics: Arc<dyn KernelCounters>,
}

impl XdpQueue {
    /// A queue on a bound socket, ready to receive.
    pub(super) fn new(socket: Socket, ring_entries: u32, pool: &mut Pool) -> XdpQueue {
        let mut queue = XdpQueue::on(socket, ring_entries, pool.memory());
        queue.refill(pool);
        queue
    }

    /// A queue on the socket of a predecessor; to be used after
    /// [`XdpQueue::take_over`] only.
    pub(super) fn inherit(socket: Socket, ring_entries: u32, memory: &'static Memory) -> XdpQueue {
        XdpQueue::on(socket, ring_entries, memory)
    }

    /// Goes on where the predecessor has stopped.
    pub(super) fn take_over(&mut self, pool: &mut Pool) {
        self.fill.resume();
        self.rx.resume();
        self.tx.resume();
        self.completion.resume();
        // Each frame handed to the kernel comes back once.
        self.in_flight = self.tx.pushed().wrapping_sub(self.completion.popped());
        self.refill(pool);
    }

    fn on(socket: Socket, ring_entries: u32, memory: &'static Memory) -> XdpQueue {
        XdpQueue {
            statistics: Arc::new(Statistics(Arc::downgrade(&socket.fd))),
            fd: socket.fd,
            memory,
            fill: socket.fill,
            rx: socket.rx,
            tx: socket.tx,
            completion: socket.completion,
            in_flight: 0,
            ring_entries,
            zero_copy: socket.zero_copy,
            tally: Arc::default(),
        }
    }

    /// Gives the kernel free chunks to receive into. With zero-copy the device has a ring of its
    /// own beyond ours, which may be longer: it gets no chunks that frames to be sent, or other
    /// interfaces, need.
    fn refill(&mut self, pool: &mut Pool) {
        let lent = self.fill.pushed().wrapping_sub(self.rx.popped());
        let may_lend = (RINGS_LENT * self.ring_entries).saturating_sub(lent);
        let room = self.fill.room().min(may_lend) as usize;
        for _ in 0..room.min(pool.free()) {
            let Some(chunk) = pool.take() else { break };
            self.fill.push(self.memory.surrender(chunk));
        }
        self.fill.publish();
        if self.fill.needs_wakeup() && self.fill.pending() > 0 {
            self.call_to_receive();
        }
    }

    /// Takes the chunks of frames that were sent.
    fn collect(&mut self, pool: &mut Pool) {
        while let Some(offset) = self.completion.pop() {
            self.in_flight = self.in_flight.saturating_sub(1);
            // SAFETY: the queue, and so its memory, is this thread's.
            match unsafe { self.memory.reclaim(offset) } {
                Some((chunk, _)) => pool.give(chunk),
                None => self.tally.rx_invalid.add(1),
            }
        }
        self.completion.release();
    }

    /// The frame that a descriptor describes; None if it describes none.
    fn frame(&self, descriptor: xdp_desc, pool: &mut Pool) -> Option<Frame<'static>> {
        // SAFETY: the queue, and so its memory, is this thread's.
        let Some((chunk, start)) = (unsafe { self.memory.reclaim(descriptor.addr) }) else {
            self.tally.rx_invalid.add(1);
            return None;
        };
        let end = start + descriptor.len as usize;
        if end > CHUNK_BYTES {
            self.tally.rx_invalid.add(1);
            pool.give(chunk);
            return None;
        }
        Some(Frame::new(chunk, start, end))
    }

    /// Calls the kernel until it has taken what there is to send: in copy
    /// mode it sends inside the call, at most its budget each time.
    fn kick(&mut self) {
        let mut pending = self.tx.pending();
        while pending > 0 && self.tx.needs_wakeup() {
            let error = self.call_to_send().err().and_then(|error| error.raw_os_error());
            let left = self.tx.pending();
            let again = matches!(error, None | Some(libc::EAGAIN)) && left < pending;
            if self.zero_copy || !again {
                // The device is busy: the next call or poll goes on.
                return;
            }
            pending = left;
        }
    }

    fn call_to_send(&self) -> io::Result<()> {
        // SAFETY: nothing is sent from memory: the call starts the ring.
        let sent = unsafe {
            libc::sendto(self.fd.as_raw_fd(), ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn call_to_receive(&self) {
        // SAFETY: nothing is received into memory: the call starts the ring.
        // It fails while the interface is down; the next one tries again.
        unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
                ptr::null_mut(),
            );
        }
    }
}

impl Queue for XdpQueue {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>) {
        if self.in_flight > 0 {
            self.kick();
            self.collect(pool);
        }
        let (mut frames, mut bytes) = (0, 0);
        while !batch.is_full() {
            let Some(descriptor) = self.rx.pop() else { break };
            if let Some(frame) = self.frame(descriptor, pool) {
                frames += 1;
                bytes += frame.len() as u64;
                batch.push(frame);
            }
        }
        self.rx.release();
        self.tally.received.add(frames);
        self.tally.received_bytes.add(bytes);
        self.refill(pool);
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>) {
        self.collect(pool);
        let room = self.tx.room().min(self.ring_entries - self.in_flight) as usize;
        let (mut frames, mut bytes) = (0, 0);
        for frame in batch.drain(..batch.len().min(room)) {
            let (start, len) = (frame.start() as u64, frame.len() as u32);
            if len == 0 {
                // The kernel would drop it and keep the chunk.
                self.tally.tx_invalid.add(1);
                pool.give_frame(frame);
                continue;
            }
            let addr = self.memory.surrender(frame.into_chunk()) + start;
            self.tx.push(xdp_desc { addr, len, options: 0 });
            frames += 1;
            bytes += u64::from(len);
        }
        self.tx.publish();
        self.in_flight += frames as u32;
        self.tally.transmitted.add(frames);
        self.tally.transmitted_bytes.add(bytes);
        self.kick();
    }

    fn fd(&self) -> Option<RawFd> {
        Some(self.fd.as_raw_fd())
    }

    fn meter(&self) -> Meter {
        Meter::new(&self.tally, Some(Arc::clone(&self.statistics)))
    }
}
