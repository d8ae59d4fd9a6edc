//! A packet socket as a queue: one system call for a batch in each direction.
//!
//! Each message is a frame, in a chunk. Joined segments (up to 64 KiB) continue in separate
//! memory of the message, from which they are cut into the following batches. Until all are
//! cut, nothing more is received.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use wire::{BATCH_MAX, Batch, Frame, HEADROOM_BYTES};

use super::joined::{Bytes, Joined, Undone};
use super::socket;
use crate::device::{KernelCounters, Meter, Queue, QueueCounters, Tally};
use crate::memory::Pool;

/// Of a message, behind its chunk: the longest that a device joins.
const REST_BYTES: usize = 1 << 16;

/// One socket, or one of a group.
pub struct PacketQueue {
    fd: Arc<OwnedFd>,
    messages: Box<Messages>,
    /// Received, and not in a batch yet, in their order.
    held: VecDeque<Held>,
    tally: Arc<Tally>,
    statistics: Arc<Statistics>,
}

/// A message that was received.
struct Held {
    /// Its place among the messages.
    index: usize,
    frame: Frame<'static>,
    /// None: it is one packet.
    joined: Option<Joined>,
}

/// The arguments of the system calls. The pointers in it are set anew before
/// each and mean nothing afterwards.
struct Messages {
    headers: [libc::mmsghdr; BATCH_MAX],
    parts: [[libc::iovec; 3]; BATCH_MAX],
    undone: [Undone; BATCH_MAX],
    /// One behind the other: memory that the kernel gives pages when they are used.
    rests: Box<[u8]>,
}

// SAFETY: the raw pointers are never used after the call that they were set
// for, and a call begins and ends on one thread.
unsafe impl Send for Messages {}

impl Messages {
    fn new() -> Box<Messages> {
        // SAFETY: integers and pointers only: zero is valid for all.
        let (headers, parts) = unsafe { (mem::zeroed(), mem::zeroed()) };
        // Trap: of zeroed arrays each would be written here.
        let rests = vec![0; BATCH_MAX * REST_BYTES].into();
        Box::new(Messages { headers, parts, undone: [Undone::default(); BATCH_MAX], rests })
    }

    /// Message `index` is the header of what is undone and `bytes`; to receive, what is
    /// longer goes on in its rest.
    fn set(&mut self, index: usize, bytes: &mut [u8], with_rest: bool) {
        self.undone[index] = Undone::default();
        let undone = (&raw mut self.undone[index]).cast();
        let rest = &mut self.rests[index * REST_BYTES..][..REST_BYTES];
        self.parts[index] = [
            libc::iovec { iov_base: undone, iov_len: size_of::<Undone>() },
            libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() },
            libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() },
        ];
        self.headers[index].msg_hdr.msg_iov = self.parts[index].as_mut_ptr();
        self.headers[index].msg_hdr.msg_iovlen = if with_rest { 3 } else { 2 };
    }
}

impl PacketQueue {
    pub(crate) fn new(fd: OwnedFd) -> PacketQueue {
        let fd = Arc::new(fd);
        PacketQueue {
            messages: Messages::new(),
            held: VecDeque::with_capacity(BATCH_MAX),
            tally: Arc::default(),
            statistics: Arc::new(Statistics { fd: Arc::downgrade(&fd), drops: AtomicU64::new(0) }),
            fd,
        }
    }

    /// The kernel's socket, for a successor.
    pub(crate) fn socket(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Receives as many messages, of those that are there.
    fn receive(&mut self, pool: &mut Pool, count: usize) {
        let mut frames = Batch::new();
        while frames.len() < count {
            let Some(chunk) = pool.take() else { break };
            let end = chunk.len();
            frames.push(Frame::new(chunk, HEADROOM_BYTES, end));
        }
        let received = self.receive_into(&mut frames);
        for (index, frame) in frames.into_iter().enumerate() {
            if index >= received {
                pool.give_frame(frame);
            } else if let Err(frame) = self.hold(index, frame) {
                pool.give_frame(frame);
            }
        }
    }

    /// Receives into the chunks; how many were filled.
    fn receive_into(&mut self, chunks: &mut Batch<'static>) -> usize {
        for (index, chunk) in chunks.iter_mut().enumerate() {
            self.messages.set(index, chunk.bytes_mut(), true);
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        let (headers, count) = (self.messages.headers.as_mut_ptr(), chunks.len() as u32);
        // SAFETY: `count` messages were set to memory that lives through the
        // call: frames that we own, and headers and rests of the same box.
        let received = unsafe {
            libc::recvmmsg(self.fd.as_raw_fd(), headers, count, flags as _, ptr::null_mut())
        };
        usize::try_from(received).unwrap_or(0)
    }

    /// Keeps what a message was received into for a batch; gives it back if it is to be
    /// dropped.
    fn hold(&mut self, index: usize, mut frame: Frame<'static>) -> Result<(), Frame<'static>> {
        let undone = self.messages.undone[index];
        let len = self.messages.headers[index].msg_len as usize;
        let Some(len) = len.checked_sub(size_of::<Undone>()) else { return Err(frame) };
        // With MSG_TRUNC the kernel reports the whole length, received or not.
        let joined = (undone.is_joined() && len <= frame.len() + REST_BYTES)
            .then(|| Joined::new(undone, frame.bytes(), len))
            .flatten();
        if joined.is_none() {
            if undone.is_joined() || len > frame.len() {
                self.tally.rx_too_long.add(1);
                return Err(frame);
            }
            frame.truncate(len);
            if undone.complete_checksum(frame.bytes_mut()).is_none() {
                self.tally.rx_invalid.add(1);
                return Err(frame);
            }
        }
        self.held.push_back(Held { index, frame, joined });
        Ok(())
    }

    /// Puts into the batch what is held.
    fn give(&mut self, pool: &mut Pool, batch: &mut Batch<'static>) {
        while !batch.is_full() {
            let Some(first) = self.held.front_mut() else { return };
            let frame = match &mut first.joined {
                Some(joined) if joined.left() > 0 => {
                    let Some(chunk) = pool.take() else { return };
                    let rest = &self.messages.rests[first.index * REST_BYTES..][..REST_BYTES];
                    joined.cut(&Bytes { front: first.frame.bytes(), rest }, chunk)
                }
                _ => {
                    let Some(first) = self.held.pop_front() else { return };
                    if first.joined.is_some() {
                        // Of all that was cut the device has counted one.
                        pool.give_frame(first.frame);
                        self.tally.rx_joined.add(1);
                        continue;
                    }
                    first.frame
                }
            };
            self.tally.received.add(1);
            self.tally.received_bytes.add(frame.len() as u64);
            batch.push(frame);
        }
    }

    /// Sends the first frames; how many were taken.
    fn send(&mut self, batch: &mut Batch<'static>) -> io::Result<usize> {
        for (index, frame) in batch.iter_mut().enumerate() {
            self.messages.set(index, frame.bytes_mut(), false);
        }
        let (headers, count) = (self.messages.headers.as_mut_ptr(), batch.len() as u32);
        // SAFETY: as in `receive`.
        let sent =
            unsafe { libc::sendmmsg(self.fd.as_raw_fd(), headers, count, libc::MSG_DONTWAIT as _) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    fn count_sent(&self, frame: &Frame) {
        self.tally.transmitted.add(1);
        self.tally.transmitted_bytes.add(frame.len() as u64);
    }
}

impl Queue for PacketQueue {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>) {
        if self.held.is_empty() {
            self.receive(pool, batch.remaining_capacity());
        }
        self.give(pool, batch);
    }

    fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>) {
        while !batch.is_empty() {
            match self.send(batch) {
                Ok(sent) => batch.drain(..sent).for_each(|frame| {
                    self.count_sent(&frame);
                    pool.give_frame(frame);
                }),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_full(&error) => return,
                Err(_) => {
                    // The first one cannot be sent (longer than the MTU, or
                    // the link is down); those behind it may.
                    self.tally.tx_invalid.add(1);
                    batch.drain(..1).for_each(|frame| pool.give_frame(frame));
                }
            }
        }
    }

    fn fd(&self) -> Option<RawFd> {
        Some(self.fd.as_raw_fd())
    }

    fn meter(&self) -> Meter {
        let statistics: Arc<dyn KernelCounters> = self.statistics.clone();
        Meter::new(&self.tally, Some(statistics))
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS))
}

/// The kernel forgets its count when asked, so that it is summed here.
struct Statistics {
    fd: Weak<OwnedFd>,
    drops: AtomicU64,
}

impl KernelCounters for Statistics {
    fn read(&self, counters: &mut QueueCounters) {
        if let Some(Ok(new)) = self.fd.upgrade().map(|fd| socket::take_drops(&fd)) {
            self.drops.fetch_add(new.into(), Relaxed);
        }
        counters.rx_dropped += self.drops.load(Relaxed);
    }
}
